package forward

import (
	"container/heap"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// send gives an event to whom the route names, or lets it wait in its place.
func (t *Table) send(now clock.Instant, h *held, out *Moves) {
	if lot := t.lot(h); lot != nil && !h.isReleased() {
		t.orRefuse(h, out, event.Overloaded, func() { t.move(h, &lot.events) })
		return
	}
	l := t.owners.of(h.event.Partition)
	if l == nil {
		t.orRefuse(h, out, event.NotYet, func() { t.strand(now, h, Local, event.Position{}) })
		return
	}
	switch {
	case l == t.local:
		t.refresh(h)
		t.move(h, &l.sent)
		h.given(false)
		out.Local = append(out.Local, h.event)
	case l.up:
		t.move(h, &l.queued)
		out.wake(l.peer)
	default:
		t.orRefuse(h, out, event.NotYet, func() { t.queueForDown(now, l, h, out) })
	}
}

// orRefuse lets an event wait, unless it is a guest: a guest goes back.
func (t *Table) orRefuse(h *held, out *Moves, kind event.VerdictKind, wait func()) {
	if !h.isGuest() {
		wait()
		return
	}
	v := event.Verdict{Handle: h.handle, Kind: kind, Delay: t.config.DelayMin}
	t.settle(h, &v, out)
}

// queueForDown queues an event for a peer without a stream, or for a third member
// if the peer has been out of reach for too long.
func (t *Table) queueForDown(now clock.Instant, l *lane, h *held, out *Moves) {
	if t.unreachable(now, l) {
		if third := t.third(l); third != nil {
			t.turn++
			t.move(h, &third.relays)
			out.wake(third.peer)
			return
		}
	}
	t.move(h, &l.queued)
}

// unreachable reports whether events for l shall not wait for it any longer.
func (t *Table) unreachable(now clock.Instant, l *lane) bool {
	return !l.up && now.Sub(l.since) >= t.config.UnreachableHoldMax
}

// third returns a peer that might reach l when we cannot: each in its turn.
func (t *Table) third(l *lane) *lane {
	for i := range t.lanes {
		if other := t.lanes[(t.turn+i)%len(t.lanes)]; other != l && other.up {
			return other
		}
	}
	return nil
}

// strand lets an event wait until a route comes that is newer than its refusal.
func (t *Table) strand(now clock.Instant, h *held, refuser Peer, at event.Position) {
	r := h.unusual()
	r.refuser, r.refusedAt, r.due = refuser, at, now.Add(t.config.RefusedRetry)
	t.move(h, &t.refused)
}

// delay lets an event wait for its own sake. One frame's delayed events share a wait.
func (t *Table) delay(now clock.Instant, h *held, d time.Duration) {
	due := now.Add(t.clamp(d))
	if t.nap == nil || t.nap.index < 0 || t.nap.due != due {
		t.nap = &wait{due: due, events: list{place: Delayed}}
		heap.Push(&t.waits, t.nap)
	}
	t.move(h, &t.nap.events)
}

// park lets the whole key of an event wait; events of the key that are queued or
// still to come join it. Its refuser gives credit when there is room. In case that is
// lost it is tried again after a pause, with a small burst; when that is refused too,
// the pause doubles.
func (t *Table) park(now clock.Instant, h *held, refuser Peer, d time.Duration) {
	key := h.event.Key
	lot := t.lots[key]
	if lot == nil {
		lot = &wait{key: key, index: -1, events: list{place: Parked}}
		t.lots[key] = lot
	}
	if lot.index < 0 || lot.open {
		t.parked++
	}
	switch {
	case lot.refuser != refuser || lot.delay == 0:
		lot.delay = t.clamp(d)
	case lot.tried:
		lot.delay = max(lot.delay, min(2*lot.delay, t.config.ParkDelayMax))
	}
	lot.refuser, lot.asked, lot.burst = refuser, t.clamp(d), t.config.ParkBurstMin
	lot.tried, lot.open = false, false
	lot.due = now.Add(lot.delay)
	t.move(h, &lot.events)
	if lot.index < 0 {
		heap.Push(&t.waits, lot)
	} else {
		heap.Fix(&t.waits, lot.index)
	}
}

// wakeUp ends a wait that is due.
func (t *Table) wakeUp(now clock.Instant, w *wait, out *Moves) {
	if w.events.place == Parked {
		t.release(now, w, w.burst, out)
		return
	}
	heap.Remove(&t.waits, w.index)
	for w.events.n > 0 {
		t.send(now, w.events.front(), out)
	}
}

// release sends the next n events of a parked key. What remains waits again, and if
// nothing of the burst is refused the next one is twice as large. A key of which all
// was sent is remembered for one more pause, so that a refusal finds how long it was.
func (t *Table) release(now clock.Instant, lot *wait, n int, out *Moves) {
	if lot.open { // nothing was refused
		heap.Remove(&t.waits, lot.index)
		delete(t.lots, lot.key)
		return
	}
	if lot.tried {
		lot.delay = lot.asked
	}
	for range min(n, lot.events.n) {
		h := lot.events.front()
		h.unusual().released = true
		t.send(now, h, out)
	}
	lot.tried = true
	if lot.open = lot.events.n == 0; lot.open {
		t.parked--
	}
	lot.burst = min(2*lot.burst, max(t.config.ParkBurstMin, t.config.FrameEventsMax))
	lot.due = now.Add(lot.delay)
	heap.Fix(&t.waits, lot.index)
}

// lotsWhere returns the parked keys that match, in an order that only depends on
// earlier calls (a map's would not).
func (t *Table) lotsWhere(match func(*wait) bool) []*wait {
	var lots []*wait
	for _, w := range t.waits {
		if w.events.place == Parked && match(w) {
			lots = append(lots, w)
		}
	}
	return lots
}

// resendIf sends those events of a list again that match.
func (t *Table) resendIf(now clock.Instant, l *list, out *Moves, match func(*held) bool) {
	for _, h := range l.all() { // what send appends to the same list is not looked at again
		if match(h) {
			t.send(now, h, out)
		}
	}
}

func (t *Table) settle(h *held, v *event.Verdict, out *Moves) {
	out.Settled = append(out.Settled, Settlement{})
	s := &out.Settled[len(out.Settled)-1] // written in its place: a copy of what was just written waits for that
	s.Event, s.Verdict = h.event, *v
	t.forget(h)
}

func (t *Table) done(h *held, out *Moves) {
	out.Done, out.DoneEvents = append(out.Done, h.handle), append(out.DoneEvents, h.event)
	t.forget(h)
}

// refresh brings an event up to date before it is given out again.
func (t *Table) refresh(h *held) {
	if h.rare == nil || h.rare.past == nil {
		return // nobody had it
	}
	t.renew(h)
}

func (t *Table) renew(h *held) {
	h.refresh()
	weight := weightOf(h.event)
	t.bytes += weight - int(h.bytes)
	h.bytes = uint32(weight)
}

func (t *Table) forget(h *held) {
	t.unlink(h)
	t.ages.remove(h)
	t.bytes -= int(h.bytes)
	t.shelf.remove(h)
}

// lot returns where the key of an event is parked, nil when it is not. Usually no
// key is, and then the event is not read.
func (t *Table) lot(h *held) *wait {
	if len(t.lots) == 0 {
		return nil
	}
	if lot := t.lots[h.event.Key]; lot != nil && !lot.open {
		return lot
	}
	return nil
}

// move takes an event from where it is to the end of l.
func (t *Table) move(h *held, l *list) {
	t.unlink(h)
	t.count[l.place]++
	l.push(h)
}

func (t *Table) unlink(h *held) {
	if h.on != nil {
		t.count[h.on.place]--
		h.on.remove(h)
	}
}

// lane returns the lane of peer, and makes it when peer is new.
func (t *Table) lane(now clock.Instant, peer Peer) *lane {
	if l := t.find(peer); l != nil {
		return l
	}
	l := newLane(peer, now)
	t.lanes = append(t.lanes, l)
	return l
}

// find returns the lane of peer, nil when there is none. Groups are small: looking
// through a few lanes is as fast as a map, and has an order.
func (t *Table) find(peer Peer) *lane {
	if peer == Local {
		return t.local
	}
	for _, l := range t.lanes {
		if l.peer == peer {
			return l
		}
	}
	return nil
}

// markOwners notes who owns which partition, and begins to count the time for which a
// new owner is out of reach.
func (t *Table) markOwners(now clock.Instant) {
	for _, l := range t.lanes {
		l.owner = 0
	}
	t.local.owner = 0
	t.owners.lanes = append(t.owners.lanes[:0], nil)
	for owner := range t.route.Owners() {
		t.markOwner(now, owner)
	}
	for p := range t.owners.byPartition {
		t.owners.byPartition[p] = 0
		if owner, ok := t.route.Locate(ring.Partition(p)); ok {
			t.owners.byPartition[p] = t.markOwner(now, owner)
		}
	}
}

func (t *Table) markOwner(now clock.Instant, owner Peer) (number uint16) {
	if owner == t.self {
		owner = Local
	}
	l := t.lane(now, owner)
	if l.owner == 0 {
		l.owner = uint16(len(t.owners.lanes))
		t.owners.lanes = append(t.owners.lanes, l)
	}
	return l.owner
}

// prune forgets peers that are gone for good.
func (t *Table) prune() {
	kept := t.lanes[:0]
	for _, l := range t.lanes {
		if l.up || l.owner > 0 || !l.empty() {
			kept = append(kept, l)
		}
	}
	clear(t.lanes[len(kept):])
	t.lanes = kept
}

func (t *Table) clamp(d time.Duration) time.Duration {
	return min(max(d, t.config.DelayMin), t.config.DelayMax)
}

// weightOf is what an event counts in frames: never less than its encoding.
func weightOf(ev *event.Event) int { return ev.Bytes() + len(ev.Topic) }
