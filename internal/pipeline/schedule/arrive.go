package schedule

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/partition"
)

// Reason says why a firing waits, or is dropped.
//
//exhaustive:enforce
type Reason uint8

// The reasons to wait come first.
const (
	NoReason   Reason = iota
	NotOwner          // the gate of its key is not open here
	Early             // its time by this node's wall clock has not come
	Unknown           // no worker here declares it; one that does may come
	Arming            // the firing that follows is not safe yet
	Overlap           // another firing of the schedule is in the lane
	Order             // an earlier one, that All runs first, is on its way
	Undeclared        // from here on: dropped
	Redefined
	TooLate
	TooMany
	Superseded
	Skipped
	Duplicate
	NotScheduled // the definition has no such occurrence
	reasons
)

var reasonNames = [reasons]string{"", "not_owner", "early", "unknown", "arming", "overlap", "order", "undeclared", "redefined", "too_late", "too_many", "superseded", "skipped", "duplicate", "not_scheduled"}

// String returns the reason as metrics and logs spell it.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "invalid"
}

// Verdict is the decision about a firing that arrived.
//
//exhaustive:enforce
type Verdict uint8

const (
	// NotYet leaves it with its sender, who asks again at Decision.Until.
	NotYet Verdict = iota
	// Enter puts it into the lane of its key. [Book.Done] follows.
	Enter
	// Drop settles it without a run.
	Drop
)

// Decision answers [Book.Arrive].
type Decision struct {
	Verdict Verdict
	Reason  Reason    // of NotYet and Drop
	Until   time.Time // of NotYet
	Missed  int       // of Enter: how many earlier firings this one stands for
}

// Arrive decides about a firing that its sender brings to the owner of its key.
func (b *Book) Arrive(now time.Time, f Firing) Decision {
	opened, open := b.opened[partition.Of(KeyOf(f.Name))]
	if !open {
		return wait(NotOwner, now.Add(askAgain))
	}
	if f.Time.Before(firstTime) || !f.Time.Before(lastTime) {
		return b.drop(nil, NotScheduled)
	}
	l := b.line(f.Name)
	if l == nil || !l.declared() {
		return b.arriveUnknown(now, f, l, opened)
	}
	switch {
	case f.DefinitionID != l.def.ID():
		return b.drop(l, Redefined)
	case !l.def.Occurs(f.Time):
		return b.drop(l, NotScheduled)
	case l.hasRun(f.Time):
		return b.drop(l, Duplicate)
	case l.due(f.Time).After(now):
		return wait(Early, l.due(f.Time))
	case l.runs && l.running.DefinitionID == f.DefinitionID && l.running.Time.Equal(f.Time):
		return wait(Overlap, now.Add(askAgain))
	}

	f.Missed = min(max(f.Missed, 0), CountMax)
	l.letters = slices.DeleteFunc(l.letters, f.Time.Equal) // its letter is replayed, or was not safe
	e := l.want(now, f.Time, f.Missed)
	e.safe, e.seen, e.lastSeen, e.dead, e.returns = true, true, now, false, 0
	f.Missed = e.missed
	reason, dropped := l.dropped(now, f.Time)
	if successor, ok := l.successor(now, f.Time); ok {
		stands := 0
		if dropped {
			stands = l.standsFor(now, f.Time, f.Missed, successor)
		}
		l.want(now, successor, stands)
		if !l.covers(successor) {
			return wait(Arming, now.Add(askSoon))
		}
	}
	switch {
	case dropped:
		l.remove(f.Time)
		return b.drop(l, reason)
	case l.runs:
		return wait(Overlap, now.Add(askAgain))
	case l.def.Missed == All && b.stopped[l.name]&Unparking == 0 && l.precedes(now, f.Time): // an earlier one that is not a letter waits for this one
		return wait(Order, now.Add(askAgain))
	}
	l.remove(f.Time)
	f.Missed = l.missedBefore(f.Time, f.Missed)
	l.runs, l.running = true, f
	b.counts.Entered++
	b.counts.Missed += uint64(f.Missed)
	l.status.Missed += uint64(f.Missed)
	return Decision{Verdict: Enter, Missed: f.Missed}
}

// arriveUnknown decides about a firing that no worker here declares.
func (b *Book) arriveUnknown(now time.Time, f Firing, l *line, opened time.Time) Decision {
	until := b.unknownUntil(now, f, l, opened)
	switch {
	case f.Time.After(now):
		return wait(Early, f.Time)
	case now.Before(until):
		return wait(Unknown, now.Add(askAgain))
	}
	return b.drop(l, Undeclared)
}

// unknownUntil returns until when a firing that no worker here declares waits: a deploy under way may bring a worker that does. It waits from the
// moment on at which this node could know.
func (b *Book) unknownUntil(now time.Time, f Firing, l *line, opened time.Time) time.Time {
	since := opened
	if l != nil && l.since.After(since) {
		since = l.since
	}
	if since.After(now) && !f.Time.After(now) { // the clock was ahead: the wait begins now, and not in years
		since = now
		if opened.After(now) {
			b.opened[partition.Of(KeyOf(f.Name))] = now
		}
		if l != nil && l.since.After(now) {
			l.since = now
		}
	}
	return later(since, f.Time).Add(GraceDefault)
}

func wait(r Reason, until time.Time) Decision {
	return Decision{Verdict: NotYet, Reason: r, Until: until}
}

func (b *Book) drop(l *line, r Reason) Decision {
	b.counts.Dropped[r]++
	if l != nil {
		l.status.Dropped[r]++
	}
	return Decision{Verdict: Drop, Reason: r}
}
