package mailbox

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// ReservationsMax bounds the reservations at one owner, held and waiting together, so that the keeper, which has room
// for twice as many, always has some for the next one: the events of a key would wait behind a reservation without
// room.
const ReservationsMax = 512

// reservesMax bounds the reservations. For returning holders the bound is twice as high.
func (b *Boxes) reservesMax(comesBack bool) int {
	most := max(1, ReservationsMax/b.shards)
	if comesBack {
		return 2 * most
	}
	return most
}

// resumeBytesMax exceeds the size of a reservation with the longest key, id and path. No router sends a larger one; it is
// bounded like a call.
const resumeBytesMax = event.KeyMax + 2<<10

// resumeMax is the time that a holder may wait for the gate of its key to open and for another holder to release it:
// longer than any promise lasts.
const resumeMax = 2 * event.TTLMost

// mayResume reports whether a reservation that was granted before may continue here, as far as this owner knows: only a covered
// reservation outlives its owner, and its key waits for it.
func mayResume(p *part, key ring.KeyHash, id event.MessageID, call *event.Call) bool {
	if call.TTL == 0 || p.gate == ownership.Waiting {
		return call.TTL != 0
	}
	holder, found := p.holderOf(key)
	return found && holder == ownership.ReservationOf(id)
}

// resuming returns the visit for which its key waits, nil if it is not here. Nothing else of the key may run.
func (b *Boxes) resuming(now clock.Instant, a *actor) *item {
	if !a.visited || a.part.gate != ownership.Open || len(a.part.awaited) == 0 || a.part.withholds(a.id) {
		return nil
	}
	holder, found := a.part.holderOf(a.id)
	if !found || holder == (ownership.ReservationID{}) {
		return nil
	}
	return b.visits.of[a].first(now, func(it *item) bool { return it.isReservation() && ownership.ReservationOf(it.id) == holder })
}

// endResumes ends the waiting visits of a key that could only resume, and no longer can.
func (b *Boxes) endResumes(a *actor, out *Output) {
	b.endVisits(a, event.Answered, answerOver, out, func(it *item, call *event.Call) bool { return call.Resume && !mayResume(a.part, a.id, it.id, call) })
}

// SetCovers says whether reservations can be covered.
func (b *Boxes) SetCovers(covers bool) { b.visits.covers = covers }

// comeBack moves a reservation, held or waiting, to another address: knowledge of its secret id proves the holder. The former address gets the
// verdict that the reservation is over there.
func (b *Boxes) comeBack(now clock.Instant, it *item, from address, call *event.Call, out *Output) {
	b.counters.Joined++
	delete(b.visits.by, it.first)
	if it.first != from && !b.isGone(it.first.sender) {
		out.say(it.first, event.Answered, answerOver)
		b.tell(it.first, out)
	}
	it.first = from
	b.visits.by[from] = it
	v := b.visits.state[it]
	if v.granted {
		out.say(from, event.Granted, &event.Detail{Grant: &event.Grant{Fence: v.fence}}) // to be renewed before anything is done
		return
	}
	v.moved = it.delivery != 0
	b.waitUntil(now, it, call.Deadline, out)
}

// isReservation reports whether a visit is one.
func (it *item) isReservation() bool { return it.ref.Event().Call.Reservation }

// Grant tells the holder of a reservation that it has begun. A delivery that is over is ignored. Permission counts from
// the holder's request. A holder that has asked from another place since the delivery was taken may have asked after
// the permission was computed, and gets none.
func (b *Boxes) Grant(id event.DeliveryID, g event.Grant, out *Output) {
	it := b.find(id)
	if it == nil || !it.visit {
		return
	}
	v := b.visits.state[it]
	if v.moved {
		v.moved = false
		g.Remaining = 0
	}
	if !v.granted {
		b.visits.granted++
	}
	v.granted, v.fence = true, g.Fence
	b.answer(it, event.Granted, &event.Detail{Grant: &g}, out)
}

// Renewable returns the delivery of a reservation that a sender has here and that runs, 0 if there is none. A renewal of an ended
// reservation may be answered only after the final verdict has been sent; telling holds those whose verdict may not have been.
func (b *Boxes) Renewable(from Sender, call event.Handle) (id event.DeliveryID, telling bool) {
	at := address{from, call}
	if it := b.visits.by[at]; it != nil && b.visits.state[it].granted {
		id = it.delivery
	}
	return id, b.visits.telling[at] > 0
}

// tell names the final verdict on a reservation in the output, until it has been sent.
func (b *Boxes) tell(to address, out *Output) {
	if b.isGone(to.sender) {
		return
	}
	b.visits.telling[to]++
	out.Telling = append(out.Telling, Telling{to.sender, to.handle})
}

// endRelease is for the end of a reservation that was cancelled: if it had already ended in another way, its Cancel has freed nothing, and its
// sender gets the verdict after all.
func (b *Boxes) endRelease(it *item, r *event.Result) {
	v := b.visits.state[it]
	if v.release == nil {
		return
	}
	b.told(*v.release)
	if r.Kind != event.ResultDone && it.first.sender == gone {
		it.first = *v.release
	}
	v.release = nil
}

// Told says that verdicts that an output named have been sent.
func (b *Boxes) Told(all []Telling) {
	for _, t := range all {
		b.told(address{t.To, t.Call})
	}
}

func (b *Boxes) told(to address) {
	switch n := b.visits.telling[to]; {
	case n > 1:
		b.visits.telling[to] = n - 1
	case n == 1:
		delete(b.visits.telling, to)
	}
}
