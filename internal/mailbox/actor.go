package mailbox

import (
	"container/heap"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// item is one queued or running event. It copies the fields that Take needs, so that
// delivery does not touch the cold event. The first of its two cache lines serves its
// delivery, the second its verdict.
type item struct {
	event    *event.Event
	actor    *actor
	next     *item // the item behind it in its actor
	cohort   *cohort
	delivery event.DeliveryID // 0 while it waits
	place    uint32           // index in Boxes.items
	attempts uint32           // Attempts of the event
	crashes  uint32           // Crashes of the event
	span     uint32           // index in Boxes.spans
	bytes    uint32           // its part of Boxes.bytes
	bit      uint8            // of its id in that span
	copied   bool             // it is a retry-topic copy whose id the broker has not confirmed

	id     event.MessageID // ID of the event
	first  address         // the first sender
	joined []address       // further senders that wait for the verdict, usually none
}

// is reports whether the item's id is the given bit of the given span.
func (it *item) is(span uint32, bit uint8) bool { return it.span == span && it.bit == bit }

// address is the destination of a verdict.
type address struct {
	sender Sender
	handle event.Handle
}

// actor is the queue of one key that has events here. It is in exactly one queue or
// state, named by wait. The first of its two cache lines serves a delivery.
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

	key       event.Key
	workers   uint32    // workers.generation when worker was chosen
	place     uint32    // index in Boxes.actors
	hash      uint32    // of the key
	heldIndex int32     // index in Boxes.held
	inQueue   uint64    // its number in a worker's queue
	inPart    neighbors // its neighbours in its partition
	_         [8]byte
}

// ref returns the reference that Boxes.keys holds for the actor.
func (a *actor) ref() uint32 { return a.place + 1 }

// keepKey copies the key of an actor that outlives an event: the old key lies in the
// event's memory, often that of a whole frame.
func (a *actor) keepKey() {
	if !a.keyOwn && (a.head != nil || a.running != nil) {
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

// part is the state of one partition.
type part struct {
	number   ring.Partition
	gate     ownership.Gate
	token    ownership.Token
	running  int            // deliveries of any tenure that are not over
	withheld []ring.KeyHash // keys that may not run although the gate is open
	actors   *actor         // all active keys of the partition, linked by inPart

	// Window records with lower serials belong to the next owner, unless the partition is
	// ours. Later records do not: the next owner may hand its own ids over before our table
	// names it, and it may be this node.
	leaves uint64
}

// ours reports whether this node accepts events of the partition, even if an earlier
// tenure may still run.
func (p *part) ours() bool { return p.gate == ownership.Open || p.gate == ownership.Waiting }

// mayRun reports whether the gate allows a key to run.
func (p *part) mayRun(key event.Key) bool {
	return p.gate == ownership.Open && (len(p.withheld) == 0 || !p.withholds(key))
}

func (p *part) withholds(key event.Key) bool {
	_, found := slices.BinarySearch(p.withheld, ring.HashOf(string(key)))
	return found
}

func (p *part) addActor(a *actor) {
	a.part = p
	a.inPart = neighbors{next: p.actors}
	if p.actors != nil {
		p.actors.inPart.prev = a
	}
	p.actors = a
}

func (p *part) removeActor(a *actor) {
	if a.inPart.prev == nil {
		p.actors = a.inPart.next
	} else {
		a.inPart.prev.inPart.next = a.inPart.next
	}
	if a.inPart.next != nil {
		a.inPart.next.inPart.prev = a.inPart.prev
	}
	a.inPart = neighbors{}
}

// heldHeap holds the actors whose retry is not due yet, the earliest first.
type heldHeap []*actor

var _ heap.Interface = (*heldHeap)(nil)

func (h heldHeap) Len() int           { return len(h) }
func (h heldHeap) Less(i, j int) bool { return h[i].heldUntil < h[j].heldUntil }

func (h heldHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heldIndex, h[j].heldIndex = int32(i), int32(j)
}

// Push is for container/heap only.
func (h *heldHeap) Push(x any) {
	a := x.(*actor)
	a.heldIndex = int32(len(*h))
	*h = append(*h, a)
}

// Pop is for container/heap only.
func (h *heldHeap) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return a
}

// cohort is the accepted events of one call of Accept. They share their age, so that an
// event that ends touches no events of other calls.
type cohort struct {
	at             clock.Instant
	items          int
	own            bool   // its events no longer lie in the memory of a frame, see Boxes.unpin
	peerBytes      uint64 // Boxes.peerBytes when it began
	older, younger *cohort
}

// ages lists the cohorts by age. None of them is empty, so the oldest one tells the age
// of the oldest event.
type ages struct {
	oldest, youngest *cohort
	free             pool[cohort]
}

// begin returns the cohort of a call. The caller passes it to end.
func (l *ages) begin(now clock.Instant) *cohort {
	a := l.free.get()
	a.at, a.older = now, l.youngest
	if l.youngest == nil {
		l.oldest = a
	} else {
		l.youngest.younger = a
	}
	l.youngest = a
	return a
}

// end frees a cohort if it is empty.
func (l *ages) end(a *cohort) {
	if a.items > 0 {
		return
	}
	if a.older == nil {
		l.oldest = a.younger
	} else {
		a.older.younger = a.younger
	}
	if a.younger == nil {
		l.youngest = a.older
	} else {
		a.younger.older = a.older
	}
	l.free.put(a)
}

// freeMax bounds the unused values that a pool keeps after a burst.
const freeMax = 4096

// pool keeps unused values. Unlike sync.Pool it needs no lock and behaves the same in
// every replay.
type pool[T any] struct{ unused []*T }

// get returns a zero T.
func (p *pool[T]) get() *T {
	last := len(p.unused) - 1
	if last < 0 {
		return new(T)
	}
	x := p.unused[last]
	p.unused = p.unused[:last]
	return x
}

func (p *pool[T]) put(x *T) {
	var zero T
	*x = zero
	if len(p.unused) < freeMax {
		p.unused = append(p.unused, x)
	}
}
