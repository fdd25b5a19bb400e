package telemetry

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/tally"
)

// The shortest times between two lines about dropped spans, and between two about failed exports: each batch of spans may fail at once.
const (
	dropsEvery    = time.Minute
	failuresEvery = time.Minute
)

// drops counts the spans that the queue of the SDK has no room for: it drops them without a word.
type drops struct {
	log     *slog.Logger
	waiting uint64 // spans that may be in the queue and in a batch
	ended   atomic.Uint64
	handed  atomic.Uint64 // to the exporter

	mu   sync.Mutex
	told uint64
	last clock.Instant // 0: never
}

func newDrops(log *slog.Logger) *drops {
	size := func(name string, otherwise uint64) uint64 {
		if n, err := strconv.ParseUint(os.Getenv(name), 10, 32); err == nil && n > 0 {
			return n
		}
		return otherwise
	}
	return &drops{log: log, waiting: size("OTEL_BSP_MAX_QUEUE_SIZE", sdktrace.DefaultMaxQueueSize) + 2*size("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", sdktrace.DefaultMaxExportBatchSize)}
}

// batcher returns the processor of the SDK that hands spans to an exporter, with both ends counted.
func (d *drops) batcher(to sdktrace.SpanExporter) sdktrace.SpanProcessor {
	return countedSpans{sdktrace.NewBatchSpanProcessor(countedExports{to, d}), d}
}

// tell logs how many spans have been dropped, all but those that may still wait.
func (d *drops) tell(waiting uint64) {
	handed := d.handed.Load() // before ended, which is never less
	lost := d.ended.Load() - handed
	d.mu.Lock()
	defer d.mu.Unlock()
	now := clock.Now()
	if lost <= waiting+d.told || waiting > 0 && d.last != 0 && now.Sub(d.last) < dropsEvery {
		return
	}
	d.log.Warn("spans were dropped: they end faster than they can be exported, see OTEL_BSP_MAX_QUEUE_SIZE", "spans", lost-waiting)
	d.told, d.last = lost-waiting, now
}

type countedSpans struct {
	sdktrace.SpanProcessor
	drops *drops
}

// OnEnd implements sdktrace.SpanProcessor.
func (c countedSpans) OnEnd(s sdktrace.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		c.drops.ended.Add(1)
	}
	c.SpanProcessor.OnEnd(s)
}

type countedExports struct {
	sdktrace.SpanExporter
	drops *drops
}

// ExportSpans implements sdktrace.SpanExporter.
func (c countedExports) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	c.drops.handed.Add(uint64(len(spans)))
	c.drops.tell(c.drops.waiting)
	return c.SpanExporter.ExportSpans(ctx, spans)
}

// failures logs the errors of the exporter, the newest one in each interval.
type failures struct {
	log *slog.Logger

	mu    sync.Mutex
	count tally.Tally
}

func (f *failures) tell(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n, due := f.count.Add(clock.Now(), 1, failuresEvery); due {
		f.log.Warn("traces are not exported", "failures", n, "error", err)
	}
}
