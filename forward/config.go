package forward

import (
	"errors"
	"fmt"
	"time"
)

// Config holds the limits and times of this package. Every member of a group has
// the same FrameMax.
type Config struct {
	// FrameEventsMax bounds the events (or verdicts) of one frame, 1 … 4096.
	FrameEventsMax int
	// FrameBytesMax bounds the bytes of events of a frame with more than one event:
	// 1 … FrameMax.
	FrameBytesMax int
	// FrameMax is the largest frame in bytes, and so the largest event: 64 KiB … 64 MiB.
	// A larger event is rejected, which sends it to the dead letter topic.
	FrameMax int

	// PingAfter is how long a stream may be idle before a Ping is sent, >= 10 ms.
	PingAfter time.Duration
	// DeadAfter is how long a peer may be silent before its stream is broken, > PingAfter.
	DeadAfter time.Duration
	// HelloTimeout is how long a connection and its Hello may take, > 0.
	HelloTimeout time.Duration
	// ReconnectMin is the first pause after a stream broke, > 0. It doubles up to ReconnectMax.
	ReconnectMin time.Duration
	// ReconnectMax is the longest pause between two attempts, >= ReconnectMin.
	ReconnectMax time.Duration

	// UnreachableHoldMax is how long events wait for an owner that cannot be reached
	// before they are sent by way of a third member, > 0.
	UnreachableHoldMax time.Duration
	// RefusedRetry is the time after which a refused event is sent again if no newer route
	// has come: a fallback for a wait that normally ends with the next route, > 0.
	RefusedRetry time.Duration
	// DelayMin and DelayMax bound the delays that peers ask for, 0 < DelayMin <= DelayMax.
	DelayMin, DelayMax time.Duration
	// ParkBurstMin is the number of events of a parked key that are sent after its pause.
	// It doubles with each accepted burst, up to FrameEventsMax. >= 1.
	ParkBurstMin int
	// ParkDelayMax is the longest pause of a parked key whose owner gives no credit. The
	// first pause is the owner's delay; it doubles with each refusal. > 0.
	ParkDelayMax time.Duration
	// HandoverMax bounds the ids of recently finished events that wait to be handed over
	// to the next owners of their partitions, >= 1. About 40 bytes each.
	HandoverMax int
	// PeersTypical is the usual number of other members. It bounds nothing, but the bound
	// on memory is computed with it. >= 1.
	PeersTypical int
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
		ParkBurstMin:       16,
		ParkDelayMax:       5 * time.Second,
		HandoverMax:        1 << 18,
		PeersTypical:       8,
	}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, field string, got any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("forward: %s = %v, want %s", field, got, want))
		}
	}
	check(c.FrameEventsMax >= 1 && c.FrameEventsMax <= frameItemsMax, "FrameEventsMax", c.FrameEventsMax, fmt.Sprintf("1 to %d", frameItemsMax))
	check(c.FrameMax >= 64<<10 && c.FrameMax <= 64<<20, "FrameMax", c.FrameMax, "64 KiB to 64 MiB")
	check(c.FrameBytesMax >= 1 && c.FrameBytesMax <= c.FrameMax, "FrameBytesMax", c.FrameBytesMax, "1 to FrameMax")
	check(c.PingAfter >= 10*time.Millisecond, "PingAfter", c.PingAfter, ">= 10ms")
	check(c.DeadAfter > c.PingAfter, "DeadAfter", c.DeadAfter, "> PingAfter")
	check(c.HelloTimeout > 0, "HelloTimeout", c.HelloTimeout, "> 0")
	check(c.ReconnectMin > 0, "ReconnectMin", c.ReconnectMin, "> 0")
	check(c.ReconnectMax >= c.ReconnectMin, "ReconnectMax", c.ReconnectMax, ">= ReconnectMin")
	check(c.UnreachableHoldMax > 0, "UnreachableHoldMax", c.UnreachableHoldMax, "> 0")
	check(c.RefusedRetry > 0, "RefusedRetry", c.RefusedRetry, "> 0")
	check(c.DelayMin > 0, "DelayMin", c.DelayMin, "> 0")
	check(c.DelayMax >= c.DelayMin, "DelayMax", c.DelayMax, ">= DelayMin")
	check(c.ParkBurstMin >= 1, "ParkBurstMin", c.ParkBurstMin, ">= 1")
	check(c.ParkDelayMax > 0, "ParkDelayMax", c.ParkDelayMax, "> 0")
	check(c.HandoverMax >= 1, "HandoverMax", c.HandoverMax, ">= 1")
	check(c.PeersTypical >= 1, "PeersTypical", c.PeersTypical, ">= 1")
	return errors.Join(errs...)
}
