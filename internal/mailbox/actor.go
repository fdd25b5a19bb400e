package mailbox

import (
	"hash/maphash"
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
	marks  visitMarks      // if it is one
}

// joined returns the senders but the first that wait for the verdict.
func (it *item) joined() []address {
	if it.others == nil {
		return nil
	}
	return *it.others
}

// is reports whether the item's id is the given bit of the given span.
func (it *item) is(span uint32, bit uint8) bool { return it.span == span && it.bit == bit }

// address is the destination of a verdict.
type address struct {
	sender Sender
	handle event.Handle
}

// actor is the queue of one key that has events here. It is in exactly one queue or
// state, named by wait. Its fields up to keyOwn serve a delivery.
type actor struct {
	part      *part
	running   *item
	head      *item // waiting events, oldest first
	tail      *item
	worker    *worker       // the worker that the key sticks to
	since     clock.Instant // when the wait began
	heldUntil clock.Instant // the first event must not run before this
	depth     int32         // number of waiting events, at most itemsMax
	wait      Wait
	keyOwn    bool // key is a copy; otherwise it lies in the memory of the first event
	fails     bool // an event of the key has failed here, for records alone
	visited   bool // Boxes.visits has visitors of it

	key        event.Key
	workers    uint32       // workers.generation when worker was chosen
	place      uint32       // index in Boxes.actors
	hash       uint32       // of the key, for Boxes.keys
	retryIndex int32        // index in Boxes.retrying
	inQueue    uint64       // its number in a worker's queue
	inPart     neighbors    // its neighbours in its partition
	id         ring.KeyHash // of the key
}

// ref returns the reference that Boxes.keys holds for the actor.
func (a *actor) ref() uint32 { return a.place + 1 }

// keepKey copies the key of an actor that outlives an event: the old key lies in the
// event's memory, often that of a whole frame.
func (a *actor) keepKey() {
	if !a.keyOwn && (a.head != nil || a.running != nil || a.visited) {
		a.key, a.keyOwn = event.Key(strings.Clone(string(a.key))), true
	}
}

// search returns the item whose id has a bit of a span, or nil.
func (a *actor) search(span uint32, bit uint8) *item {
	if a.running != nil && a.running.is(span, bit) {
		return a.running
	}
	it := a.head
	for it != nil && !it.is(span, bit) {
		it = it.next
	}
	return it
}

type neighbors struct{ prev, next *actor }

func (a *actor) pushBack(it *item) {
	if a.tail == nil {
		a.head = it
	} else {
		a.tail.next = it
	}
	a.tail = it
	a.depth++
}

func (a *actor) pushFront(it *item) {
	it.next = a.head
	a.head = it
	if a.tail == nil {
		a.tail = it
	}
	a.depth++
}

func (a *actor) popFront() *item {
	it := a.head
	a.head, it.next = it.next, nil
	if a.head == nil {
		a.tail = nil
	}
	a.depth--
	return it
}

// remove removes a waiting item from any position of the queue.
func (a *actor) remove(it *item) {
	if it == a.head {
		a.popFront()
		return
	}
	before := a.head
	for before.next != it {
		before = before.next
	}
	before.next, it.next = it.next, nil
	if a.tail == it {
		a.tail = before
	}
	a.depth--
}

// actor returns the actor of a key, or nil.
func (b *Boxes) actor(key event.Key, hash uint32) *actor {
	ref := b.keys.find(hash, func(ref uint32) bool { return b.actors.at(ref-1).key == key })
	if ref == 0 {
		return nil
	}
	return b.actors.at(ref - 1)
}

func (b *Boxes) hashOfKey(key event.Key) uint32 {
	return uint32(maphash.String(b.seed, string(key)))
}

// activate creates the actor of a key.
func (b *Boxes) activate(p *part, key event.Key, hash uint32, id ring.KeyHash) *actor {
	a, place := b.actors.get()
	a.key, a.place, a.hash, a.id = key, place, hash, id
	p.addActor(a)
	b.keys.add(a.hash, a.ref())
	return a
}

// passivate frees the actor of a key without events.
func (b *Boxes) passivate(a *actor) {
	if a.visited {
		delete(b.visits.of, a)
	}
	a.part.removeActor(a)
	b.keys.remove(a.hash, a.ref())
	b.actors.put(a.place)
}
