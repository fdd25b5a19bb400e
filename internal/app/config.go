package app

import (
	"time"

	"github.com/ringfence/router/internal/base/setting"
)

// Config bounds the demands of workers on this node.
type Config struct {
	WorkersMax     int `min:"1" max:"10000"`                 // most open streams; further ones are refused
	InFlightMax    int `min:"1" max:"100000"`                // most unanswered deliveries of one worker
	FrameEventsMax int `min:"1" max:"100000"`                // most events in one Deliveries frame
	FrameBytesMax  int `unit:"bytes" min:"1KiB" max:"64MiB"` // most bytes in one Deliveries frame, unless a single event is larger
	EventBytesMax  int `unit:"bytes" min:"1KiB" max:"64MiB"` // bytes of the largest event; a larger one is rejected
	ReasonBytesMax int `unit:"bytes" min:"16" max:"64KiB"`   // most bytes of the error text of a result; longer texts are cut

	// HandlerTimeout is how long a worker may have an event without an answer or Progress
	// before it is taken back and counts as failed, up to a quarter later. 0: no limit.
	HandlerTimeout time.Duration `from:"handler.timeout"`
	// SilenceMax is how long a worker with an open stream may send no Ping, or read nothing that is sent to it. Then
	// it counts as frozen: its stream is closed as after a crash, and its keys continue once their last deadline has
	// passed. The check is up to a quarter late.
	SilenceMax     time.Duration `min:"100ms" max:"1h"`
	HelloTimeout   time.Duration `min:"100ms" max:"1m"` // how long a new stream may take to send its Hello
	PingInterval   time.Duration `min:"10ms" max:"5s"`  // interval at which workers must request new deadlines
	DeadlineMargin time.Duration `min:"100ms" max:"2s"` // δ: time between the deadlines of the application and the end of the lease
}

// DefaultConfig returns the settings for production.
func DefaultConfig() Config {
	return Config{
		// Each process of the application needs one. A worker may keep 11 MiB, and more workers are
		// not faster: with 16 an event costs 1.4 times the CPU of one stream, with 64 1.8 times.
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
	return 2*socketBuffer + c.FrameBytesMax + 3*recvBytesMax + min(c.streamsMax()*streamWindow, connWindow)
}

// streamsMax is the number of streams that one connection may have: the workers of all connections are
// bounded too, and some are left for questions about health.
func (c Config) streamsMax() int { return c.WorkersMax + callStreams + spareStreams }

// callStreams is the number of calls that one connection makes at a time. A further one waits for its turn in the caller's gRPC.
const callStreams = 100

// ListenerBytes returns gRPC's memory for any caller: the buffers of a connection, the streams
// of one, and the largest message.
func (c Config) ListenerBytes() (socketBytes, streams, messageMax int) {
	return 2 * socketBuffer, c.streamsMax(), recvBytesMax
}

// Validate reports every field that is out of the range of its tag.
func (c Config) Validate() error { return setting.Check(c) }
