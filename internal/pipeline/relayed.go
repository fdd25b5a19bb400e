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
	last   uint64                  // serial number of the newest handle
	origin map[event.Handle]origin // by the handle of this node
}

// origin is the destination of the verdict on a relayed event.
type origin struct {
	stream forward.StreamID
	handle event.Handle
}

// admit gives the events of an arrival handles of this node.
func (r *relayed) admit(a forward.Arrival) *event.Entry {
	messages := make([]event.Message, len(a.Events))
	for i := range a.Events {
		messages[i].Event = a.Events[i].Event()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	first := event.NewRelayedHandle(r.last, 0)
	for i := range messages {
		r.origin[first|event.Handle(i)] = origin{a.From, messages[i].Event.Handle}
	}
	entry := event.NewEntry(messages...)
	entry.Fresh = event.AllBits(len(messages))
	entry.SetFirst(first)
	return entry
}

// settle sends the verdicts on relayed events back, and returns all others. Mostly no event is
// relayed, and the given verdicts are returned.
func (r *relayed) settle(done []event.Set, verdicts []event.Verdict, peers Answerer) ([]event.Set, []event.Verdict) {
	theirs, done, verdicts := split(done, verdicts, event.Handle.IsRelayed)
	r.answer(theirs, peers)
	return done, verdicts
}

// answer sends verdicts on relayed events back. An event stays after a failure that its owner only reports.
func (r *relayed) answer(verdicts []event.Verdict, peers Answerer) {
	for _, v := range verdicts {
		r.mu.Lock()
		from, ok := r.origin[v.Handle]
		if v.Kind != event.Attempted {
			delete(r.origin, v.Handle)
		}
		r.mu.Unlock()
		if ok {
			v.Handle = from.handle
			peers.Answer(from.stream, []event.Verdict{v})
		}
	}
}

// split separates the verdicts on events with handles of one kind, as is reports, from the others; each event of a
// set gets a verdict of its own. Mostly there are none, and the given slices are returned unchanged.
func split(done []event.Set, verdicts []event.Verdict, is func(event.Handle) bool) (theirs []event.Verdict, _ []event.Set, _ []event.Verdict) {
	isSet := func(s event.Set) bool { return is(s.First) }
	if slices.ContainsFunc(done, isSet) {
		for _, s := range done {
			if !isSet(s) {
				continue
			}
			for i := range s.Events.All() {
				theirs = append(theirs, event.Verdict{Handle: s.First | event.Handle(i), Kind: event.Done})
			}
		}
		done = slices.DeleteFunc(slices.Clone(done), isSet)
	}
	isOne := func(v event.Verdict) bool { return is(v.Handle) }
	if slices.ContainsFunc(verdicts, isOne) {
		for _, v := range verdicts {
			if isOne(v) {
				theirs = append(theirs, v)
			}
		}
		verdicts = slices.DeleteFunc(slices.Clone(verdicts), isOne)
	}
	return theirs, done, verdicts
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
