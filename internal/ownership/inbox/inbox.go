// Package inbox is the application's half of rule 7 of the ownership protocol: it tracks the
// deliveries of a worker on one stream, and their deadlines.
//
// It is a pure machine: time is an argument, and an [Inbox] is not safe for
// concurrent use. The SDK (package client) drives it with goroutines and a stream,
// the simulator with an event loop.
package inbox

import (
	"iter"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// Inbox holds the deliveries of one stream. A delivery is a T of its user; the Inbox identifies
// it by its [Item].
//
// A deadline belongs to one delivery. Deliveries that are not revoked share the newest
// deadline; a Revoke freezes a copy of it.
type Inbox[T any] struct {
	// Results are on their way to the router: the sender removes them.
	Results []event.Result

	waiting list[T] // not started
	running list[T] // started; their deadline is newest
	frozen  list[T] // started, then revoked: each has its own deadline
	lost    list[T] // started, and cancelled for good: their deadline has passed, or they took too long

	newest clock.Instant // deadline of unrevoked deliveries; in the past until the first Pong
	pings  [8]ping       // those that may still be answered, a ring by k
	k      uint64        // number of the newest ping

	suspended bool // the router lets nothing start
	draining  bool // we let nothing start
	broken    bool // the stream has ended: deadlines stay, results have nowhere to go
}

// ping is one Ping that went out.
type ping struct {
	k  uint64
	at clock.Instant // before it was sent
}

// Item is the Inbox's part of a delivery. The first three fields are set before
// Give and never after.
type Item[T any] struct {
	Of        *T // the delivery that this is a part of
	ID        event.DeliveryID
	Partition uint32

	list       *list[T] // the one that it is in, nil for none
	prev, next *Item[T]
	deadline   clock.Instant // frozen or lost: of this delivery alone
}

// Give adds a delivery to the waiting ones.
func (b *Inbox[T]) Give(it *Item[T]) {
	if b.draining {
		b.refuse(it)
		return
	}
	b.waiting.push(it)
}

// Take returns the next delivery to start, nil if there is none or none may start: a
// delivery starts only while the deadline of the newest Pong lies ahead. now must
// have been read right before.
func (b *Inbox[T]) Take(now clock.Instant) *T {
	if !b.Startable() || !now.Before(b.newest) {
		return nil
	}
	it := b.waiting.head
	it.move(&b.running)
	return it.Of
}

// Startable reports whether Take would return a delivery, judged without the clock.
func (b *Inbox[T]) Startable() bool {
	return b.waiting.n > 0 && !b.suspended && !b.broken
}

// End answers a delivery whose handler has returned.
func (b *Inbox[T]) End(it *Item[T], r *event.Result) {
	it.move(nil)
	if b.broken {
		return // only an answer on the same stream counts
	}
	// Copied field by field: r was written that way just before, and a copy of the whole struct would stall on these
	// stores.
	b.Results = append(b.Results, event.Result{
		Delivery: it.ID, Kind: r.Kind, TimedOut: r.TimedOut, Behind: r.Behind, To: r.To, After: r.After, Reason: r.Reason, Reply: r.Reply, Ran: r.Ran,
	})
}

// refuse answers a delivery that does not start.
func (b *Inbox[T]) refuse(it *Item[T]) {
	it.move(nil)
	if !b.broken {
		b.Results = append(b.Results, event.Result{Delivery: it.ID, Kind: event.ResultNotStarted})
	}
}

// SendPing notes a Ping that is sent after now, and returns its number.
func (b *Inbox[T]) SendPing(now clock.Instant) (k uint64) {
	b.k++
	b.pings[b.k%uint64(len(b.pings))] = ping{k: b.k, at: now}
	return b.k
}

// Pong takes a Pong in. It appends to dst the deliveries whose deadline had passed
// before it came: a deadline that has passed is never extended.
func (b *Inbox[T]) Pong(now clock.Instant, k uint64, remaining time.Duration, draining []uint64, dst []*T) []*T {
	dst = b.Check(now, dst)
	p := b.pings[k%uint64(len(b.pings))]
	if k == 0 || p.k != k || remaining <= 0 {
		return dst
	}
	// The router computed remaining after it had received the Ping, so counting from
	// before its sending is early enough.
	deadline := p.at.Add(remaining)
	b.newest = max(b.newest, deadline)
	for _, id := range draining {
		if it := b.frozen.find(event.DeliveryID(id)); it != nil {
			it.deadline = max(it.deadline, deadline)
		}
	}
	return dst
}

// Revoke takes deliveries back. Those that have not started are answered; started ones keep their
// deadlines.
func (b *Inbox[T]) Revoke(hit func(*Item[T]) bool) {
	for it := range b.waiting.all() {
		if hit(it) {
			b.refuse(it)
		}
	}
	for it := range b.running.all() {
		if hit(it) {
			it.deadline = b.newest
			it.move(&b.frozen)
		}
	}
}

// Cut takes back single deliveries that took too long. Those that have not started are answered; started ones are
// appended to dst. Their handlers must be cancelled now, although their deadline does not change.
func (b *Inbox[T]) Cut(hit func(*Item[T]) bool, dst []*T) []*T {
	b.Revoke(hit)
	for it := range b.frozen.all() {
		if hit(it) {
			it.move(&b.lost)
			dst = append(dst, it.Of)
		}
	}
	return dst
}

// Check appends to dst the running deliveries whose deadline has passed. Their handlers must be
// cancelled; these deliveries stay lost, whatever follows.
func (b *Inbox[T]) Check(now clock.Instant, dst []*T) []*T {
	if b.running.n > 0 && !now.Before(b.newest) {
		for it := range b.running.all() {
			it.deadline = b.newest
			it.move(&b.lost)
			dst = append(dst, it.Of)
		}
	}
	for it := range b.frozen.all() {
		if !now.Before(it.deadline) {
			it.move(&b.lost)
			dst = append(dst, it.Of)
		}
	}
	return dst
}

// Newest returns the deadline of the deliveries that are not revoked.
func (b *Inbox[T]) Newest() clock.Instant { return b.newest }

// Lost reports whether a delivery runs that was cancelled for good.
func (b *Inbox[T]) Lost(it *Item[T]) bool { return it.list == &b.lost }

// Shared reports whether all deliveries that have started share the deadline of those that
// are not revoked, which it returns. It never moves back.
func (b *Inbox[T]) Shared() (deadline clock.Instant, all bool) {
	return b.newest, b.frozen.n+b.lost.n == 0
}

// Deadline returns until when a delivery may run.
func (b *Inbox[T]) Deadline(it *Item[T]) clock.Instant {
	if it.list == &b.frozen || it.list == &b.lost {
		return it.deadline
	}
	return b.newest
}

// Suspend lets nothing start until Resume.
func (b *Inbox[T]) Suspend() { b.suspended = true }

// Resume ends a Suspend.
func (b *Inbox[T]) Resume() { b.suspended = false }

// Drain starts no more deliveries: waiting ones are answered as not started.
func (b *Inbox[T]) Drain() {
	b.draining = true
	for it := range b.waiting.all() {
		b.refuse(it)
	}
}

// Draining reports whether Drain was called.
func (b *Inbox[T]) Draining() bool { return b.draining }

// BreakOff records the end of the stream. Running deliveries keep their last deadline; waiting
// ones are dropped, since their results could not be sent.
func (b *Inbox[T]) BreakOff() {
	b.broken = true
	for it := range b.waiting.all() {
		it.move(nil)
	}
	b.Results = nil
}

// Started returns how many handlers run.
func (b *Inbox[T]) Started() int { return b.running.n + b.frozen.n + b.lost.n }

// Held returns how many deliveries have no answer: those that wait and those that run.
func (b *Inbox[T]) Held() int { return b.waiting.n + b.Started() }

// list is a doubly linked list through the items themselves: it costs no memory
// and no lookup to move a delivery from one to another.
type list[T any] struct {
	head, tail *Item[T]
	n          int
}

func (l *list[T]) push(it *Item[T]) {
	it.list, it.prev, it.next = l, l.tail, nil
	if l.tail == nil {
		l.head = it
	} else {
		l.tail.next = it
	}
	l.tail = it
	l.n++
}

// move takes it out of the list that it is in and puts it at the end of to, if any.
func (it *Item[T]) move(to *list[T]) {
	if l := it.list; l != nil {
		if it.prev == nil {
			l.head = it.next
		} else {
			it.prev.next = it.next
		}
		if it.next == nil {
			l.tail = it.prev
		} else {
			it.next.prev = it.prev
		}
		l.n--
		it.list, it.prev, it.next = nil, nil, nil
	}
	if to != nil {
		to.push(it)
	}
}

// all yields the items of l. The body may move the one it is given.
func (l *list[T]) all() iter.Seq[*Item[T]] {
	return func(yield func(*Item[T]) bool) {
		for it := l.head; it != nil; {
			next := it.next
			if !yield(it) {
				return
			}
			it = next
		}
	}
}

// find returns the item of a delivery, nil if it is not in l.
func (l *list[T]) find(id event.DeliveryID) *Item[T] {
	for it := l.head; it != nil; it = it.next {
		if it.ID == id {
			return it
		}
	}
	return nil
}
