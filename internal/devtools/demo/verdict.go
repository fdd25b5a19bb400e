package demo

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ringfence/router/internal/devtools/journal"
)

// Result is the result of a demo. Its JSON is for machines: fields are only added.
type Result struct {
	Events       uint64 `json:"events"`        // published to Ringfence
	Handled      uint64 `json:"handled"`       // of them, done at least once
	Lost         uint64 `json:"lost"`          // of them, never done
	DeadLettered uint64 `json:"dead_lettered"` // of those, sent to the dead letter topic
	Duplicates   uint64 `json:"duplicates"`    // handlings of an event that was done already
	Overlaps     uint64 `json:"overlaps"`      // pairs of handlings of one key at the same time

	// StaleTokenWrites counts the handlings that began, or ended as done, after a
	// greater fence of their key had been seen: the writes of a replaced handler.
	StaleTokenWrites uint64 `json:"stale_token_writes"`
	// StaleSameToken counts the stale writes of handlers that their own owner had replaced, by
	// another delivery of the key under the same token.
	StaleSameToken uint64 `json:"stale_same_token"`

	// TakeoverMS is the time that the keys of the killed member waited: from the SIGKILL to the
	// key's next handling, the 99th percentile over its keys with a waiting event
	// (journal.Waits). 0 if no member was killed.
	TakeoverMS float64 `json:"takeover_ms"`

	// HandoffP99MS is the wait of keys that moved between living members, when the killed one came
	// back, as measured by journal.Waits. 0 if no key moved.
	HandoffP99MS float64 `json:"handoff_p99_ms"`

	Throughput             float64 `json:"throughput"`               // handled events per second, from the first start to the last end
	BaselineSharedOverlaps uint64  `json:"baseline_shared_overlaps"` // overlaps of plain SHARED under the same load

	// RepeatedFences counts the handlings that began with the fence of an earlier one of their key.
	RepeatedFences uint64 `json:"repeated_fences"`

	plain        journal.Report // of plain SHARED
	unknown      uint64         // events that were handled and never published
	cut          uint64         // handlings that the applications cut, because their key was lost
	takeoverKeys uint64         // over which TakeoverMS is taken
	overlapMax   time.Duration  // the longest overlap
	stayedAway   bool           // the member that was started again owns nothing
}

func resultOf(r journal.Report, w journal.Waits) *Result {
	result := &Result{
		Events: r.Published, Handled: r.Events - r.Unknown, Lost: r.Lost, Duplicates: r.Duplicates,
		Overlaps: r.Overlaps, StaleTokenWrites: r.StaleTokens, StaleSameToken: r.StaleSameToken, RepeatedFences: r.RepeatedFences, HandoffP99MS: milliseconds(w.Handoff.P99),
		unknown: r.Unknown, cut: r.Cancelled, overlapMax: r.OverlapMax,
	}
	for _, takeover := range w.Takeovers { // there is one at most
		result.TakeoverMS, result.takeoverKeys = milliseconds(takeover.P99), takeover.Count
	}
	result.Throughput = throughput(r)
	return result
}

// pending is the number of events that were published, and neither done nor dead-lettered.
func (r *Result) pending() uint64 { return r.Lost - min(r.Lost, r.DeadLettered) }

func throughput(r journal.Report) float64 {
	took := r.LastEnd.Sub(r.FirstStart)
	if took <= 0 {
		return 0
	}
	return math.Round(float64(r.Events) / took.Seconds())
}

// milliseconds rounds to a tenth.
func milliseconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e4) / 10 }

// Broken returns every promise that did not hold, and every reason why the run
// proves nothing; nil when there is none.
func (r *Result) Broken(o Options) error {
	var errs []error
	broken := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf("demo: "+format, args...))
		}
	}
	broken(r.Overlaps > 0, "exclusive: %d times two handlers of one key ran at the same time, for up to %v", r.Overlaps, r.overlapMax)
	broken(r.Lost > 0, "nothing lost: %d events were published and never done", r.Lost)
	broken(r.StaleTokenWrites > 0, "fencing: %d handlings went on under a fence that was stale", r.StaleTokenWrites)
	broken(r.RepeatedFences > 0, "fencing: %d handlings had the fence of an earlier one of their key", r.RepeatedFences)
	broken(r.unknown > 0, "%d events were handled that were not published", r.unknown)
	broken(r.Handled == 0, "nothing was handled, so nothing is proved")
	broken(o.KillAt > 0 && r.takeoverKeys == 0, "a member was killed, but none of its keys was taken over, so nothing is proved")
	broken(r.stayedAway, "the member that was started again did not come back")
	broken(r.BaselineSharedOverlaps == 0, "plain SHARED did not overlap, so this load proves nothing")
	return errors.Join(errs...)
}
