package mailbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/router/ring"
)

// eventBytesMax is the largest event that the wire accepts, as event.Event.Bytes
// weighs it. Each shard must be able to hold one.
const eventBytesMax = 9 << 20

// Config bounds what the mailboxes of one node hold.
type Config struct {
	// Shards is the number of independently locked parts that the partitions are spread
	// over. 1 to ring.Partitions.
	Shards int
	// DepthMax bounds the waiting events of one key, besides a running one. At least 1.
	DepthMax int
	// BytesMax bounds the weight of all events here: event.Event.Bytes and 256 bytes of
	// overhead for each. Each shard has an equal part, and holds at most 1<<20 events
	// however small they are. At least 9 MiB for each shard.
	BytesMax int
	// FramesBytesMax bounds the bytes of peers' frames that waiting events keep in memory;
	// beyond it these events are copied out. At least 1 MiB.
	FramesBytesMax int
	// JoinsMax bounds the senders that wait for the verdict on one event. At least 1.
	JoinsMax int
	// WindowBytesMax bounds the bytes of ids of recently finished events, counted as 128
	// bytes each; each shard has an equal part. At least 128 for each shard.
	WindowBytesMax int
	// WindowAgeMax is how long such an id is remembered, when the bytes suffice.
	// It is forgotten up to a sixteenth later. More than 0.
	WindowAgeMax time.Duration
	// OverloadedDelay is the time that a sender waits after Overloaded. More than 0.
	OverloadedDelay time.Duration
	// NotYetDelay is the time that a sender waits after NotYet. More than 0.
	NotYetDelay time.Duration
}

// DefaultConfig returns bounds for a sidecar with a few hundred MiB of memory.
func DefaultConfig() Config {
	return Config{
		Shards:          2,
		DepthMax:        1000,
		BytesMax:        256 << 20,
		FramesBytesMax:  64 << 20,
		JoinsMax:        16,
		WindowBytesMax:  32 << 20,
		WindowAgeMax:    10 * time.Minute,
		OverloadedDelay: 100 * time.Millisecond,
		NotYetDelay:     10 * time.Millisecond,
	}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("mailbox: %s = %v, want %s", field, value, want))
		}
	}
	shards := max(1, c.Shards)
	check(c.Shards >= 1 && c.Shards <= ring.Partitions, "Shards", c.Shards, fmt.Sprintf("1 to %d", ring.Partitions))
	check(c.DepthMax >= 1, "DepthMax", c.DepthMax, ">= 1")
	check(c.BytesMax/shards >= eventBytesMax, "BytesMax", c.BytesMax, fmt.Sprintf(">= %d for each shard", eventBytesMax))
	check(c.FramesBytesMax >= 1<<20, "FramesBytesMax", c.FramesBytesMax, ">= 1 MiB")
	check(c.JoinsMax >= 1, "JoinsMax", c.JoinsMax, ">= 1")
	check(c.WindowBytesMax/shards >= recordBytes, "WindowBytesMax", c.WindowBytesMax, fmt.Sprintf(">= %d for each shard", recordBytes))
	check(c.WindowAgeMax > 0, "WindowAgeMax", c.WindowAgeMax, "> 0")
	check(c.OverloadedDelay > 0, "OverloadedDelay", c.OverloadedDelay, "> 0")
	check(c.NotYetDelay > 0, "NotYetDelay", c.NotYetDelay, "> 0")
	return errors.Join(errs...)
}

// share returns the bounds of one of c.Shards shards.
func (c Config) share() Config {
	c.BytesMax /= c.Shards
	c.WindowBytesMax /= c.Shards
	return c
}
