package client

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/client/internal/hook"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// hand is some events that one goroutine of the pool has taken at once, to run their
// handlers one after the other without the lock.
//
// No event waits behind a handler that blocks, nor does a result: whenever a hand has
// events that have not started, another goroutine is on its way, and the first thing
// that it does is to recall them ([runner.recall]). Each start asks whether that has
// happened, so whoever has recalled all hands knows, as long as it has the lock, that what
// the inbox says is so: what has not started waits there, and cannot start.
type hand struct {
	stream  *stream
	events  [handMax]*Event
	results [handMax]event.Result // those of events that have not ended are zero
	n       int                   // how many there are
	until   clock.Instant         // none starts from here on, whatever becomes of the deadline
	begun   clock.Instant

	now int          // whose turn it is; the goroutine's own
	at  atomic.Int32 // the same, or recalled
}

const (
	handMax = 16

	// handFor is how long a goroutine goes on with its hand, where nobody takes it away:
	// results wait for its end.
	handFor = 50 * time.Microsecond

	recalled = -1 // all but the event whose turn it was
)

// advance goes on to the next event, if there is one and it may start.
func (h *hand) advance(hooks *hook.Hooks) bool {
	next := h.now + 1
	if next == h.n {
		return false
	}
	now := hooks.Starting()
	if !now.Before(h.until) || now.Sub(h.begun) > handFor || !h.at.CompareAndSwap(int32(h.now), int32(next)) {
		return false
	}
	h.now = next
	return true
}

// fill takes events of the live stream into an empty hand. More than one it takes only if
// there is somebody who can take the others away. The lock is held.
func (r *runner) fill(h *hand, now clock.Instant) bool {
	s := r.live
	most := 1
	if r.waking || r.parked > 0 || r.pool < r.maxInFlight {
		most = handMax
	}
	for h.n < most {
		e := s.inbox.Take(now)
		if e == nil {
			break
		}
		h.events[h.n] = e
		h.n++
	}
	r.running += h.n
	h.stream, h.until, h.begun, h.now = s, s.inbox.Newest(), now, 0
	if h.n > 1 {
		h.at.Store(0)
		r.hands = append(r.hands, h)
	} else {
		h.at.Store(recalled)
	}
	return h.n > 0
}

// settle empties a hand, which its goroutine does after the handler whose turn it was. The
// lock is held.
func (r *runner) settle(h *hand) {
	if h.n == 0 {
		return
	}
	end := h.now + 1
	if h.at.Swap(recalled) == recalled {
		r.finish(h, h.now, end)
	} else {
		i := slices.Index(r.hands, h)
		r.hands = slices.Delete(r.hands, i, i+1)
		r.finish(h, 0, end)
		r.putBack(h, end)
	}
	h.n = 0
}

// recall takes from all hands what has not started, and answers what has ended. The lock
// is held.
func (r *runner) recall() {
	for _, h := range r.hands {
		at := int(h.at.Swap(recalled))
		r.finish(h, 0, at)
		r.putBack(h, at+1)
	}
	clear(r.hands)
	r.hands = r.hands[:0]
}

// finish answers events of a hand. The lock is held.
func (r *runner) finish(h *hand, from, to int) {
	for i := from; i < to; i++ {
		h.stream.inbox.End(&h.events[i].run.item, &h.results[i])
		h.events[i], h.results[i] = nil, event.Result{}
	}
	r.running -= to - from
}

// putBack lets the events of a hand wait again. The lock is held.
func (r *runner) putBack(h *hand, from int) {
	for i := h.n - 1; i >= from; i-- {
		h.stream.inbox.PutBack(&h.events[i].run.item)
		h.events[i] = nil
		r.running--
	}
}
