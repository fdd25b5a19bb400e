package forward

import (
	"container/heap"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// send moves an event towards its owner, or to the place where it has to wait.
func (t *Table) send(now clock.Instant, h *held, out *Moves) {
	if parking := t.parkingOf(h); parking != nil && !h.isReleased() {
		t.waitOrBounce(h, out, event.Overloaded, func() { t.move(h, &parking.events) })
		return
	}
	l := t.owners.of(h.event.Partition)
	if l == nil {
		t.waitOrBounce(h, out, event.NotYet, func() { t.strand(now, h, Local, event.Position{}) })
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
		t.waitOrBounce(h, out, event.NotYet, func() { t.queueForDown(now, l, h, out) })
	}
}

// waitOrBounce calls wait; a relayed event is refused back to its sender instead.
func (t *Table) waitOrBounce(h *held, out *Moves, kind event.VerdictKind, wait func()) {
	if !h.isRelayed() {
		wait()
		return
	}
	t.settle(h, event.Verdict{Handle: h.handle, Kind: kind, Detail: &event.Detail{Delay: t.config.DelayMin}}, out)
}

// queueForDown queues an event for a peer without a stream, or for a third member if the
// peer has been unreachable for UnreachableHoldMax.
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

// unreachable reports whether l has been down for UnreachableHoldMax.
func (t *Table) unreachable(now clock.Instant, l *lane) bool {
	return !l.up && now.Sub(l.since) >= t.config.UnreachableHoldMax
}

// third returns a peer that might reach l when this node cannot, in round robin.
func (t *Table) third(l *lane) *lane {
	for i := range t.lanes {
		if other := t.lanes[(t.turn+i)%len(t.lanes)]; other != l && other.up {
			return other
		}
	}
	return nil
}

// strand keeps an event in Refused until a route newer than its refusal comes.
func (t *Table) strand(now clock.Instant, h *held, refuser Peer, at event.Position) {
	r := h.ensureExtra()
	r.refuser, r.refusedAt, r.due = refuser, at, now.Add(t.config.RefusedRetry)
	t.move(h, &t.refused)
}

// delay holds a single event for d. Events delayed to the same instant share an entry.
func (t *Table) delay(now clock.Instant, h *held, d time.Duration) {
	due := now.Add(t.clamp(d))
	if t.lastDelay == nil || t.lastDelay.index < 0 || t.lastDelay.due != due {
		t.lastDelay = &wait{due: due, events: list{place: Delayed}}
		heap.Push(&t.waits, t.lastDelay)
	}
	t.move(h, &t.lastDelay.events)
}

// park makes the whole key of an event wait, with events of the key that are queued or
// come later. The refuser gives a credit when it has room. In case the credit is lost, a
// small burst is sent after a pause; the pause doubles each time the burst is refused.
func (t *Table) park(now clock.Instant, h *held, refuser Peer, d time.Duration) {
	key := h.event.Key
	parking := t.parked[key]
	if parking == nil {
		parking = &wait{key: key, index: -1, events: list{place: Parked}}
		t.parked[key] = parking
	}
	if parking.index < 0 || parking.drained {
		t.parkedKeys++
	}
	switch {
	case parking.refuser != refuser || parking.delay == 0:
		parking.delay = t.clamp(d)
	case parking.probing:
		parking.delay = max(parking.delay, min(2*parking.delay, t.config.ParkDelayMax))
	}
	parking.refuser, parking.asked, parking.burst = refuser, t.clamp(d), t.config.ParkBurstMin
	parking.probing, parking.drained = false, false
	parking.due = now.Add(parking.delay)
	t.move(h, &parking.events)
	if parking.index < 0 {
		heap.Push(&t.waits, parking)
	} else {
		heap.Fix(&t.waits, parking.index)
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

// release sends the next n events of a parked key. The remaining ones wait again, and the
// next burst is twice as large if none of this one is refused. A drained key is kept for
// one more pause, so that a refusal finds the previous delay.
func (t *Table) release(now clock.Instant, parking *wait, n int, out *Moves) {
	if parking.drained { // nothing was refused
		heap.Remove(&t.waits, parking.index)
		delete(t.parked, parking.key)
		return
	}
	if parking.probing {
		parking.delay = parking.asked
	}
	for range min(n, parking.events.n) {
		h := parking.events.front()
		h.ensureExtra().released = true
		t.send(now, h, out)
	}
	parking.probing = true
	if parking.drained = parking.events.n == 0; parking.drained {
		t.parkedKeys--
	}
	parking.burst = min(2*parking.burst, max(t.config.ParkBurstMin, t.config.FrameEventsMax))
	parking.due = now.Add(parking.delay)
	heap.Fix(&t.waits, parking.index)
}

// parkedWhere returns the parked keys that match, in an order that only depends on
// earlier calls (a map's would not).
func (t *Table) parkedWhere(match func(*wait) bool) []*wait {
	var found []*wait
	for _, w := range t.waits {
		if w.events.place == Parked && match(w) {
			found = append(found, w)
		}
	}
	return found
}

// resendIf sends those events of a list again that match.
func (t *Table) resendIf(now clock.Instant, l *list, out *Moves, match func(*held) bool) {
	for _, h := range l.all() { // a copy: send may append to the same list
		if match(h) {
			t.send(now, h, out)
		}
	}
}

func (t *Table) settle(h *held, v event.Verdict, out *Moves) {
	out.settle(h.event, v)
	t.forget(h)
}

// refresh updates an event before it is sent again.
func (t *Table) refresh(h *held) {
	if h.extra == nil || h.extra.past == nil {
		return // no earlier holder
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

// parkingOf returns the wait of an event's key, nil when the key is not parked. Usually no
// key is parked, and then it does not read the event.
func (t *Table) parkingOf(h *held) *wait {
	if len(t.parked) == 0 {
		return nil
	}
	if parking := t.parked[h.event.Key]; parking != nil && !parking.drained {
		return parking
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

// markOwners rebuilds owners from the route. It creates the lanes of new owners, whose
// time without a stream begins now.
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

// prune removes lanes that are down, own nothing and hold no events.
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

// weightOf returns an event's weight in frames: never less than its encoding.
func weightOf(ev *event.Event) int { return ev.Bytes() + len(ev.Topic) }
