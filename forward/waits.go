package forward

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// waiter names what waits after a refusal: the events of a key, or one call, which waits for itself alone.
type waiter struct {
	key  event.Key
	call event.Handle // 0: the events
}

func (h held) waiter() waiter {
	if h.isCall() {
		return waiter{call: h.handle()}
	}
	return waiter{key: h.key()}
}

// wait is the pause of one key after a refusal. It holds the events of the key that are not sent, except those in a
// queue. Of these, the ones up to the order passing are sent first; the others join the wait when their turn comes.
type wait struct {
	of      waiter
	due     clock.Instant // when its events, or the next burst of them, are sent again
	index   int           // in waits
	place   Place         // Full, Delayed or Refused, as the newest refusal says
	events  list
	passing uint64 // held.order up to which queued events of the key are sent before these

	refuser   Peer
	refusedAt event.Position // Refused: the epoch that the refuser had applied

	// Keys whose mailbox is full only. A key whose waiting events were all sent is kept for one more pause, so
	// that a refusal finds the previous delay.
	asked   time.Duration // how long the refuser asked to wait
	delay   time.Duration // how long to wait without a credit; grows with each refusal
	burst   int           // number of events to send when it is due
	probing bool          // a burst is out and no event of it was refused yet
}

// behind returns the wait that an event has to join before it may be sent, nil when there
// is none. Usually no key waits, and then it does not read the event.
func (t *Table) behind(h held) *wait {
	if len(t.waiting) == 0 {
		return nil
	}
	if w := t.waiting[h.waiter()]; w != nil && len(w.events) > 0 && h.order() > w.passing {
		return w
	}
	return nil
}

// waitOf returns the wait that an event belongs to, and makes it when there is none. The caller sets its due time.
func (t *Table) waitOf(h held) *wait {
	of := h.waiter()
	w := t.waiting[of]
	if w == nil {
		of.key = event.Key(strings.Clone(string(of.key))) // it may outlive the entry
		w = &wait{of: of}
		t.waiting[of] = w
		heap.Push(&t.waits, w)
	}
	return w
}

// stop makes the whole key of a refused event wait for d: this event, those that are queued (since passing becomes 0),
// and those that come later.
func (t *Table) stop(now clock.Instant, w *wait, h held, place Place, refuser Peer, d time.Duration) {
	w.place, w.refuser, w.refusedAt, w.passing, w.due = place, refuser, event.Position{}, 0, now.Add(d)
	w.events.add(h)
	heap.Fix(&t.waits, w.index)
}

// strand makes the key of an event wait until a route comes that is as new as at, or
// names another owner.
func (t *Table) strand(now clock.Instant, h held, refuser Peer, at event.Position) {
	w := t.waitOf(h)
	t.stop(now, w, h, Refused, refuser, t.config.RefusedRetry)
	w.refusedAt = at
}

// awaitRoom makes the key of an event wait until the refuser gives a credit. In case the credit
// is lost, a small burst is sent after a pause; the pause doubles each time the burst is
// refused.
func (t *Table) awaitRoom(now clock.Instant, h held, refuser Peer, asked time.Duration) {
	w := t.waitOf(h)
	switch {
	case w.refuser != refuser || w.delay == 0:
		w.delay = asked
	case w.probing:
		w.delay = max(w.delay, min(2*w.delay, t.config.FullDelayMax))
	}
	w.asked, w.burst, w.probing = asked, t.config.FullBurstMin, false
	t.stop(now, w, h, Full, refuser, w.delay)
}

// redeem releases events of a key whose mailbox was full for a credit of its refuser: so many, or a burst
// if events is 0.
func (t *Table) redeem(now clock.Instant, from Peer, w *wait, events int, out *Moves) {
	if w != nil && w.isFull() && w.refuser == from {
		w.delay = w.asked
		t.sendWaiting(now, w, cmp.Or(events, w.burst), out)
	}
}

func (w *wait) isFull() bool { return w.place == Full && len(w.events) > 0 }

// sendWaiting sends events of a wait that is over. If the key's mailbox was full, these are the next n: the others wait
// again, and the next burst is twice as large unless an event of this one is refused. After any other refusal all events
// are sent, and the wait ends.
func (t *Table) sendWaiting(now clock.Instant, w *wait, n int, out *Moves) {
	full := w.isFull()
	if !full {
		n = len(w.events)
	}
	for range min(n, len(w.events)) {
		h := w.events[0]
		w.events.remove(h)
		w.passing = h.order()
		t.send(h, out)
	}
	if !full {
		heap.Remove(&t.waits, w.index)
		delete(t.waiting, w.of)
		return
	}
	if w.probing {
		w.delay = w.asked
	}
	w.probing = true
	w.burst = min(2*w.burst, max(t.config.FullBurstMin, t.config.FrameEventsMax))
	w.due = now.Add(w.delay)
	heap.Fix(&t.waits, w.index)
}

// follow sends the waiting events whose owner has changed, and refused ones whose refuser is still the owner by a
// route as new as the epoch by which it refused them. The order depends only on earlier calls (that of a map would
// not).
func (t *Table) follow(now clock.Instant, out *Moves) {
	for _, w := range slices.Clone(t.waits) {
		if len(w.events) == 0 {
			continue
		}
		if t.ownerOf(w.events[0]).peer != w.refuser || w.place == Refused && !t.epoch.Before(w.refusedAt) {
			t.sendWaiting(now, w, len(w.events), out)
		}
	}
}

// clamp returns the delay that a peer has asked for, within the bounds of Config.
func (t *Table) clamp(d time.Duration) time.Duration {
	return min(max(d, t.config.DelayMin), t.config.DelayMax)
}

// waits is a heap of waits by due time, for container/heap.
type waits []*wait

func (w waits) Len() int           { return len(w) }
func (w waits) Less(i, j int) bool { return w[i].due < w[j].due }
func (w waits) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].index, w[j].index = i, j
}

// Push implements heap.Interface.
func (w *waits) Push(x any) {
	e := x.(*wait)
	e.index = len(*w)
	*w = append(*w, e)
}

// Pop implements heap.Interface.
func (w *waits) Pop() any {
	old := *w
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	return e
}
