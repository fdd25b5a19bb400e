package forward

// Bounds of the wire. They are constants, so that what one version sends every
// other one takes.
const (
	// frameItemsMax is how many events, verdicts or topics a frame may hold.
	frameItemsMax = 4096
	// frameOverheadMax is the part of FrameMax that is kept for what stands around
	// one event: numbers, tags and lengths.
	frameOverheadMax = 1 << 10
	// propertyBytesMin is what event.Event.Bytes counts for an empty property: a
	// frame of n bytes never holds more than n/32 of them.
	propertyBytesMin = 32
)
