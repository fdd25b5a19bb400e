package pipeline

import (
	"slices"
	"sync"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/event"
)

// relayed holds events that a peer could not send to their owner and sent here, to be
// passed on once. They go through this node under handles of this node, and their
// verdicts go back under the handles of the peer.
type relayed struct {
	mu     sync.Mutex
	last   uint64
	origin map[event.Handle]origin
}

// origin is the destination of the verdict on a relayed event.
type origin struct {
	stream forward.StreamID
	handle event.Handle
}

func (r *relayed) init() { r.origin = make(map[event.Handle]origin) }

// admit gives the events of an arrival handles of this node.
func (r *relayed) admit(a forward.Arrival) []*event.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range a.Events {
		r.last++
		h := event.NewRelayedHandle(r.last)
		r.origin[h] = origin{a.From, e.Handle}
		e.Handle = h
	}
	return a.Events
}

// settle sends the verdict on a relayed event back, and reports whether the event was one.
func (r *relayed) settle(v *event.Verdict, peers Answerer) bool {
	if !v.Handle.IsRelayed() {
		return false
	}
	r.sendBack(v, peers)
	return true
}

func (r *relayed) sendBack(v *event.Verdict, peers Answerer) {
	if from, ok := r.take(v.Handle); ok {
		theirs := *v
		theirs.Handle = from.handle
		peers.Answer(from.stream, []event.Verdict{theirs})
	}
}

// done reports relayed events that are done to their peers, and returns the handles of all
// others. Mostly no event is relayed, and the given handles are returned.
func (r *relayed) done(handles []event.Handle, peers Answerer) []event.Handle {
	if !slices.ContainsFunc(handles, event.Handle.IsRelayed) {
		return handles
	}
	own := make([]event.Handle, 0, len(handles))
	for _, h := range handles {
		if !h.IsRelayed() {
			own = append(own, h)
		} else if from, ok := r.take(h); ok {
			peers.Done(from.stream, []event.Handle{from.handle})
		}
	}
	return own
}

// take removes a relayed event, and returns where its verdict goes.
func (r *relayed) take(h event.Handle) (from origin, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, ok = r.origin[h]
	delete(r.origin, h)
	return from, ok
}

// gone removes the relayed events of a stream that has ended.
func (r *relayed) gone(stream forward.StreamID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for h, from := range r.origin {
		if from.stream == stream {
			delete(r.origin, h)
		}
	}
}
