package telemetry

import (
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/base/signal"
)

const (
	outputPatience = 100 * time.Millisecond // how long the writer of a line waits for it
	outputBytesMax = 1 << 20                // of lines that wait
)

// Output is where a log goes, for [NewLogger]. Nothing else waits for it: a pipe whose reader has stopped takes no
// line, and a goroutine that logs would wait for ever. Lines wait in a queue instead, and beyond its bound they are
// dropped and counted. As long as lines are taken, each is written when Write returns.
type Output struct {
	to   io.Writer
	wake chan struct{} // has room for one
	over chan struct{} // closed when the goroutine has ended

	running sync.WaitGroup

	mu      sync.Mutex
	direct  *slog.Logger // to to; nil without a logger
	queue   []queuedLine
	bytes   int
	stuck   bool   // the queue has not been empty since a line waited for too long
	lost    uint64 // lines
	untold  uint64 // of them, dropped since the last line that says so
	closing bool
}

type queuedLine struct {
	text []byte
	done chan struct{} // closed when it has been written
}

// NewOutput returns an output to a writer. Close ends it.
func NewOutput(to io.Writer) *Output {
	o := &Output{to: to, wake: make(chan struct{}, 1), over: make(chan struct{})}
	o.running.Go(o.run)
	return o
}

// Register adds the metric of lost lines.
func (o *Output) Register(reg prometheus.Registerer) {
	promauto.With(reg).NewCounterFunc(prometheus.CounterOpts{
		Name: "ringfence_log_lost_total",
		Help: "Log lines that standard error has not taken: its reader does not read, or the disk is full.",
	}, func() float64 {
		o.mu.Lock()
		defer o.mu.Unlock()
		return float64(o.lost)
	})
}

func (o *Output) setDirect(log *slog.Logger) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.direct = log
}

// Write implements [io.Writer], a line at a time.
func (o *Output) Write(text []byte) (int, error) {
	line := queuedLine{append([]byte(nil), text...), make(chan struct{})}
	if signal.IsClosed(o.over) { // the process ends, and everything before was taken
		return o.to.Write(text)
	}
	o.mu.Lock()
	if o.closing || len(o.queue) > 0 && o.bytes+len(text) > outputBytesMax {
		o.lost++
		o.untold++
		o.mu.Unlock()
		return len(text), nil
	}
	o.queue = append(o.queue, line)
	o.bytes += len(text)
	stuck := o.stuck
	o.mu.Unlock()
	signal.Set(o.wake)
	if stuck {
		return len(text), nil
	}
	patience := time.NewTimer(outputPatience)
	defer patience.Stop()
	select {
	case <-line.done:
	case <-patience.C:
		o.mu.Lock()
		o.stuck = len(o.queue) > 0
		o.mu.Unlock()
	}
	return len(text), nil
}

// run writes the lines of the queue, until it is empty after Close.
func (o *Output) run() {
	defer close(o.over)
	for {
		o.mu.Lock()
		if len(o.queue) == 0 {
			direct, untold, closing := o.direct, o.untold, o.closing
			o.stuck, o.untold = false, 0
			o.mu.Unlock()
			switch {
			case untold > 0 && direct != nil:
				direct.Warn("log lines were dropped: standard error was not read for a while", "lines", untold)
			case closing:
				return
			default:
				<-o.wake
			}
			continue
		}
		line := o.queue[0]
		o.mu.Unlock()
		_, err := o.to.Write(line.text)
		o.mu.Lock()
		if err != nil {
			o.lost++
		}
		o.bytes -= len(line.text)
		o.queue[0] = queuedLine{}
		o.queue = o.queue[1:]
		o.mu.Unlock()
		close(line.done)
	}
}

// Close waits for lines that have not been written, up to patience. Later lines are written without the queue, or dropped
// if those before were not taken.
func (o *Output) Close(patience time.Duration) {
	o.mu.Lock()
	o.closing = true
	o.mu.Unlock()
	signal.Set(o.wake)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-o.over:
	case <-timer.C:
	}
}
