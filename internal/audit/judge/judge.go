// Package judge runs an [audit.Auditor]: it takes handlings from this process and from others, counts what the comparison
// finds in metrics, and logs each overlap with both sides.
//
// # Concurrency
//
// A [Judge] is safe for concurrent use. It has no goroutine; its lock is held for calls into the machine only.
package judge

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// shownMax is how many overlaps a report shows, the newest.
const shownMax = 16

// lineEvery is the least time between two log lines about overlaps.
const lineEvery = time.Second

// self is the source of this process's own handlings.
const self audit.SourceID = 0

// Judge compares handlings.
type Judge struct {
	lines    *loglimit.Limit
	overlaps prometheus.Counter
	others   *prometheus.CounterVec

	mu      sync.Mutex
	auditor *audit.Auditor
	wander  audit.Wander
	found   []audit.Finding // scratch
	shown   []audit.Finding // the newest last
	unheard uint64
}

// New returns a Judge that compares in about memory bytes. name is that of this process.
func New(memory int, name string, reg prometheus.Registerer, log *slog.Logger) *Judge {
	log = log.With("component", "audit")
	f := promauto.With(reg)
	j := &Judge{
		auditor: audit.New(memory), lines: loglimit.New(log, "audit_overlap", lineEvery, loglimit.NewMetrics(reg)),
		overlaps: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_audit_overlaps_total",
			Help: "Pairs of handlers of one key that ran at the same time.",
		}),
		others: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_audit_reports_total",
			Help: "Reports of handlings between this process and others, by result (sent, failed, received, refused).",
		}, []string{"result"}),
	}
	j.auditor.Register(audit.Source{Name: name, Clock: exchange.Here(&j.wander).ID})
	f.NewCounterFunc(prometheus.CounterOpts{
		Name: "ringfence_audit_handlings_total",
		Help: "Handlings that were compared with the others of their key.",
	}, func() float64 { return float64(j.Counts().Handlings) })
	for _, r := range audit.Reasons() {
		f.NewCounterFunc(prometheus.CounterOpts{
			Name:        "ringfence_audit_undecided_total",
			Help:        "Handlings of which the auditor cannot tell whether they overlapped with others, by reason.",
			ConstLabels: prometheus.Labels{"reason": r.String()},
		}, func() float64 { return float64(j.Counts().Undecided[r]) })
	}
	f.NewCounterFunc(prometheus.CounterOpts{
		Name: "ringfence_audit_unheard_total",
		Help: "Owners that lost keys to this member and did not report when their last handlers ended.",
	}, func() float64 { return float64(j.State().Unheard) })
	return j
}

// Note notes the clocks of this machine. It should be called about once a second.
func (j *Judge) Note() {
	j.mu.Lock()
	defer j.mu.Unlock()
	exchange.Note(&j.wander)
}

// Here returns the clocks of this process.
func (j *Judge) Here() audit.Clock {
	j.mu.Lock()
	defer j.mu.Unlock()
	return exchange.Here(&j.wander)
}

// stepMax is by how much an SDK's reading of CLOCK_BOOTTIME may be off: some languages read it in steps of 10 ms.
const stepMax = 20 * time.Millisecond

// bound limits the interval of a handling to the time between the sending of its delivery and the arrival of its
// result, where it lies whatever the SDK's clock shows. So a delivery that was sent after the result of an earlier
// one never seems to overlap with it. ok is false if the interval was measured by another clock.
func bound(h *event.Handling, now time.Duration) (ok bool) {
	if h.Start < h.Sent-stepMax || h.End > now+stepMax {
		return false
	}
	h.Start = min(max(h.Start, h.Sent), now)
	h.End = max(h.Start, min(h.End, now))
	return true
}

// Own takes handlings of a worker of this process in. now is CLOCK_BOOTTIME after they were received. It bounds their intervals in place,
// and returns those that could be bounded.
func (j *Judge) Own(w event.WorkerID, handlings []event.Handling, now time.Duration) []event.Handling {
	plausible := 0
	for i := range handlings {
		h := &handlings[i]
		if !bound(h, now) {
			continue
		}
		h.Worker = uint32(w)
		if plausible != i {
			handlings[plausible] = *h
		}
		plausible++
	}
	own := handlings[:plausible]
	j.mu.Lock()
	defer j.mu.Unlock()
	j.auditor.Undecided(audit.Implausible, len(handlings)-plausible)
	j.found = j.auditor.Add(self, audit.Mapping{}, own, j.found[:0])
	j.tell()
	return own
}

// Take takes the report of another process in.
func (j *Judge) Take(r *exchange.Report) {
	j.others.WithLabelValues("received").Inc()
	j.mu.Lock()
	defer j.mu.Unlock()
	remote := r.Remote(exchange.Here(&j.wander))
	source := audit.Source{Name: untrusted.Text(r.Member)}
	if source.Clock = r.Clock.ID; r.Clock.ID == remote.Receiver.ID && !remote.SameClock() {
		source.Clock = audit.ClockID{} // a clone of this machine
	}
	from, ok := j.auditor.Register(source)
	if !ok {
		j.auditor.Undecided(audit.Forgotten, len(r.Handlings))
		return
	}
	j.found = j.found[:0]
	for i := range r.Handlings {
		if r.Handlings[i].End > r.Clock.Boot+stepMax { // it ends in the future: if it counted, it would overlap with all handlings until then
			j.auditor.Undecided(audit.Implausible, 1)
			continue
		}
		m, ok := remote.Map(&r.Handlings[i])
		if !ok {
			j.auditor.Undecided(audit.Clocks, 1)
			continue
		}
		j.found = j.auditor.Add(from, m, r.Handlings[i:i+1], j.found)
	}
	if r.OmittedUntil > 0 {
		j.auditor.Undecided(audit.Forgotten, 1)
	}
	j.tell()
}

// tell counts and shows what was found. The lock is held.
func (j *Judge) tell() {
	for i := range j.found {
		f := &j.found[i]
		j.overlaps.Inc()
		if len(j.shown) == shownMax {
			j.shown = slices.Delete(j.shown, 0, 1)
		}
		j.shown = append(j.shown, *f)
		if log, due := j.lines.Line(); due {
			log.Error("handlers of one key overlapped", "key_hash", f.First.Key.String(), "partition", int(f.First.Partition), "overlap", f.For,
				"first", Describe(f.First), "second", Describe(f.Second))
		}
	}
}

// Describe tells people of one side of an overlap.
func Describe(s audit.Side) string {
	who := s.Source.Name
	if s.Worker > 0 {
		who = fmt.Sprintf("%s worker %d", who, s.Worker)
	}
	if s.Fence.Token > 0 {
		who = fmt.Sprintf("%s, fence %v", who, s.Fence)
	}
	return fmt.Sprintf("%s, %v to %v after boot", who, s.Start.Round(time.Microsecond), s.End.Round(time.Microsecond))
}

// Sent counts reports to others.
func (j *Judge) Sent(err error) {
	result := "sent"
	if err != nil {
		result = "failed"
	}
	j.others.WithLabelValues(result).Inc()
}

// Refused counts reports of others that were not taken in.
func (j *Judge) Refused() { j.others.WithLabelValues("refused").Inc() }

// Unheard counts owners that did not report when their last handlers ended.
func (j *Judge) Unheard(owners int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unheard += uint64(owners)
}

// Lost counts handlings that could not be reported to others.
func (j *Judge) Lost(handlings int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.auditor.Undecided(audit.Forgotten, handlings)
}

// Since is [audit.Auditor.Since] for this process's own handlings.
func (j *Judge) Since(instant time.Duration, want func(partition.ID) bool, most int) (_ []audit.Handling, omitted time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.auditor.Since(self, instant, want, most, nil)
}

// Counts returns the totals.
func (j *Judge) Counts() audit.Counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.auditor.Counts()
}

// State holds the findings of a Judge.
type State struct {
	audit.Counts
	Unheard uint64
	Newest  []audit.Finding // the newest last
}

// State returns what has been found so far.
func (j *Judge) State() State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return State{Counts: j.auditor.Counts(), Unheard: j.unheard, Newest: slices.Clone(j.shown)}
}
