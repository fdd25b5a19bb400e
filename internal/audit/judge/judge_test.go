package judge

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

const ms = time.Millisecond

func newJudge(log *bytes.Buffer) *Judge {
	return New(1<<20, "self", prometheus.NewRegistry(), slog.New(slog.NewTextHandler(log, nil)))
}

// samples returns the values of a registry's counters that are not 0, by name and label.
func samples(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			if n := m.GetCounter().GetValue(); n != 0 {
				found[name] = n
			}
		}
	}
	return found
}

func handling(key int, turn uint64, sent, start, length time.Duration) event.Handling {
	return event.Handling{
		Key: partition.KeyHash(key), Partition: partition.ID(key), Fence: event.Fence{Token: 1, Turn: turn}, Sent: sent, Start: start, End: start + length,
	}
}

// TestClocksWithStepsInventNothing: deliveries of a key follow each other, and the SDK's clock is off by up to 13 ms in both directions.
func TestClocksWithStepsInventNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log bytes.Buffer
		j := newJudge(&log)
		now := time.Hour
		off := func() time.Duration {
			return time.Duration(rapid.IntRange(-13_000, 13_000).Draw(t, "off")) * time.Microsecond
		}
		for turn := range uint64(20) {
			sent := now
			start := sent + time.Duration(rapid.IntRange(0, 5_000).Draw(t, "wait"))*time.Microsecond
			end := start + time.Duration(rapid.IntRange(0, 5_000).Draw(t, "work"))*time.Microsecond
			now = end + time.Duration(rapid.IntRange(0, 5_000).Draw(t, "back"))*time.Microsecond
			shown := start + off()
			j.Own(1, []event.Handling{handling(7, turn+1, sent, shown, max(0, end+off()-shown))}, now)
		}
		if c := j.Counts(); c.Overlaps != 0 || c.Undecided[audit.Implausible] != 0 || c.Handlings != 20 {
			t.Fatalf("%+v", c)
		}
	})
}

func TestOwn(t *testing.T) {
	var log bytes.Buffer
	j := newJudge(&log)
	own := j.Own(3, []event.Handling{
		handling(1, 1, 10*ms, 11*ms, 5*ms),
		handling(1, 2, 12*ms, 13*ms, 9*ms),        // overlaps for 3 ms
		handling(3, 4, time.Second, 11*ms, ms),    // began long before it was sent
		handling(2, 3, 10*ms, 9*ms, 2*ms),         // began a little before it was sent
		handling(3, 5, 10*ms, 11*ms, time.Second), // has not ended yet
	}, 100*ms)
	s := j.State()
	if s.Handlings != 3 || s.Overlaps != 1 || s.Undecided[audit.Implausible] != 2 || len(s.Newest) != 1 || s.Newest[0].For != 3*ms {
		t.Errorf("%+v", s)
	}
	if len(own) != 3 || own[2].Key != 2 || own[2].Start != 10*ms || own[2].End != 11*ms || own[2].Worker != 3 {
		t.Errorf("bounded: %+v", own)
	}
	for _, part := range []string{"handlers of one key overlapped", "overlap=3ms", "self worker 3", "fence 0000000000000000001.00000000000000000002"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log does not say %q: %s", part, log.String())
		}
	}
}

// TestTakeComparesBothSides: a report of another process on this machine, and one of another machine.
func TestTakeComparesBothSides(t *testing.T) {
	for name, test := range map[string]struct {
		clock     func(*audit.Clock)
		trips     []audit.Trip
		overlaps  uint64
		undecided uint64
	}{
		"this machine":                {func(*audit.Clock) {}, nil, 1, 0},
		"another machine, no trip":    {func(c *audit.Clock) { c.ID = audit.ClockID{9} }, nil, 0, 1},
		"another machine, close":      {func(c *audit.Clock) { c.ID = audit.ClockID{9} }, []audit.Trip{{Sent: -ms, Back: ms}}, 1, 0},
		"another machine, a far trip": {func(c *audit.Clock) { c.ID = audit.ClockID{9} }, []audit.Trip{{Sent: -time.Minute, Back: time.Minute}}, 0, 1},
	} {
		var log bytes.Buffer
		j := newJudge(&log)
		clock := j.Here()
		at := clock.Boot - 50*ms // nothing is known of how NTP steered the clock before: 11 % of this is the uncertainty
		j.Own(1, []event.Handling{handling(1, 1, at-ms, at, 49*ms)}, clock.Boot)
		r := &exchange.Report{Member: "other", Clock: clock}
		test.clock(&r.Clock)
		for _, trip := range test.trips { // around the handlings, by clocks that agree
			lease := clock.Lease - 25*ms
			r.Trips = append(r.Trips, audit.Trip{Sent: lease + trip.Sent, Back: lease + trip.Back, There: lease})
		}
		r.Handlings = []audit.Handling{{Key: 1, Start: at + 4*ms, End: at + 45*ms}}
		j.Take(r)
		if c := j.Counts(); c.Overlaps != test.overlaps || c.Undecided[audit.Clocks] != test.undecided {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestReportOfTheFuture: a handling that ended after its report was made did not happen so. It must neither overlap with handlings to come nor
// make the judge forget those of other keys.
func TestReportOfTheFuture(t *testing.T) {
	var log bytes.Buffer
	j := newJudge(&log)
	clock := j.Here()
	j.Take(&exchange.Report{Member: "other", Clock: clock, Handlings: []audit.Handling{
		{Key: 1, Start: clock.Boot - ms, End: clock.Boot + time.Hour},
		{Key: 2, Start: clock.Boot - ms, End: clock.Boot + 15*ms}, // by a clock with steps
	}})
	j.Own(1, []event.Handling{handling(1, 1, clock.Boot+ms, clock.Boot+2*ms, ms)}, clock.Boot+10*ms)
	if c := j.Counts(); c.Overlaps != 0 || c.Undecided[audit.Implausible] != 1 || c.Handlings != 2 {
		t.Errorf("%+v, want one implausible handling and no overlap", c)
	}
}

// Each total is in the metric of its name, and in the state.
func TestTotals(t *testing.T) {
	reg := prometheus.NewRegistry()
	j := New(1<<20, "self", reg, slog.New(slog.DiscardHandler))
	j.Own(1, []event.Handling{
		handling(1, 1, 10*ms, 11*ms, 5*ms),
		handling(1, 2, 12*ms, 13*ms, 9*ms), // overlaps
		handling(2, 3, 10*ms, 11*ms, time.Hour),
	}, 100*ms)
	j.Sent(nil)
	for range 2 {
		j.Sent(errors.New("no answer"))
	}
	for range 3 {
		j.Refused()
	}
	j.Unheard(1)
	j.Unheard(3)
	j.Lost(5)
	j.Take(&exchange.Report{Member: "other", Clock: j.Here(), OmittedUntil: ms}) // one that is too long loses one at least
	want := map[string]float64{
		"ringfence_audit_overlaps_total": 1, "ringfence_audit_handlings_total": 2, "ringfence_audit_unheard_total": 4,
		"ringfence_audit_undecided_total implausible": 1, "ringfence_audit_undecided_total forgotten": 6,
		"ringfence_audit_reports_total sent": 1, "ringfence_audit_reports_total failed": 2, "ringfence_audit_reports_total refused": 3,
		"ringfence_audit_reports_total received": 1,
	}
	if got := samples(t, reg); !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
	if s := j.State(); s.Unheard != 4 || s.Undecided[audit.Forgotten] != 6 || s.Overlaps != 1 {
		t.Errorf("%+v", s)
	}
}

// The newest overlaps are shown, and a state that was returned does not change.
func TestNewestOverlapsAreShown(t *testing.T) {
	var log bytes.Buffer
	j := newJudge(&log)
	overlap := func(key int) {
		j.Own(1, []event.Handling{handling(key, 1, 10*ms, 11*ms, 5*ms), handling(key, 2, 12*ms, 13*ms, 9*ms)}, 100*ms)
	}
	for key := range shownMax {
		overlap(1 + key)
	}
	before := j.State().Newest
	overlap(shownMax + 1)
	after := j.State().Newest
	if len(before) != shownMax || before[0].First.Key != 1 {
		t.Errorf("%d of the first state, from key %v", len(before), before[0].First.Key)
	}
	if len(after) != shownMax || after[0].First.Key != 2 || after[shownMax-1].First.Key != shownMax+1 {
		t.Errorf("%d are shown, from key %v to key %v", len(after), after[0].First.Key, after[len(after)-1].First.Key)
	}
}

// A report has at most so many handlings of this process, and says until when it lacks some.
func TestSince(t *testing.T) {
	var log bytes.Buffer
	j := newJudge(&log)
	j.Own(1, []event.Handling{handling(1, 1, ms, 2*ms, ms), handling(2, 2, 5*ms, 6*ms, ms), handling(3, 3, 7*ms, 8*ms, ms)}, 100*ms)
	got, omitted := j.Since(0, func(id partition.ID) bool { return id != 3 }, 1)
	if len(got) != 1 || got[0].Key != 2 || omitted != 3*ms {
		t.Errorf("%+v, omitted until %v", got, omitted)
	}
}
