package collect

import (
	"log/slog"
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
