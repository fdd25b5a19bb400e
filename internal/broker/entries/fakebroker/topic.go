package fakebroker

import (
	"math/bits"
	"slices"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// topic is a topic partition with one SHARED subscription. Guarded by the cluster's lock.
type topic struct {
	partitions uint32
	owner      *Broker // nil: the broker that is asked
	entries    []*entry
	consumers  []*member
	turn       int
}

type entry struct {
	id         wire.ID
	bytes      []byte
	events     int
	left       []uint64 // a bit for each unacked event; nil: all
	to         *member  // nil: with no consumer
	deliveries uint32
}

// member is a consumer of the subscription.
type member struct {
	link    *Link
	id      uint64
	topic   *topic
	permits int
}

func (c *Cluster) topic(name string) *topic {
	t := c.topics[name]
	if t == nil {
		t = new(topic)
		c.topics[name] = t
	}
	return t
}

// Publish appends an entry with that many events, and returns its id.
func (c *Cluster) Publish(name string, bytes []byte, events int) wire.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := wire.ID{Ledger: 1, Entry: c.entries}
	c.entries++
	t := c.topic(name)
	t.entries = append(t.entries, &entry{id: id, bytes: bytes, events: events})
	t.dispatch()
	return id
}

// Backlog returns the ids of the unacked entries.
func (c *Cluster) Backlog(name string) (ids []wire.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.topic(name).entries {
		ids = append(ids, e.id)
	}
	return ids
}

// Permits returns the permits of each consumer.
func (c *Cluster) Permits(name string) (permits []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.topic(name).consumers {
		permits = append(permits, m.permits)
	}
	return permits
}

// dispatch sends entries that no consumer has to the consumers with permits, in turn.
func (t *topic) dispatch() {
	for _, e := range t.entries {
		if e.to != nil {
			continue
		}
		m := t.next()
		if m == nil {
			return
		}
		e.to = m
		m.permits -= e.cost()
		m.link.deliver(m.id, e)
		e.deliveries++
	}
}

func (t *topic) next() *member {
	for range t.consumers {
		t.turn++
		if m := t.consumers[t.turn%len(t.consumers)]; m.permits > 0 {
			return m
		}
	}
	return nil
}

func (e *entry) cost() int {
	if e.left == nil {
		return e.events
	}
	return count(e.left)
}

func count(set []uint64) (n int) {
	for _, word := range set {
		n += bits.OnesCount64(word)
	}
	return n
}

// ack records acks, regardless of the consumer that has the entries.
func (t *topic) ack(ids []*pulsarpb.MessageIdData) {
	for _, id := range ids {
		at := slices.IndexFunc(t.entries, func(e *entry) bool {
			return e.id == wire.ID{Ledger: int64(id.GetLedgerId()), Entry: int64(id.GetEntryId())}
		})
		if at < 0 {
			continue
		}
		e := t.entries[at]
		if len(id.GetAckSet()) > 0 {
			e.keep(id.GetAckSet())
		}
		if len(id.GetAckSet()) == 0 || count(e.left) == 0 {
			t.entries = slices.Delete(t.entries, at, at+1)
		}
	}
}

// keep leaves only the events of a set unacked.
func (e *entry) keep(set []int64) {
	if e.left == nil {
		e.left = make([]uint64, (e.events+63)/64)
		for i := range e.events {
			e.left[i/64] |= 1 << (i % 64)
		}
	}
	for i := range e.left {
		if i < len(set) {
			e.left[i] &= uint64(set[i])
		} else {
			e.left[i] = 0
		}
	}
}

// release takes entries back from a consumer, all if ids is nil.
func (t *topic) release(from *member, ids []*pulsarpb.MessageIdData) {
	for _, e := range t.entries {
		named := ids == nil || slices.ContainsFunc(ids, func(id *pulsarpb.MessageIdData) bool {
			return e.id == wire.ID{Ledger: int64(id.GetLedgerId()), Entry: int64(id.GetEntryId())}
		})
		if named && e.to == from {
			e.to = nil
		}
	}
}

func (t *topic) remove(m *member) {
	t.consumers = slices.DeleteFunc(t.consumers, func(other *member) bool { return other == m })
	delete(m.link.members, m.id)
	t.release(m, nil)
	t.dispatch()
}
