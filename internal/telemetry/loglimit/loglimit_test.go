package loglimit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
)

func TestGate(t *testing.T) {
	const every = 10 * time.Second
	var g gate
	for _, step := range []struct {
		at   time.Duration
		held uint64
		due  bool
	}{
		{at: 0, due: true}, // the first line passes even right after boot
		{at: 1 * time.Second},
		{at: 9999 * time.Millisecond},
		{at: 10 * time.Second, held: 2, due: true},
		{at: 20 * time.Second, due: true}, // nothing was held back
		{at: 21 * time.Second},
		{at: time.Hour, held: 1, due: true},
	} {
		held, due := g.pass(clock.Instant(step.at), every, 1)
		if held != step.held || due != step.due {
			t.Errorf("at %v: %d held back, due %v; want %d, %v", step.at, held, due, step.held, step.due)
		}
	}
}

// A burst passes, then one line in each interval, and the burst comes back with the time.
func TestGateWithABurst(t *testing.T) {
	const every = time.Second
	var g gate
	passed := func(at time.Duration, lines int) (n int) {
		for range lines {
			if _, due := g.pass(clock.Instant(at), every, 3); due {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		at   time.Duration
		want int
	}{{0, 3}, {999 * time.Millisecond, 0}, {time.Second, 1}, {3 * time.Second, 2}, {time.Hour, 3}} {
		if got := passed(step.at, 100); got != step.want {
			t.Errorf("at %v %d of 100 lines pass, want %d", step.at, got, step.want)
		}
	}
}

// A thousand lines become one, all suppressed lines are counted, and each source has its own limit.
func TestLinesAreHeldBackAndCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics := NewMetrics(registry)
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	limit, other := New(log, "one", time.Hour, metrics), New(log, "other", time.Hour, NewMetrics(registry))
	say := func(l *Limit) {
		if log, due := l.Line(); due {
			log.Warn("somebody knocked")
		}
	}
	for range 1000 {
		say(limit)
	}
	say(other)
	if got := strings.Count(out.String(), "\n"); got != 2 {
		t.Errorf("%d lines, want 2:\n%s", got, out.String())
	}
	if got := testutil.ToFloat64(metrics.suppressed.WithLabelValues("one")); got != 999 {
		t.Errorf("%v lines of one are counted as held back, want 999", got)
	}
	if got := testutil.ToFloat64(metrics.suppressed.WithLabelValues("other")); got != 0 {
		t.Errorf("%v lines of other are counted as held back, want 0", got)
	}
}

// The next line tells how many there were since the last.
func TestTheNextLineTellsHowMany(t *testing.T) {
	var out bytes.Buffer
	limit := New(slog.New(slog.NewTextHandler(&out, nil)), "one", time.Hour, NewMetrics(prometheus.NewRegistry()))
	limit.Line()
	for range 7 {
		limit.Line()
	}
	limit.gate.paid = limit.gate.paid.Add(-time.Hour)
	log, due := limit.Line()
	if !due {
		t.Fatal("an hour later no line is due")
	}
	log.Warn("somebody knocked")
	if !strings.Contains(out.String(), "suppressed=7") {
		t.Errorf("the line is %q", out.String())
	}
}
