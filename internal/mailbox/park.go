package mailbox

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
)

// Letters is the Sender of the letters of the parking topic that this node brings back. Their events run before all others of
// an unparked key, and are accepted however full the mailbox is: there is one of a key at a time.
const Letters Sender = math.MaxUint64

// parkedDelay is for consumer nodes of versions that do not know the verdict Parked: they keep the event, and send it again.
const parkedDelay = time.Second

// Park changes how the events of keys end. With ParkOn every event of the key, waiting or arriving, leaves from the
// head of the queue with the verdict Parked, even if the key is on hold or its retry is not due. It waits only while
// an event of the key runs, or while the gate or the lease does not let the key run, since another tenure may run it.
// The running event finishes; if it is to be retried here, it leaves like the others. With ParkEnds only [Letters]
// run, and all other events of the key wait behind them. Neither ends the turn of a reservation whose holder comes
// back.
func (b *Boxes) Park(now clock.Instant, parks []event.Park, out *Output) {
	for _, p := range parks {
		if p.State == event.NotParked {
			delete(b.parks, p.Key)
		} else {
			p.Key = event.Key(strings.Clone(string(p.Key)))
			b.parks[p.Key] = p
			if a := b.actor(p.Key, b.hashOfKey(p.Key)); a != nil {
				b.parkVisits(a, out)
			}
		}
		b.refileKey(now, p.Key, out)
	}
	b.repayAll(out)
}

// parkOf returns whether and how a key is parked. It costs nothing while no key is parked.
func (b *Boxes) parkOf(key event.Key) event.Park {
	if len(b.parks) == 0 {
		return event.Park{}
	}
	return b.parks[key]
}

// parkWaiting settles the waiting events of a parked key in their order, if gate and lease let it run. Each takes a turn, as a
// delivery does: so the fences of a key's letters and deliveries are in one order, over all tenures.
func (b *Boxes) parkWaiting(now clock.Instant, a *actor, out *Output) {
	p := b.parkOf(a.key)
	if p.State != event.ParkOn || a.head == nil || !b.mayLeave(now, a) {
		return
	}
	for it := a.head; it != nil; it = a.head {
		a.popFront()
		b.delivered++
		b.counters.Parked++
		e := it.ref.Event()
		mark := event.Mark{Act: p.Act, Fence: event.Fence{Token: int64(a.part.token), Turn: b.turn()}}
		b.recordEnd(now, it, history.Parked)
		b.settle(it, event.Parked, &event.Detail{
			Delay: parkedDelay, Attempts: it.attempts, Crashes: it.crashes, Reason: strings.TrimSuffix(mark.String()+" "+e.LastError, " "), FirstError: e.FirstError, Owner: b.member,
		}, out)
	}
	b.repayKey(a, out)
}

// waitsForPark reports whether no event of a key may run because of a park: the key is parked, or its letters come
// back and none of them is here. A letter that is here is moved to the head of the queue.
func (b *Boxes) waitsForPark(a *actor) bool {
	switch b.parkOf(a.key).State {
	case event.NotParked:
		return false
	case event.ParkOn:
		return true // without a lease
	case event.ParkEnds:
	}
	for it := range a.all {
		if it.isLetter() {
			if it != a.head {
				a.remove(it)
				a.pushFront(it)
				a.heldUntil = 0 // of another event
			}
			return false
		}
	}
	return true
}

// comesFirst reports whether an event is a letter that comes back before all other events of its key.
func (b *Boxes) comesFirst(it *item) bool {
	return b.parkOf(it.actor.key).State == event.ParkEnds && it.isLetter()
}

// isLetter reports whether one of the senders that wait for the verdict brings letters back.
func (it *item) isLetter() bool {
	return it.first.sender == Letters || slices.ContainsFunc(it.joined(), func(to address) bool { return to.sender == Letters })
}
