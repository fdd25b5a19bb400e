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

// item is one event that is here: it waits in its actor or runs. It says itself what
// the way of most events needs, so that nothing reads the event between its arrival
// and its delivery: by then no cache knows it any more. The first of its two cache
// lines is what its delivery needs, the second is for its verdict.
type item struct {
	event    *event.Event
	actor    *actor
	next     *item // behind it in its actor
	arrival  *arrival
	delivery event.DeliveryID // 0 while it waits
	place    uint32           // in Boxes.items
	attempts uint32           // of the event
	crashes  uint32           // likewise
	span     uint32           // in Boxes.spans
	bytes    uint32           // what it counts in Boxes.bytes
	bit      uint8            // of its id in that span
	copied   bool             // it is a copy, and the broker has not shown that its id is its own

	id     event.MessageID // of the event
	first  address         // who sent it first
	joined []address       // who else waits for its verdict, mostly nobody
}

// is reports whether the id of an item has that bit of that span.
func (it *item) is(span uint32, bit uint8) bool { return it.span == span && it.bit == bit }

// address is where a verdict goes.
type address struct {
	sender Sender
	handle event.Handle
}

// actor is the queue of one key that has events here. At any time it is in the one
// place that wait names. The first of its two cache lines is what a delivery needs.
type actor struct {
	part      *part
	running   *item
	head      *item // waiting events, oldest first
	tail      *item
	worker    *worker       // to whom the key sticks
	since     clock.Instant // when the wait began
	heldUntil clock.Instant // the first event is not to run before
	depth     int32         // how many wait, at most itemsMax
	wait      Wait
	keyOwn    bool // key is a copy of ours; else it lives in the memory of the first event

	key       event.Key
	workers   uint32 // workers.generation when worker was chosen
	place     uint32 // in Boxes.actors
	hash      uint32 // of the key
	heldIndex int32  // in Boxes.held
	inQueue   uint64 // its number in a worker's queue
	inPart    links  // its neighbours in its partition
	_         [8]byte
}

// ref returns what Boxes.keys has under the hash of the key.
func (a *actor) ref() uint32 { return a.place + 1 }

// keepKey gives an actor that outlives an event a key of its own: the old one lies
// in the event's memory, and often in that of a whole frame.
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

type links struct{ prev, next *actor }

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

// remove takes a waiting item out from anywhere in the queue.
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

// part is what the machine knows about one partition.
type part struct {
	number   ring.Partition
	gate     ownership.Gate
	token    ownership.Token
	running  int            // deliveries of any tenure that are not over
	withheld []ring.KeyHash // keys for which an open gate is closed still
	actors   *actor         // all active keys of the partition, linked by inPart

	// What the window remembers under serials before this one is for the next owner,
	// unless the partition is ours. What comes later is not: the next owner may be faster
	// than our table, and it may be us.
	leaves uint64
}

// ours reports whether events for the partition are taken in: it is ours, even if
// an earlier tenure may still run.
func (p *part) ours() bool { return p.gate == ownership.Open || p.gate == ownership.Waiting }

// mayRun reports whether the gate lets a key through.
func (p *part) mayRun(key event.Key) bool {
	return p.gate == ownership.Open && (len(p.withheld) == 0 || !p.withholds(key))
}

func (p *part) withholds(key event.Key) bool {
	_, found := slices.BinarySearch(p.withheld, ring.HashOf(string(key)))
	return found
}

func (p *part) link(a *actor) {
	a.part = p
	a.inPart = links{next: p.actors}
	if p.actors != nil {
		p.actors.inPart.prev = a
	}
	p.actors = a
}

func (p *part) unlink(a *actor) {
	if a.inPart.prev == nil {
		p.actors = a.inPart.next
	} else {
		a.inPart.prev.inPart.next = a.inPart.next
	}
	if a.inPart.next != nil {
		a.inPart.next.inPart.prev = a.inPart.prev
	}
	a.inPart = links{}
}

// heldHeap holds the actors whose retry is not due yet, the next one first.
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

// arrival is what came in with one call of Accept and is still here. Items of one
// call share it, so that an event that ends has no neighbours of other calls to touch.
type arrival struct {
	at             clock.Instant
	items          int
	own            bool   // see Boxes.unpin
	framed         uint64 // Boxes.framed when it came
	older, younger *arrival
}

// ages lists the arrivals by age, for the age of the oldest event. All of them have items.
type ages struct {
	oldest, youngest *arrival
	free             pool[arrival]
}

// begin returns the arrival of a call, to be ended by end.
func (l *ages) begin(now clock.Instant) *arrival {
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

// end lets an arrival go in which no items are, or are any more.
func (l *ages) end(a *arrival) {
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

// freeMax is how many unused values a pool keeps. More than that is left to the
// garbage collector after a burst.
const freeMax = 4096

// pool keeps values that are not in use. Unlike sync.Pool it needs no lock and
// gives the same values in every replay.
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
