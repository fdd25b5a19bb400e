package forward

import "time"

// Config holds the limits and times of this package. Every member of a group has
// the same FrameMax.
type Config struct {
	// FrameEventsMax bounds the events (or verdicts) of one frame.
	FrameEventsMax int `min:"1" max:"4096"`
	// FrameBytesMax bounds the bytes of events of a frame with more than one event.
	FrameBytesMax int `unit:"bytes" min:"1"`
	// FrameMax is the largest frame in bytes, and so the largest event.
	// A larger event is rejected, which sends it to the dead letter topic.
	FrameMax int `unit:"bytes" min:"64KiB" max:"64MiB"`

	// PingAfter is how long a stream may be idle before a Ping is sent.
	PingAfter time.Duration `min:"10ms"`
	// DeadAfter is how long a peer may be silent before its stream is broken.
	DeadAfter time.Duration `above:"0"`
	// HelloTimeout is how long a connection and its Hello may take.
	HelloTimeout time.Duration `min:"100ms"`
	// ReconnectMin is the first pause after a stream broke. It doubles up to ReconnectMax.
	ReconnectMin time.Duration `min:"10ms"`
	// ReconnectMax is the longest pause between two attempts to connect.
	ReconnectMax time.Duration `above:"0"`

	// UnreachableHoldMax is how long events wait for an unreachable owner before they are sent
	// by way of a third member.
	UnreachableHoldMax time.Duration `above:"0"`
	// RefusedRetry is the time after which a refused event is sent again if no newer route
	// has come: a fallback for a wait that normally ends with the next route.
	RefusedRetry time.Duration `above:"0"`
	// DelayMin and DelayMax bound the delays that peers ask for.
	DelayMin time.Duration `above:"0"`
	DelayMax time.Duration `above:"0"`
	// FullBurstMin is the number of events of a key whose mailbox was full that are sent after its pause.
	// It doubles with each accepted burst, up to FrameEventsMax.
	FullBurstMin int `min:"1"`
	// FullDelayMax is the longest pause of a key whose mailbox is full and whose owner gives no credit. The
	// first pause is the owner's delay; it doubles with each refusal.
	FullDelayMax time.Duration `above:"0"`
	// HandoverMax bounds the ids of recently finished events, of about 60 bytes each, that wait
	// to be handed over to the next owners of their partitions.
	HandoverMax int `min:"1"`
	// RelayedBytesMax bounds the events that this member passes on for members that cannot reach
	// their owners. Those beyond it are refused, and their senders keep them and try again.
	// A frame is always taken while no other one is held.
	RelayedBytesMax int `unit:"bytes" min:"1"`
	// PeersTypical is the usual number of other members. It bounds nothing, but the memory
	// bound is computed with it, and the router warns when there are more.
	PeersTypical int `min:"1"`
}

// StreamBytes is the most that the two streams of one peer keep in buffers: each way a
// frame in the socket's buffers, one that is being received, and one that is sent.
func (c Config) StreamBytes() int {
	return 4*socketBuffer + 2*3*(c.FrameBytesMax+frameOverheadMax)
}

// ListenerBytes returns what gRPC allocates for a caller before its Hello: the buffers of
// a connection, its number of streams, and the largest message.
func (c Config) ListenerBytes() (socketBytes, streams, messageMax int) {
	return 2 * socketBuffer, streamsMax, c.FrameMax
}

// DefaultConfig returns the settings that the design was measured with.
func DefaultConfig() Config {
	return Config{
		FrameEventsMax:     1024,
		FrameBytesMax:      1 << 20,
		FrameMax:           8 << 20,
		PingAfter:          500 * time.Millisecond,
		DeadAfter:          time.Second,
		HelloTimeout:       time.Second,
		ReconnectMin:       20 * time.Millisecond,
		ReconnectMax:       time.Second,
		UnreachableHoldMax: 10 * time.Second,
		RefusedRetry:       time.Second,
		DelayMin:           5 * time.Millisecond,
		DelayMax:           30 * time.Second,
		FullBurstMin:       16,
		FullDelayMax:       5 * time.Second,
		HandoverMax:        1 << 18,
		RelayedBytesMax:    64 << 20,
		PeersTypical:       8,
	}
}
