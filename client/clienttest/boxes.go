package clienttest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Kind is the kind of a delivery's outcome.
type Kind = client.ResultKind

// The kinds of outcome.
const (
	Done       = client.ResultDone            // the handler returned nil
	Retry      = client.ResultRetry           // the handler failed
	Reject     = client.ResultReject          // the handler returned client.Reject
	Cancelled  = client.ResultCancelled       // the handler was cancelled because the key was lost
	NotStarted = Kind(event.ResultNotStarted) // the handler was not called
	Lost       = Kind(event.ResultLost)       // the stream broke, and the lease ran out without an answer
)

// Outcome is the router's record of the end of a delivery.
type Outcome struct {
	Kind   Kind
	After  time.Duration // Retry: the delay that the handler asked for, 0 for none
	Reason string        // Retry, Reject: the error's text
}

// String describes the outcome in words.
func (o Outcome) String() string {
	switch {
	case o.After > 0:
		return fmt.Sprintf("%v after %v: %s", o.Kind, o.After, o.Reason)
	case o.Reason != "":
		return fmt.Sprintf("%v: %s", o.Kind, o.Reason)
	}
	return o.Kind.String()
}

// boxes are the mailboxes: one queue for each key, with at most one running delivery.
type boxes struct {
	wake func() // wakes the workers; called without the lock

	mu      sync.Mutex
	last    event.DeliveryID // counts deliveries, and is the turn of the newest one
	keys    map[event.Key]*box
	ready   []*box // keys with waiting deliveries and no running one, in order
	running map[event.DeliveryID]*box
	tokens  map[ring.Partition]int64

	turns       map[event.Key]turns
	generations uint64 // counts the changes of turns
}

// turns are the last turns of a key, all at one worker: see client.State.
type turns struct {
	worker     event.WorkerID
	generation uint64
}

// box is one key with deliveries.
type box struct {
	key     event.Key
	queue   []*Delivery
	running *Delivery
}

func newBoxes() *boxes {
	return &boxes{
		keys:    make(map[event.Key]*box),
		running: make(map[event.DeliveryID]*box),
		tokens:  make(map[ring.Partition]int64),
		turns:   make(map[event.Key]turns),
	}
}

// add queues a delivery.
func (b *boxes) add(d *Delivery) {
	b.mu.Lock()
	key := d.event.Key
	x := b.keys[key]
	if x == nil {
		x = &box{key: key}
		b.keys[key] = x
	}
	x.queue = append(x.queue, d)
	if x.running == nil && len(x.queue) == 1 {
		b.ready = append(b.ready, x)
	}
	b.mu.Unlock()
	b.wake()
}

// close moves a partition away and back: its waiting deliveries end as not started, and later
// ones have a higher token.
func (b *boxes) close(p ring.Partition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens[p]++
	b.ready = slices.DeleteFunc(b.ready, func(x *box) bool { return ring.PartitionOf(string(x.key)) == p })
	for _, x := range b.keys {
		if ring.PartitionOf(string(x.key)) != p {
			continue
		}
		var kept []*Delivery
		for _, d := range x.queue {
			if d.visit != nil { // its caller has it sent to the next owner
				kept = append(kept, d)
				continue
			}
			d.end(event.Result{Kind: event.ResultNotStarted})
		}
		x.queue = kept
		if x.running == nil && len(kept) > 0 {
			b.ready = append(b.ready, x)
		}
		b.drop(x)
	}
}

// drop forgets a key that has no delivery left. The lock is held.
func (b *boxes) drop(x *box) {
	if x.running == nil && len(x.queue) == 0 {
		delete(b.keys, x.key)
	}
}

// WorkerUp implements app.Boxes. Any worker takes any key.
func (b *boxes) WorkerUp(event.WorkerID) {}

// WorkerGone implements app.Boxes.
func (b *boxes) WorkerGone(event.WorkerID) {}

// Take implements app.Boxes.
func (b *boxes) Take(w event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	for limit > 0 {
		i := slices.IndexFunc(b.ready, func(x *box) bool { return x.queue[0].isReservation() == (w == event.Keeper) })
		if i < 0 {
			break
		}
		x := b.ready[i]
		b.ready = slices.Delete(b.ready, i, i+1)
		x.running, x.queue = x.queue[0], x.queue[1:]
		b.last++
		b.running[b.last] = x
		p := ring.PartitionOf(string(x.key))
		fence := x.running.fence(event.Fence{Token: 1 + b.tokens[p], Turn: uint64(b.last)})
		dst = append(dst, event.Delivery{
			ID: b.last, Ref: event.RefTo(&x.running.event), Size: uint32(x.running.event.Bytes()), Key: ring.HashOf(string(x.key)), Partition: p, Attempt: x.running.attempt, Token: fence.Token, Turn: fence.Turn,
			Generation: b.generation(x.key, w),
		})
		limit--
	}
	return dst
}

// generation returns a number that is the same for the turns of a key until another worker has one. The lock is held.
func (b *boxes) generation(key event.Key, w event.WorkerID) uint64 {
	if b.turns[key].worker != w {
		b.generations++
		b.turns[key] = turns{worker: w, generation: b.generations}
	}
	return b.turns[key].generation
}

// expire notes that other owners may have had turns of any key.
func (b *boxes) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.turns)
}

// Grant implements app.Boxes.
func (b *boxes) Grant(id event.DeliveryID, g event.Grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.running[id]; x != nil {
		x.running.router.visits.grant(x.running.visit, g)
	}
}

// runningID returns the id of a delivery that runs, else 0.
func (b *boxes) runningID(d *Delivery) event.DeliveryID {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, id := b.find(d)
	return id
}

// find returns whether the delivery waits, and its id if it runs. The lock is held.
func (b *boxes) find(d *Delivery) (waits bool, id event.DeliveryID) {
	if x := b.keys[d.event.Key]; x != nil && slices.Contains(x.queue, d) {
		return true, 0
	}
	for id, x := range b.running {
		if x.running == d {
			return false, id
		}
	}
	return false, 0
}

// remove removes a delivery if it waits, and else returns its id, 0 if it has ended.
func (b *boxes) remove(d *Delivery) (waited bool, id event.DeliveryID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waits, id := b.find(d)
	if !waits {
		return false, id
	}
	x := b.keys[d.event.Key]
	x.queue = slices.DeleteFunc(x.queue, func(one *Delivery) bool { return one == d })
	if len(x.queue) == 0 {
		b.ready = slices.DeleteFunc(b.ready, func(one *box) bool { return one == x })
	}
	b.drop(x)
	return true, 0
}

// Finish implements app.Boxes.
func (b *boxes) Finish(results []event.Result) {
	b.mu.Lock()
	for _, r := range results {
		x := b.running[r.Delivery]
		if x == nil {
			continue
		}
		delete(b.running, r.Delivery)
		if d := x.running; d.visit == nil {
			d.end(r)
		} else if d.router.visits.end(d.visit, &r) {
			x.queue = slices.Insert(x.queue, 0, d)
		}
		x.running = nil
		if len(x.queue) > 0 {
			b.ready = append(b.ready, x)
		}
		b.drop(x)
	}
	b.mu.Unlock()
	b.wake()
}
