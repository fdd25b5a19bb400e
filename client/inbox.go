package client

import (
	"time"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/event"
)

// inbox is what the router has given to us on one stream, and until when we may
// work on it: rule 7 of the ownership protocol, the application's half. It is a pure
// machine: time is an argument, and it is not safe for concurrent use.
//
// A deadline belongs to one delivery. Those that are not revoked share theirs, the
// newest; it is copied when a Revoke freezes it.
type inbox struct {
	waiting list // not started
	running list // started; their deadline is newest
	frozen  list // started, then revoked: each has its own deadline
	lost    list // started, and their deadline has passed: cancelled for good

	newest clock.Instant // the deadline of what is not revoked; the past until the first Pong
	pings  [8]ping       // those that may still be answered, a ring by k
	k      uint64        // number of the newest ping

	results   []event.Result // on their way to the router
	suspended bool           // the router lets nothing start
	draining  bool           // we let nothing start
	broken    bool           // the stream has ended: deadlines stay, results have nowhere to go
}

// ping is one Ping that went out.
type ping struct {
	k  uint64
	at clock.Instant // before it was sent
}

// give adds deliveries to what waits.
func (b *inbox) give(events []*Event) {
	for _, e := range events {
		if b.draining {
			b.answer(e, event.Result{Kind: event.ResultNotStarted})
			continue
		}
		b.waiting.push(e)
	}
}

// take returns the next delivery to start, nil if there is none or none may start: a
// delivery starts only while the deadline of the newest Pong lies ahead. now must
// have been read right before.
func (b *inbox) take(now clock.Instant) *Event {
	if b.waiting.n == 0 || b.suspended || b.broken || !now.Before(b.newest) {
		return nil
	}
	e := b.waiting.head
	e.move(&b.running)
	return e
}

// startable reports whether take would return something, as far as can be told
// without the clock.
func (b *inbox) startable() bool {
	return b.waiting.n > 0 && !b.suspended && !b.broken
}

// end answers a delivery whose handler has returned.
func (b *inbox) end(e *Event, r event.Result) {
	e.move(nil)
	b.answer(e, r)
}

func (b *inbox) answer(e *Event, r event.Result) {
	if b.broken {
		return // only an answer on the same stream counts
	}
	r.Delivery = event.DeliveryID(e.run.id)
	b.results = append(b.results, r)
}

// sendPing notes a Ping that is sent after now, and returns its number.
func (b *inbox) sendPing(now clock.Instant) (k uint64) {
	b.k++
	b.pings[b.k%uint64(len(b.pings))] = ping{k: b.k, at: now}
	return b.k
}

// pong takes a Pong in. It appends to dst the deliveries whose deadline had passed
// before it came: a deadline that has passed is never extended.
func (b *inbox) pong(now clock.Instant, k uint64, remaining time.Duration, draining []uint64, dst []*Event) []*Event {
	dst = b.check(now, dst)
	p := b.pings[k%uint64(len(b.pings))]
	if k == 0 || p.k != k || remaining <= 0 {
		return dst
	}
	// The router computed remaining after it had received the Ping, so counting from
	// before its sending is early enough.
	deadline := p.at.Add(remaining)
	b.newest = max(b.newest, deadline)
	for _, id := range draining {
		if e := b.frozen.find(id); e != nil {
			e.run.deadline = max(e.run.deadline, deadline)
		}
	}
	return dst
}

// revoke takes deliveries back. Those that have not started are answered; the
// deadlines of the others stay where they are.
func (b *inbox) revoke(hit func(*Event) bool) {
	for e := range b.waiting.all() {
		if hit(e) {
			e.move(nil)
			b.answer(e, event.Result{Kind: event.ResultNotStarted})
		}
	}
	for e := range b.running.all() {
		if hit(e) {
			e.run.deadline = b.newest
			e.move(&b.frozen)
		}
	}
}

// check appends to dst the running deliveries whose deadline has passed. Their
// handlers must be cancelled; they stay lost, whatever comes later.
func (b *inbox) check(now clock.Instant, dst []*Event) []*Event {
	if b.running.n > 0 && !now.Before(b.newest) {
		for e := range b.running.all() {
			e.run.deadline = b.newest
			e.move(&b.lost)
			dst = append(dst, e)
		}
	}
	for e := range b.frozen.all() {
		if !now.Before(e.run.deadline) {
			e.move(&b.lost)
			dst = append(dst, e)
		}
	}
	return dst
}

// deadline returns until when e may run.
func (b *inbox) deadline(e *Event) clock.Instant {
	if e.run.list == &b.frozen || e.run.list == &b.lost {
		return e.run.deadline
	}
	return b.newest
}

// drain starts nothing any more: what waits is answered as not started.
func (b *inbox) drain() {
	b.draining = true
	b.revoke(func(e *Event) bool { return e.run.list == &b.waiting })
}

// breakOff says that the stream has ended. What runs keeps its last deadline; what
// waits is forgotten, since nobody would hear of its end.
func (b *inbox) breakOff() {
	b.broken = true
	for e := range b.waiting.all() {
		e.move(nil)
	}
	b.results = nil
}

// started returns how many handlers run.
func (b *inbox) started() int { return b.running.n + b.frozen.n + b.lost.n }

// list is a doubly linked list through the events themselves: it costs no memory
// and no lookup to move an event from one to another.
type list struct {
	head, tail *Event
	n          int
}

func (l *list) push(e *Event) {
	e.run.list, e.run.prev, e.run.next = l, l.tail, nil
	if l.tail == nil {
		l.head = e
	} else {
		l.tail.run.next = e
	}
	l.tail = e
	l.n++
}

// move takes e out of the list that it is in and puts it at the end of to, if any.
func (e *Event) move(to *list) {
	if l := e.run.list; l != nil {
		if e.run.prev == nil {
			l.head = e.run.next
		} else {
			e.run.prev.run.next = e.run.next
		}
		if e.run.next == nil {
			l.tail = e.run.prev
		} else {
			e.run.next.run.prev = e.run.prev
		}
		l.n--
		e.run.list, e.run.prev, e.run.next = nil, nil, nil
	}
	if to != nil {
		to.push(e)
	}
}

// all yields the events of l. The body may move the one it is given.
func (l *list) all() func(yield func(*Event) bool) {
	return func(yield func(*Event) bool) {
		for e := l.head; e != nil; {
			next := e.run.next
			if !yield(e) {
				return
			}
			e = next
		}
	}
}

// find returns the event of a delivery, nil if it is not in l.
func (l *list) find(id uint64) *Event {
	for e := range l.all() {
		if e.run.id == id {
			return e
		}
	}
	return nil
}
