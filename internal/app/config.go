package app

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds what workers may ask of this node.
type Config struct {
	WorkersMax     int // streams at once; more are refused
	InFlightMax    int // unanswered deliveries of one worker
	FrameEventsMax int // events in one Deliveries frame
	FrameBytesMax  int // bytes in one Deliveries frame, unless a single event is larger
	EventBytesMax  int // bytes of the largest event; a larger one is rejected
	ReasonBytesMax int // bytes of the error text of a result; longer ones are cut

	// HandlerTimeout is how long a worker may have an event without an answer or Progress
	// before it is taken back and counts as failed; it comes up to a quarter late. 0: for ever.
	HandlerTimeout time.Duration
	// SilenceMax is how long a worker whose stream stands may send no Ping before the
	// stream is cut, as if the worker had crashed: it is frozen, and its keys go on once
	// their last deadline has passed. It comes up to a quarter late. More than PingInterval.
	SilenceMax     time.Duration
	HelloTimeout   time.Duration // how long a new stream may take to introduce itself
	PingInterval   time.Duration // how often workers shall ask for new deadlines
	DeadlineMargin time.Duration // δ: how long before the lease ends the deadlines of the application do
}

// DefaultConfig returns the settings for production.
func DefaultConfig() Config {
	return Config{
		// One process of the application needs one. Each may keep 11 MiB, and they do not add
		// speed: with 16 an event costs 1.4 times the CPU of one stream, with 64 1.8 times.
		WorkersMax:     16,
		InFlightMax:    10_000,
		FrameEventsMax: 2048,
		FrameBytesMax:  1 << 20,
		EventBytesMax:  8 << 20,
		ReasonBytesMax: 1 << 10,
		SilenceMax:     10 * time.Second,
		HelloTimeout:   5 * time.Second,
		PingInterval:   200 * time.Millisecond,
		DeadlineMargin: 200 * time.Millisecond,
	}
}

// StreamBytes is the most that the connection of one worker keeps in buffers: those of the
// socket, a frame of deliveries, one of results as it is received, as it is read and as
// texts of errors, and a window of each stream, read or not.
func (c Config) StreamBytes() int {
	return 2*socketBuffer + c.FrameBytesMax + 3*recvBytesMax + c.streamsMax()*streamWindow
}

// streamsMax is how many streams one connection has: the workers of all connections are
// bounded too, and some are left for questions about health.
func (c Config) streamsMax() int { return c.WorkersMax + spareStreams }

// ListenerBytes returns what gRPC takes for any caller: the buffers of a connection, the
// streams of one, and the largest message.
func (c Config) ListenerBytes() (socketBytes, streams, messageMax int) {
	return 2 * socketBuffer, c.streamsMax(), recvBytesMax
}

// Validate reports every setting that is out of its range.
func (c Config) Validate() error {
	var errs []error
	within := func(name string, value, low, high int64) {
		if value < low || value > high {
			errs = append(errs, fmt.Errorf("app: %s = %d, want %d to %d", name, value, low, high))
		}
	}
	within("WorkersMax", int64(c.WorkersMax), 1, 10_000)
	within("InFlightMax", int64(c.InFlightMax), 1, 100_000)
	within("FrameEventsMax", int64(c.FrameEventsMax), 1, 100_000)
	within("FrameBytesMax", int64(c.FrameBytesMax), 1<<10, 64<<20)
	within("EventBytesMax", int64(c.EventBytesMax), 1<<10, 64<<20)
	within("ReasonBytesMax", int64(c.ReasonBytesMax), 16, 64<<10)
	lasts := func(name string, value, low, high time.Duration) {
		if value < low || value > high {
			errs = append(errs, fmt.Errorf("app: %s = %v, want %v to %v", name, value, low, high))
		}
	}
	if c.HandlerTimeout != 0 {
		lasts("HandlerTimeout", c.HandlerTimeout, 100*time.Millisecond, 24*time.Hour)
	}
	lasts("SilenceMax", c.SilenceMax, max(100*time.Millisecond, 2*c.PingInterval), time.Hour)
	lasts("HelloTimeout", c.HelloTimeout, 100*time.Millisecond, time.Minute)
	lasts("PingInterval", c.PingInterval, 10*time.Millisecond, 5*time.Second)
	lasts("DeadlineMargin", c.DeadlineMargin, 100*time.Millisecond, 2*time.Second)
	return errors.Join(errs...)
}
