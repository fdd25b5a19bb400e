package membroker

import (
	"cmp"
	"context"
	"slices"

	"github.com/ringfence/router/internal/base/signal"
)

// Consumer is one consumer of a subscription. All methods but Receive are safe for
// concurrent use; Receive is for one goroutine at a time.
type Consumer interface {
	// Receive returns the entries that have been sent, at least one. It blocks until there is
	// one, and returns ErrClosed when the consumer is closed, or ctx's error.
	Receive(ctx context.Context) ([]Entry, error)
	// Permit lets the broker send n more events.
	Permit(n int)
	// Ack acknowledges events. Unknown events are ignored.
	Ack(acks ...Ack)
	// Close gives everything back that is not acked. It may be called more than once.
	Close()
}

// consumer is a Consumer in the broker's own process.
type consumer struct {
	broker        *Broker
	subscriptions []*subscription
	wake          chan struct{} // capacity 1: the inbox or closed has changed

	// Guarded by the broker's mutex.
	inbox   []Entry
	permits int
	unacked int
	closed  bool
}

// Permit is Consumer.Permit.
func (c *consumer) Permit(n int) {
	c.broker.mu.Lock()
	defer c.broker.mu.Unlock()
	c.permits += max(0, n)
	c.dispatch()
}

// Receive is Consumer.Receive.
func (c *consumer) Receive(ctx context.Context) ([]Entry, error) {
	for {
		c.broker.mu.Lock()
		inbox, closed := c.inbox, c.closed
		c.inbox = nil
		c.broker.mu.Unlock()
		switch {
		case closed:
			return nil, ErrClosed
		case len(inbox) > 0:
			return inbox, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Ack is Consumer.Ack.
func (c *consumer) Ack(acks ...Ack) {
	c.broker.mu.Lock()
	defer c.broker.mu.Unlock()
	for _, a := range acks {
		// Pulsar lets any consumer of a shared subscription ack events of another one.
		for _, s := range c.subscriptions {
			if s.ack(a) {
				break
			}
		}
	}
	c.dispatch()
}

// Close is Consumer.Close.
func (c *consumer) Close() {
	c.broker.mu.Lock()
	defer c.broker.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	c.inbox = nil
	now := wallClock()
	for _, s := range c.subscriptions {
		s.consumers = slices.DeleteFunc(s.consumers, func(other *consumer) bool { return other == c })
		for _, d := range s.heldBy(c) {
			s.takeBack(d, now)
		}
	}
	c.dispatch()
	signal.Set(c.wake)
}

func (c *consumer) dispatch() {
	for _, s := range c.subscriptions {
		s.dispatch(c.broker.cfg)
	}
}

// heldBy returns the deliveries to a consumer, oldest first.
func (s *subscription) heldBy(c *consumer) []*delivery {
	var held []*delivery
	for _, d := range s.out {
		if d.to == c {
			held = append(held, d)
		}
	}
	slices.SortFunc(held, func(a, b *delivery) int {
		return cmp.Or(cmp.Compare(a.id.Ledger, b.id.Ledger), cmp.Compare(a.id.Entry, b.id.Entry))
	})
	return held
}

// fifo is a queue of entries.
type fifo struct {
	entries []queued
	head    int
	n       int // events
}

func (f *fifo) len() int    { return len(f.entries) - f.head }
func (f *fifo) events() int { return f.n }

func (f *fifo) push(q queued) {
	f.entries = append(f.entries, q)
	f.n += len(q.messages)
}

// pop removes the oldest entry; the queue must not be empty. Freed space is reused once it is
// half of all.
func (f *fifo) pop() queued {
	q := f.entries[f.head]
	f.entries[f.head] = queued{}
	f.head++
	f.n -= len(q.messages)
	if f.head > 32 && f.head*2 > len(f.entries) {
		kept := copy(f.entries, f.entries[f.head:])
		clear(f.entries[kept:])
		f.entries, f.head = f.entries[:kept], 0
	}
	return q
}

// delayed is a heap of entries by their time.
type delayed []queued

func (d delayed) Len() int           { return len(d) }
func (d delayed) Less(i, j int) bool { return d[i].deliverAt < d[j].deliverAt }
func (d delayed) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push is for package heap.
func (d *delayed) Push(x any) {
	if q, ok := x.(queued); ok {
		*d = append(*d, q)
	}
}

// Pop is for package heap.
func (d *delayed) Pop() any {
	last := len(*d) - 1
	q := (*d)[last]
	(*d)[last] = queued{}
	*d = (*d)[:last]
	return q
}

func (d delayed) events() int {
	n := 0
	for _, q := range d {
		n += len(q.messages)
	}
	return n
}
