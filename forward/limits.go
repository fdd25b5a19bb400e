package forward

import "strings"

// Bounds of the wire. They are constants, so that what one version sends every
// other one takes.
const (
	// frameItemsMax is how many events, verdicts or topics a frame may hold.
	frameItemsMax = 4096
	// textMax is how much of an error or a reason travels, in bytes.
	textMax = 4 << 10
	// frameOverheadMax is the part of FrameMax that is kept for what stands around
	// one event: numbers, tags and lengths, and the errors that it may still get.
	frameOverheadMax = 2*textMax + 1<<10
	// helloBytesMax is the largest first frame of a stream: members' names, and the settings on
	// which the group agrees.
	helloBytesMax = 64 << 10
	// saidMax is how much of what a peer says in words stands in an error, in bytes.
	saidMax = 1 << 10
	// propertyBytesMin is what event.Event.Bytes counts for an empty property: a
	// frame of n bytes never holds more than n/32 of them.
	propertyBytesMin = 32
)

func clip(s string) string {
	if len(s) <= textMax {
		return s
	}
	return strings.ToValidUTF8(s[:textMax], "")
}
