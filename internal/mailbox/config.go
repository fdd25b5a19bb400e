package mailbox

import "time"

// The least bytes that a shard must have.
const (
	ShardBytesMin       = 9 << 20 // the largest event that the wire accepts, as event.Event.Bytes weighs it
	ShardWindowBytesMin = recordBytes
)

// Config bounds the mailboxes of one node.
type Config struct {
	// Shards is the number of independently locked parts that the partitions are spread
	// over.
	Shards int `min:"1" max:"4093"`
	// DepthMax bounds the waiting events of one key, besides a running one. With fewer than 128, a schedule that runs
	// all missed times may run them out of order.
	DepthMax int `min:"1"`
	// BytesMax bounds the bytes of all events in mailboxes, with 256 bytes of overhead for each.
	// Each shard has an equal part of at least 9 MiB, and holds at most 1,048,576 events.
	BytesMax int `unit:"bytes" min:"9MiB"`
	// FramesBytesMax bounds the bytes of peers' frames that waiting events keep in memory;
	// beyond it these events are copied out.
	FramesBytesMax int `unit:"bytes" min:"1MiB"`
	// KeyCallsMax bounds the calls of one key that wait, besides a running one. A further one is refused as overloaded.
	KeyCallsMax int `min:"1"`
	// CallsMax bounds all calls that wait or run, each shard an equal part.
	CallsMax int `min:"1"`
	// RepliesBytesMax bounds the bytes of replies that are remembered for repeats of their calls, with 256 bytes of overhead for each.
	RepliesBytesMax int `unit:"bytes" min:"0"`
	// JoinsMax bounds the senders that wait for the verdict on one event.
	JoinsMax int `min:"1"`
	// WindowBytesMax bounds the bytes of ids of recently finished events, counted as 128
	// bytes each. Each shard has an equal part of at least 128 bytes.
	WindowBytesMax int `unit:"bytes" min:"128"`
	// WindowAgeMax is how long the id of a finished event is remembered, if WindowBytesMax
	// suffices. It is forgotten up to a sixteenth later.
	WindowAgeMax time.Duration `above:"0"`
	// OverloadedDelay is how long a sender waits after the answer Overloaded.
	OverloadedDelay time.Duration `above:"0"`
	// NotYetDelay is how long a sender waits after the answer NotYet.
	NotYetDelay time.Duration `above:"0"`
}

// DefaultConfig returns bounds for a sidecar with a few hundred MiB of memory.
func DefaultConfig() Config {
	return Config{
		Shards:          2,
		DepthMax:        1000,
		BytesMax:        256 << 20,
		FramesBytesMax:  64 << 20,
		KeyCallsMax:     100,
		CallsMax:        10_000,
		RepliesBytesMax: 8 << 20,
		JoinsMax:        16,
		WindowBytesMax:  32 << 20,
		WindowAgeMax:    10 * time.Minute,
		OverloadedDelay: 100 * time.Millisecond,
		NotYetDelay:     10 * time.Millisecond,
	}
}

// share returns the bounds of one of c.Shards shards.
func (c Config) share() Config {
	c.BytesMax /= c.Shards
	c.WindowBytesMax /= c.Shards
	c.CallsMax = max(1, c.CallsMax/c.Shards)
	c.RepliesBytesMax /= c.Shards
	return c
}
