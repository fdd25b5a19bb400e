package mailbox

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// visitors holds the waiting visits of a key.
type visitors struct {
	itemQueue
	inTurn uint8 // number of visits that ran since the last event
}

// visitsInTurn is the number of visits of a key that run in a row while an event of the key waits.
const visitsInTurn = 8

func (b *Boxes) visitorsOf(a *actor) *visitors {
	v := b.visits.of[a]
	if v == nil {
		v = new(visitors)
		b.visits.of[a], a.visited = v, true
	}
	return v
}

// workerOf returns the worker for the next item of a key: the keeper if the item is a reservation.
func (b *Boxes) workerOf(now clock.Instant, a *actor) *worker {
	if b.resuming(now, a) != nil {
		a.workers = noWorkers
		return &b.visits.keeper
	}
	if a.visited {
		alone := len(b.workers.all) == 0 // nothing else could run: reservations need not wait for the events and calls before them
		if v := b.visits.of[a]; alone || !b.eventMay(now, a) || v.inTurn < visitsInTurn {
			if it := v.first(now, func(it *item) bool { return !alone || it.isReservation() }); it != nil && it.isReservation() {
				a.workers = noWorkers
				return &b.visits.keeper
			}
		}
	}
	if a.workers != b.workers.generation {
		a.worker, a.workers = b.workers.pick(a.key), b.workers.generation
	}
	return a.worker
}

// noWorkers is not a valid generation of workers: a key gets a new generation when it needs one.
const noWorkers = 1<<32 - 1

// first returns the first visit that is wanted and whose time is not up.
func (v *visitors) first(now clock.Instant, wanted func(*item) bool) *item {
	for it := v.head; it != nil; it = it.next {
		if wanted(it) && it.ref.Event().Call.Deadline.After(now) { // otherwise Tick ends it
			return it
		}
	}
	return nil
}

// eventMay reports whether a key has an event that may run now: it need not wait for its retry, and is not to be skipped.
func (b *Boxes) eventMay(now clock.Instant, a *actor) bool {
	return a.head != nil && !a.heldUntil.After(now) && !b.skipsFirst(a)
}

// nextOfBoth is next for a key with visits that wait. The keeper gets reservations alone, and all other workers none.
func (b *Boxes) nextOfBoth(now clock.Instant, w *worker, a *actor, v *visitors) *item {
	if !a.mayRun() {
		it := b.resuming(now, a)
		if it == nil || w.id != event.Keeper {
			return nil
		}
		v.remove(it)
		return it
	}
	keeper := w.id == event.Keeper
	eventMay := !keeper && b.eventMay(now, a)
	if !eventMay || v.inTurn < visitsInTurn {
		if it := v.first(now, func(it *item) bool { return it.isReservation() == keeper }); it != nil {
			v.remove(it)
			v.inTurn = min(v.inTurn+1, visitsInTurn)
			return it
		}
	}
	if !eventMay {
		return nil
	}
	v.inTurn, a.heldUntil = 0, 0
	return a.popFront()
}

// putOff files a key that was ready but has nothing to run: the time of its visits is up, which Tick handles, and its event
// waits for its retry.
func (b *Boxes) putOff(now clock.Instant, a *actor) {
	a.wait, a.since = WaitNothing, now
	if a.head != nil && a.heldUntil.After(now) {
		var out Output // the retry was in Next before
		a.wait = WaitRetry
		b.awaitRetry(a, &out)
	}
}
