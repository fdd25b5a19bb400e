package client

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/client/internal/hook"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// claim holds up to 16 deliveries that one goroutine of the pool took under the runner's lock,
// and runs in order without it.
//
// No event and no result waits behind a handler that blocks: while a claim has events that
// have not started, another goroutine is being woken, which reclaims them first
// ([runner.recall]). A compare-and-swap before each start makes the two exclusive. After a
// goroutine has recalled all claims, and while it holds the lock, the inbox is exact: events
// that have not started wait there, and cannot start.
type claim struct {
	stream  *stream
	events  [claimMax]*Event
	results [claimMax]event.Result // those of events that have not ended are zero
	n       int                    // number of events
	until   clock.Instant          // no event starts from here on, also if its deadline is extended
	begun   clock.Instant

	now int          // index of the event that runs; for the goroutine alone
	at  atomic.Int32 // the same, or recalled
}

const (
	claimMax = 16

	// claimFor bounds how long a goroutine works on one claim: results wait for its end.
	claimFor = 50 * time.Microsecond

	recalled = -1 // all events but the one that runs
)

// advance goes on to the next event, if there is one and it may start.
func (h *claim) advance(hooks *hook.Hooks) bool {
	next := h.now + 1
	if next == h.n {
		return false
	}
	now := hooks.Starting()
	if !now.Before(h.until) || now.Sub(h.begun) > claimFor || !h.at.CompareAndSwap(int32(h.now), int32(next)) {
		return false
	}
	h.now = next
	return true
}

// fill takes events of the live stream into an empty claim. It takes more than one only if
// another goroutine can reclaim the others. The lock is held.
func (r *runner) fill(h *claim, now clock.Instant) bool {
	s := r.live
	most := 1
	if r.waking || r.parked > 0 || r.pool < r.maxInFlight {
		most = claimMax
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
		r.claims = append(r.claims, h)
	} else {
		h.at.Store(recalled)
	}
	return h.n > 0
}

// release empties a claim after its newest handler has returned. The lock is held.
func (r *runner) release(h *claim) {
	if h.n == 0 {
		return
	}
	end := h.now + 1
	if h.at.Swap(recalled) == recalled {
		r.finish(h, h.now, end)
	} else {
		i := slices.Index(r.claims, h)
		r.claims = slices.Delete(r.claims, i, i+1)
		r.finish(h, 0, end)
		r.putBack(h, end)
	}
	h.n = 0
}

// recall takes events that have not started from all claims, and answers those that have
// ended. The lock is held.
func (r *runner) recall() {
	for _, h := range r.claims {
		at := int(h.at.Swap(recalled))
		r.finish(h, 0, at)
		r.putBack(h, at+1)
	}
	clear(r.claims)
	r.claims = r.claims[:0]
}

// finish answers events of a claim. The lock is held.
func (r *runner) finish(h *claim, from, to int) {
	for i := from; i < to; i++ {
		h.stream.inbox.End(&h.events[i].run.item, &h.results[i])
		h.events[i], h.results[i] = nil, event.Result{}
	}
	r.running -= to - from
}

// putBack returns events of a claim to the inbox. The lock is held.
func (r *runner) putBack(h *claim, from int) {
	for i := h.n - 1; i >= from; i-- {
		h.stream.inbox.PutBack(&h.events[i].run.item)
		h.events[i] = nil
		r.running--
	}
}
