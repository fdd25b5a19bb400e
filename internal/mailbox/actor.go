package mailbox

import (
	"hash/maphash"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// item is one queued or running event. It copies the fields that Take needs, so that
// delivery does not touch the cold event. The first of its two cache lines serves its
// delivery, the second its verdict.
type item struct {
	ref      event.Ref
	actor    *actor           // nil: the item is not in use
	next     *item            // the item behind it in its actor
	delivery event.DeliveryID // 0 while it waits
	place    uint32           // index in Boxes.items
	attempts uint32           // Attempts of the event
	crashes  uint32           // Crashes of the event
	bytes    uint32           // its part of Boxes.bytes, see weigh

	cohort *cohort
	id     event.MessageID // of the event
	first  address         // the first sender
	others *[]address      // further senders that wait for the verdict; usually nil
	span   uint32          // index in Boxes.spans
	bit    uint8           // of its id in that span
	copied bool            // it is a retry-topic copy whose id the broker has not confirmed
	visit  bool            // it is a call or a reservation, see visits
}

// joined returns the senders but the first that wait for the verdict.
func (it *item) joined() []address {
	if it.others == nil {
		return nil
	}
	return *it.others
}

// hasSender reports whether a sender waits for the verdict.
func (it *item) hasSender(from address) bool {
	return it.first == from || slices.Contains(it.joined(), from)
}

func (it *item) addSender(from address) {
	all := append(it.joined(), from)
	it.others = &all
}

// is reports whether the item's id is the given bit of the given span.
func (it *item) is(span uint32, bit uint8) bool { return it.span == span && it.bit == bit }

// address is the destination of a verdict.
type address struct {
	sender Sender
	handle event.Handle
}

// actor is the queue of one key that has events here. It is in exactly one queue or
// state, named by wait. It fills two cache lines.
type actor struct {
	part      *part
	running   *item
	itemQueue               // waiting events
	worker    *worker       // the worker that the key sticks to
	since     clock.Instant // when the wait began
	heldUntil clock.Instant // the first event must not run before this

	key     event.Key
	workers uint32 // workers.generation when worker was chosen
	place   uint32 // index in Boxes.actors
	hash    uint32 // of the key, in Boxes.actors
	wait    Wait
	keyOwn  bool         // key is a copy; otherwise it lies in the memory of the first event
	fails   bool         // an event of the key has failed here, for records alone
	visited bool         // Boxes.visits has visitors of it
	waitsAt uint64       // its number in a worker's queue, or its index in Boxes.retrying
	inPart  neighbors    // its neighbours in its partition
	id      ring.KeyHash // of the key
}

// keepKey copies the key of an actor that outlives an event: the old key lies in the
// event's memory, often that of a whole frame.
func (a *actor) keepKey() {
	if !a.keyOwn && (a.head != nil || a.running != nil || a.visited) {
		a.key, a.keyOwn = event.Key(strings.Clone(string(a.key))), true
	}
}

type neighbors struct{ prev, next *actor }

// itemQueue is a queue of items that wait, linked by item.next.
type itemQueue struct {
	head, tail *item // oldest first
	depth      int32 // their number, at most itemsMax
}

// all yields the items. The yielded item may be removed.
func (q *itemQueue) all(yield func(*item) bool) {
	for it := q.head; it != nil; {
		next := it.next
		if !yield(it) {
			return
		}
		it = next
	}
}

// search returns the item whose id has a bit of a span, or nil.
func (q *itemQueue) search(span uint32, bit uint8) *item {
	it := q.head
	for it != nil && !it.is(span, bit) {
		it = it.next
	}
	return it
}

func (q *itemQueue) pushBack(it *item) {
	if q.tail == nil {
		q.head = it
	} else {
		q.tail.next = it
	}
	q.tail = it
	q.depth++
}

func (q *itemQueue) pushFront(it *item) {
	it.next, q.head = q.head, it
	if q.tail == nil {
		q.tail = it
	}
	q.depth++
}

func (q *itemQueue) popFront() *item {
	it := q.head
	q.head, it.next = it.next, nil
	if q.head == nil {
		q.tail = nil
	}
	q.depth--
	return it
}

// remove removes an item from any position of the queue.
func (q *itemQueue) remove(it *item) {
	if it == q.head {
		q.popFront()
		return
	}
	before := q.head
	for before.next != it {
		before = before.next
	}
	before.next, it.next = it.next, nil
	if q.tail == it {
		q.tail = before
	}
	q.depth--
}

// actor returns the actor of a key, or nil.
func (b *Boxes) actor(key event.Key, hash uint32) *actor {
	return b.actors.find(hash, func(a *actor) bool { return a.key == key })
}

func (b *Boxes) hashOfKey(key event.Key) uint32 {
	return uint32(maphash.String(b.seed, string(key)))
}

// activate creates the actor of a key.
func (b *Boxes) activate(p *part, key event.Key, hash uint32, id ring.KeyHash) *actor {
	a, place := b.actors.add(hash)
	a.key, a.place, a.hash, a.id = key, place, hash, id
	p.addActor(a)
	return a
}

// passivate frees the actor of a key without events.
func (b *Boxes) passivate(a *actor) {
	if a.visited {
		delete(b.visits.of, a)
	}
	a.part.removeActor(a)
	b.actors.drop(a.hash, a.place)
}
