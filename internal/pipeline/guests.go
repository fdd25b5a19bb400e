package pipeline

import (
	"slices"
	"sync"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/event"
)

// guests are events that a peer could not bring to their owner and has sent here to
// be passed on once. They go through this node under handles of this node, and their
// verdicts go back under the handles of the peer.
type guests struct {
	mu     sync.Mutex
	last   uint64
	origin map[event.Handle]origin
}

// origin is where a guest's verdict goes.
type origin struct {
	stream forward.StreamID
	handle event.Handle
}

func (g *guests) init() { g.origin = make(map[event.Handle]origin) }

// admit gives the events of an arrival handles of this node.
func (g *guests) admit(a forward.Arrival) []*event.Event {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range a.Events {
		g.last++
		h := event.NewGuestHandle(g.last)
		g.origin[h] = origin{a.From, e.Handle}
		e.Handle = h
	}
	return a.Events
}

// settle sends the verdict on a guest back, and reports whether it was one.
func (g *guests) settle(v *event.Verdict, peers Answerer) bool {
	if !v.Handle.IsGuest() {
		return false
	}
	g.sendBack(v, peers)
	return true
}

func (g *guests) sendBack(v *event.Verdict, peers Answerer) {
	if from, ok := g.take(v.Handle); ok {
		theirs := *v
		theirs.Handle = from.handle
		peers.Answer(from.stream, []event.Verdict{theirs})
	}
}

// done sends back which guests were done, and returns the handles of all others. Mostly
// there is no guest, and then these are the given ones.
func (g *guests) done(handles []event.Handle, peers Answerer) []event.Handle {
	if !slices.ContainsFunc(handles, event.Handle.IsGuest) {
		return handles
	}
	own := make([]event.Handle, 0, len(handles))
	for _, h := range handles {
		if !h.IsGuest() {
			own = append(own, h)
		} else if from, ok := g.take(h); ok {
			peers.Done(from.stream, []event.Handle{from.handle})
		}
	}
	return own
}

// take forgets a guest, and returns where its verdict goes.
func (g *guests) take(h event.Handle) (from origin, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	from, ok = g.origin[h]
	delete(g.origin, h)
	return from, ok
}

// gone forgets the guests of a stream: nobody waits for their verdicts.
func (g *guests) gone(stream forward.StreamID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for h, from := range g.origin {
		if from.stream == stream {
			delete(g.origin, h)
		}
	}
}
