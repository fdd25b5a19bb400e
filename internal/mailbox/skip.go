package mailbox

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
)

// skips are the events that operators have skipped. No event costs anything while there are none.
type skips struct {
	lease   ownership.Lease                  // the newest: only a member that may run a waiting event may end it
	known   map[event.Key][]event.Skip       // in effect: those of events that are not here, too
	running map[event.DeliveryID]*event.Skip // deliveries that were taken back, and are not over
	mayEnd  func(*event.Event) bool          // whether a skipped event that a router has published may end; nil: always
}

// skipAgain is how long a skipped event that may not end yet waits before it is looked at again.
const skipAgain = 100 * time.Millisecond

// mayEnd reports whether a skipped event may end, and asks for what it waits for.
func (b *Boxes) mayEnd(it *item) bool {
	return b.skips.mayEnd == nil || !it.id.IsSent() || b.skips.mayEnd(it.ref.Event())
}

// Skip makes events end as dead letters instead of being delivered, those that are here and those that come later, until
// Unskip. One that waits leaves its key at once, even if the key is on hold or its retry is not due; but it waits while the gate or the lease
// does not let the key run, since another tenure may run the event, and while [Mailboxes.JudgeSkips] forbids it. One that runs is named in out.TakeBack: its key stays busy until
// Finish, and then a result other than done makes it a dead letter, under any gate; but without a lease only one by
// which the application gives the event up, since another owner may run it. A skip replaces an earlier one of the same
// event.
func (b *Boxes) Skip(now clock.Instant, skips []event.Skip, out *Output) {
	for i := range skips {
		s := skips[i]
		s.Key = event.Key(strings.Clone(string(s.Key)))
		others := slices.DeleteFunc(b.skips.known[s.Key], func(old event.Skip) bool { return old.Event == s.Event })
		b.skips.known[s.Key] = append(others, s)
		a := b.actor(s.Key, b.hashOfKey(s.Key))
		if a == nil {
			continue
		}
		if it := a.running; it != nil && !it.visit && it.id == s.Event && b.skips.running[it.delivery] == nil {
			b.skips.running[it.delivery] = &s
			out.TakeBack = append(out.TakeBack, it.delivery)
		}
		b.leaveSkipped(now, a, out)
	}
	b.repayAll(out)
}

// SetLease tells the newest lease, before any Take has it: events that are to be skipped or parked leave first.
func (b *Boxes) SetLease(now clock.Instant, lease ownership.Lease, out *Output) {
	b.skips.lease = lease
	for _, key := range slices.Sorted(maps.Keys(b.skips.known)) {
		if a := b.actor(key, b.hashOfKey(key)); a != nil {
			b.leaveSkipped(now, a, out)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b.parks)) {
		if b.parks[key].State == event.ParkOn {
			b.refileKey(now, key, out)
		}
	}
	b.repayAll(out)
}

// mayLeave reports whether waiting events of a key that are to be skipped may leave it: as those that run, by the owner alone.
func (b *Boxes) mayLeave(now clock.Instant, a *actor) bool {
	return a.mayRun() && b.skips.lease.MayDispatch(a.part.gate, now)
}

// Unskip ends skips, for events that are not here or wait. A delivery that was taken back still ends as Skip says.
func (b *Boxes) Unskip(skips []event.Skip) {
	for _, s := range skips {
		left := slices.DeleteFunc(b.skips.known[s.Key], func(known event.Skip) bool { return known.Event == s.Event })
		if len(left) == 0 {
			delete(b.skips.known, s.Key)
		} else {
			b.skips.known[s.Key] = left
		}
	}
}

// leaveSkipped settles the waiting events of a key that are to be skipped, and files the key again if its first event was one.
func (b *Boxes) leaveSkipped(now clock.Instant, a *actor, out *Output) {
	if a.running == nil && b.skipsFirst(a) && b.mayLeave(now, a) {
		b.refile(now, a, out)
		return
	}
	b.skipWaiting(now, a, out)
}

// skipsFirst reports whether the first event of a key is to be skipped.
func (b *Boxes) skipsFirst(a *actor) bool {
	return len(b.skips.known) > 0 && a.head != nil && skipOf(b.skips.known[a.key], a.head.id) != nil
}

// skipOf returns the skip of an event, nil if there is none.
func skipOf(skips []event.Skip, id event.MessageID) *event.Skip {
	for i := range skips {
		if skips[i].Event == id {
			return &skips[i]
		}
	}
	return nil
}

// skipWaiting settles the waiting events of a key that are to be skipped, if gate and lease let the key run.
func (b *Boxes) skipWaiting(now clock.Instant, a *actor, out *Output) {
	if len(b.skips.known) == 0 || !b.mayLeave(now, a) {
		return
	}
	known := b.skips.known[a.key]
	if len(known) == 0 {
		return
	}
	for it := range a.all {
		if s := skipOf(known, it.id); s != nil && b.mayEnd(it) {
			if it == a.head {
				a.heldUntil = 0
			}
			a.remove(it)
			b.recordEnd(now, it, history.Rejected)
			b.settleSkipped(it, outcome.Skipped(outcome.Outcome{Attempts: it.attempts, Crashes: it.crashes}, s.Reason), *s, out)
		}
	}
	b.repayKey(a, out)
}

// settleSkipped sends an event to the dead letter topic because of a skip.
func (b *Boxes) settleSkipped(it *item, o outcome.Outcome, s event.Skip, out *Output) {
	b.counters.Skipped++
	out.Skipped = append(out.Skipped, event.Skipped{Skip: s})
	b.settle(it, event.Rejected, &event.Detail{Attempts: o.Attempts, Crashes: o.Crashes, Reason: o.Reason, FirstError: it.ref.Event().FirstError, Owner: b.member}, out)
}

// takenBack returns the skip because of which a delivery was taken back, nil if there is none, and forgets it.
func (b *Boxes) takenBack(id event.DeliveryID) *event.Skip {
	if len(b.skips.running) == 0 {
		return nil
	}
	s := b.skips.running[id]
	delete(b.skips.running, id)
	return s
}

// finishSkipped ends the event of a delivery that was taken back. A failure of the application still counts.
func (b *Boxes) finishSkipped(it *item, o outcome.Outcome, s *event.Skip, out *Output) {
	if o.Attempts > it.attempts || o.Crashes > it.crashes {
		b.replace(it, event.RefTo(withFailure(it.ref.Event(), o)))
	}
	b.settleSkipped(it, outcome.Skipped(o, s.Reason), *s, out)
}
