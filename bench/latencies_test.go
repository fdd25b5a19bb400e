package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

func TestLatenciesOfManyProcesses(t *testing.T) {
	start, end := newHistogram(), newHistogram()
	for worker := range 2 {
		l := newLatencies(100)
		for n := range 1100 {
			at := clock.Instant(time.Hour)
			b := stampedPayload("user-1", n, 256, at)
			l.started(b, at.Add(time.Duration(n-99)*time.Millisecond)) // those below 100 warm up
			l.finished(b, at.Add(time.Hour))                           // longer than a histogram goes
		}
		l.started([]byte("no stamp"), clock.Forever)
		path := filepath.Join(t.TempDir(), "latencies")
		if err := l.write(path); err != nil {
			t.Fatalf("worker %d: %v", worker, err)
		}
		if err := mergeLatencies(path, start, end); err != nil {
			t.Fatalf("worker %d: %v", worker, err)
		}
	}
	q := quantilesOf(start)
	if q.Count != 2000 {
		t.Errorf("%d latencies, want 2000", q.Count)
	}
	near(t, "p50", q.P50, 500, 0.01)
	near(t, "p99", q.P99, 990, 0.01)
	near(t, "p99.9", q.P999, 999, 0.01)
	near(t, "max", q.Max, 1000, 0.01)
	near(t, "max at the end", quantilesOf(end).Max, milliseconds(latencyMax), 0.01)
}

func TestLatenciesOfAProcessThatLeftNone(t *testing.T) {
	if err := mergeLatencies(filepath.Join(t.TempDir(), "none"), newHistogram(), newHistogram()); err == nil {
		t.Error("latencies that were never written are merged")
	}
}
