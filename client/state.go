package client

import (
	"container/list"
	"context"
	"strings"
	"sync"
	"sync/atomic"
)

// State returns the value that the last turn of the key of this event or call has left in this process, or otherwise
// the value that load returns. ctx is the context of a handler, or derived from it. T is the type of the value: a key
// may have values of several types.
//
// The handler may change the value, and need not give it back. The value is kept for the next turn of the key if this
// handler returns nil, and is returned there only if no other turn of the key came in between, in any process: so a
// handler reads what the handler before it has written, without a query. A turn whose handler does not call State
// drops the value. So does any doubt: an error, a panic, a cancelled handler, a key that has moved or was reserved, a
// worker that has come or gone, a router of an older release. The value is never durable: write to your database what
// must last, with the fence.
//
// The states of at most [WithStateMax] keys are kept, those that were used last. State returns an error of load as it is.
func State[T any](ctx context.Context, load func(context.Context) (*T, error)) (*T, error) {
	e, _ := ctx.Value(handlingKey{}).(*Event)
	if e == nil || e.run.stream == nil { // not in a handler, or in one that no router has called
		return load(ctx)
	}
	all := e.run.stream.runner.states
	of, left := all.get(e, typeOf[T]{})
	if left != nil {
		return left.(*T), nil
	}
	v, err := load(ctx)
	if err == nil && v != nil && of != nil {
		all.put(e, of, typeOf[T]{}, v)
	}
	return v, err
}

// typeOf is a comparable name of a type.
type typeOf[T any] struct{}

// WithStateMax sets the number of keys whose states are kept, see [State]: 100000 by default. With 0 State always loads.
func WithStateMax(n int) Option { return func(o *options) { o.stateMax = n } }

// stateMaxDefault is the number of keys with states without an option.
const stateMaxDefault = 100_000

// states holds the values that the last turns of keys left. It is safe for concurrent use.
type states struct {
	max int
	n   atomic.Int64 // of keys: a handler that uses no state looks only here

	mu     sync.Mutex
	byKey  map[string]*list.Element // of *kept
	recent list.List                // the last used first
	lost   map[string]int           // by key: its handlers that have lost it and still run. While they may write, no turn of it leaves states
}

// kept is the states of one key.
type kept struct {
	key        string
	partition  uint32
	stream     *stream
	token      int64
	generation uint64
	newest     Fence       // of the newest turn that had them
	user       *Event      // the handler that has them; nil: none
	values     map[any]any // by typeOf
	used       map[any]any // those of values that the user has asked for
}

// isOf reports whether the turn of e is the next one of the key, anywhere, after the turn that left the states.
func (k *kept) isOf(e *Event) bool {
	return k.user == nil && k.generation == e.run.generation && k.token == e.Fence.Token && k.stream == e.run.stream
}

// begun is called at the start of every handler. What the turn before has left is for this one alone, asked for or not: it may write
// without asking, lose its key and continue, and then the next turn begins before it has ended.
func (s *states) begun(e *Event) {
	if s.n.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(e)
}

// take makes a turn the user of the states of its key if they are sure to be the newest, and drops them otherwise.
func (s *states) take(e *Event) *kept {
	at := s.byKey[e.Key]
	if at == nil {
		return nil
	}
	k := at.Value.(*kept)
	if k.user != e {
		if e.Fence.Before(k.newest) {
			return nil // it has lost its key to a later turn, and continues
		}
		if !k.isOf(e) {
			s.remove(at)
			return nil
		}
		k.user, k.used, k.newest = e, make(map[any]any), e.Fence
		s.recent.MoveToFront(at)
	}
	return k
}

// get returns what the turn before has left, nil if there is nothing that is sure to be the newest; then the handler loads it, and puts it into of.
func (s *states) get(e *Event, name any) (of *kept, left any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.run.over() { // it is code that the handler has left behind; with the lock, since the handler may be returning
		return nil, nil
	}
	if of = s.take(e); of == nil {
		return s.add(e), nil
	}
	if left = of.values[name]; left != nil {
		of.used[name] = left
	}
	return of, left
}

// add makes a turn the user of states that it has not loaded yet: a handler may lose the key, write and end during the load. It
// returns nil if the turn may leave none.
func (s *states) add(e *Event) *kept {
	if s.lost[e.Key] > 0 {
		e.run.generation = 0 // as in remove
	}
	if s.max == 0 || e.run.generation == 0 || s.byKey[e.Key] != nil { // the states of a later turn
		return nil
	}
	if s.byKey == nil {
		s.byKey = make(map[string]*list.Element)
	}
	k := &kept{
		key:       strings.Clone(e.Key), // the event's strings share the memory of their frame
		partition: e.run.item.Partition, stream: e.run.stream, token: e.Fence.Token, generation: e.run.generation,
		newest: e.Fence, user: e, values: make(map[any]any), used: make(map[any]any),
	}
	s.byKey[k.key] = s.recent.PushFront(k)
	s.n.Add(1)
	if s.recent.Len() > s.max {
		s.remove(s.recent.Back())
	}
	return k
}

// put keeps a state that a handler has loaded, unless those of its turn were dropped meanwhile.
func (s *states) put(e *Event, of *kept, name, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.byKey[of.key]; at != nil && at.Value == of && !e.run.over() {
		of.values[name], of.used[name] = value, value
	}
}

func (s *states) remove(at *list.Element) {
	k := at.Value.(*kept)
	if k.user != nil {
		k.user.run.generation = 0 // it may still change what it has here, so what it loads from now on is not kept
	}
	s.recent.Remove(at)
	delete(s.byKey, k.key)
	s.n.Add(-1)
}

// lose counts handlers that have lost their keys and still run, and drops the states of these keys: a later turn may have loaded them before the
// handler's last write.
func (s *states) lose(events []*Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		s.lost = make(map[string]int)
	}
	for _, e := range events {
		s.lost[strings.Clone(e.Key)]++ // as in add
		if at := s.byKey[e.Key]; at != nil {
			s.remove(at)
		}
	}
}

// returned takes back what lose has counted for a handler, which has returned.
func (s *states) returned(e *Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost[e.Key]--; s.lost[e.Key] == 0 {
		delete(s.lost, e.Key)
	}
}

// done reports whether what a handler leaves may be kept: it has returned nil while the key was still its own. One that had lost it may have
// written after the next turn had read. It is not cancelled, since it has returned.
func (s *states) done(e *Event, err error) bool {
	return err == nil && (s.n.Load() == 0 || e.run.ended() == nil && !e.run.stream.passed(&e.run.item))
}

// ended is called at the end of every handler. It keeps the values that the handler has asked for if it has done its
// work, and drops all others of the key. So a handler whose loss of the key nobody has noticed drops those of the turn that runs now: that may
// have loaded them before this one's last write.
func (s *states) ended(e *Event, done bool) {
	if s.n.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.byKey[e.Key]
	if at == nil {
		return
	}
	k := at.Value.(*kept)
	if k.user != e || !done || len(k.used) == 0 || e.run.stream.over.Load() { // it would only keep the memory of a stream that has ended
		s.remove(at)
		return
	}
	k.user, k.values, k.used = nil, k.used, nil
}

// forget drops the states of partitions that are taken back.
func (s *states) forget(of *stream, hit func(partition uint32) bool) {
	if s.n.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.recent.Front(); at != nil; {
		next := at.Next()
		if k := at.Value.(*kept); k.stream == of && hit(k.partition) {
			s.remove(at)
		}
		at = next
	}
}
