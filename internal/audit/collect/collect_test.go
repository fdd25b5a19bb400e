package collect

import (
	"log/slog"
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/base/clock"
)

// TestProcessesThatReportNoMore: the report counts only processes of the last ten minutes, and keeps the counters of the others,
// also if no process reports any more.
func TestProcessesThatReportNoMore(t *testing.T) {
	now := clock.Instant(1)
	c := New(DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler), func() clock.Instant { return now })
	for i := range byte(3) {
		err := c.Take(&exchange.Report{Group: "default", Member: "p", Incarnation: exchange.Incarnation{i}, Waits: exchange.Waits{Dropped: 5}}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	if r := c.Report(); r.Processes != 3 || r.Dropped != 15 {
		t.Errorf("%d processes, %d handlings dropped, want 3 and 15", r.Processes, r.Dropped)
	}
	now = now.Add(processFor)
	if r := c.Report(); r.Processes != 0 || r.Dropped != 15 {
		t.Errorf("ten minutes later %d processes, %d handlings dropped, want 0 and 15", r.Processes, r.Dropped)
	}
}

// TestAProcessThatComesBackIsCountedOnce: a process that was cut off for longer than it keeps its place tells the same counters again.
func TestAProcessThatComesBackIsCountedOnce(t *testing.T) {
	now := clock.Instant(1)
	cfg := DefaultConfig()
	cfg.ProcessesMax = 1
	c := New(cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler), func() clock.Instant { return now })
	take := func(process byte) error {
		return c.Take(&exchange.Report{Group: "default", Incarnation: exchange.Incarnation{process}, Waits: exchange.Waits{Dropped: 5, Acquired: 7, Expired: 2}}, nil)
	}
	if err := take(1); err != nil {
		t.Fatal(err)
	}
	now = now.Add(processFor)
	if r := c.Report(); r.Processes != 0 || r.Dropped != 5 {
		t.Errorf("%d processes, %d handlings dropped, want 0 and 5", r.Processes, r.Dropped)
	}
	if err := take(1); err != nil {
		t.Fatal(err)
	}
	if r := c.Report(); r.Processes != 1 || r.Dropped != 5 || r.LockWaits != 7 || r.LocksExpired != 2 {
		t.Errorf("back again: %d processes, %d dropped, %d waits, %d expired, want 1, 5, 7 and 2", r.Processes, r.Dropped, r.LockWaits, r.LocksExpired)
	}
	if err := take(2); err == nil {
		t.Error("the place of a process that reports is given away")
	}
	now = now.Add(processFor)
	if err := take(2); err != nil {
		t.Errorf("the place of a process that reports no more is not given away: %v", err)
	}
	if r := c.Report(); r.Processes != 1 || r.Dropped != 10 {
		t.Errorf("%d processes, %d handlings dropped, want 1 and 10", r.Processes, r.Dropped)
	}
}

// TestCountersDoNotWrap: two processes whose counters are as great as can be leave the sums great.
func TestCountersDoNotWrap(t *testing.T) {
	c := New(DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler), func() clock.Instant { return 1 })
	for i := range byte(2) {
		waits := exchange.Waits{Dropped: math.MaxUint64, Acquired: math.MaxUint64, Waited: math.MaxInt64, Expired: math.MaxUint64}
		if err := c.Take(&exchange.Report{Group: "default", Incarnation: exchange.Incarnation{i}, Waits: waits}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if r := c.Report(); r.Dropped != math.MaxUint64 || r.LockWaits != math.MaxUint64 || r.LocksExpired != math.MaxUint64 || r.LockWaitSeconds < 0 {
		t.Errorf("%+v, want the greatest counters", r)
	}
}
