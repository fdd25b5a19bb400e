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

// settle sends the verdicts on relayed events back, and returns all others. Mostly no event is
// relayed, and the given verdicts are returned.
func (r *relayed) settle(verdicts []event.Verdict, peers Answerer) []event.Verdict {
	if !slices.ContainsFunc(verdicts, func(v event.Verdict) bool { return v.Handle.IsRelayed() }) {
		return verdicts
	}
	own := make([]event.Verdict, 0, len(verdicts))
	for _, v := range verdicts {
		if !v.Handle.IsRelayed() {
			own = append(own, v)
		} else if from, ok := r.take(v.Handle); ok {
			v.Handle = from.handle
			peers.Answer(from.stream, []event.Verdict{v})
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
