package fakebroker

import (
	"maps"
	"math/bits"
	"slices"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// topic is a topic partition with one SHARED subscription, or with one reader. Guarded by the cluster's lock.
type topic struct {
	partitions uint32
	owner      *Broker // nil: the broker that is asked
	entries    []*entry
	consumers  []*member
	turn       int
	chunked    map[string]*member // by uuid, from the first chunk of a message to its last
	reader     bool               // it has had a reader, which gets all entries in their order
}

type entry struct {
	id         wire.ID
	bytes      []byte
	events     int
	left       []uint64 // a bit for each unacked event; nil: all
	to         *member  // nil: with no consumer
	read       bool     // it is sent from the replay set, not by the next read
	deliveries uint32

	uuid        string // of a chunk, else ""
	chunk, last int32
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
		t = &topic{chunked: make(map[string]*member)}
		c.topics[name] = t
	}
	return t
}

// Publish appends an entry with that many events, and returns its id.
func (c *Cluster) Publish(name string, bytes []byte, events int) wire.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := wire.ID{Ledger: c.ledger, Entry: c.entries}
	c.entries++
	t := c.topic(name)
	e := &entry{id: id, bytes: bytes, events: events}
	var parsed wire.Entry
	_ = new(wire.Parser).ParseHead(&parsed, bytes, len(bytes)) // a broker looks at the metadata only
	if m := &parsed.Metadata; m.Chunks > 1 {
		e.uuid, e.chunk, e.last = string(m.UUID), m.Chunk, m.Chunks-1
	}
	t.entries = append(t.entries, e)
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

// dispatch sends entries that no consumer has to the consumers with permits, in turn. Like Pulsar 4.0.8, it reads on only when everything that it has
// read is with a consumer.
func (t *topic) dispatch() {
	waiting := false
	for _, e := range t.entries {
		if e.to == nil && e.read {
			waiting = !t.send(e) || waiting
		}
	}
	for _, e := range t.entries {
		if waiting {
			return
		}
		if e.to == nil {
			waiting = !t.send(e)
			e.read = e.read || e.uuid != "" // a chunk without a consumer goes to the replay set
		}
	}
}

func (t *topic) send(e *entry) bool {
	m := t.consumerOf(e)
	if m == nil {
		return false
	}
	e.to, e.read = m, true
	m.permits -= e.cost()
	m.link.deliver(m.id, e)
	e.deliveries++
	return true
}

// consumerOf returns the consumer that gets an entry, nil if none can have it now. All chunks with one uuid go to the consumer of the first. A later
// chunk without that consumer goes to none, as at Pulsar 4.0.8 (apache/pulsar#26395).
func (t *topic) consumerOf(e *entry) *member {
	if e.uuid == "" || t.reader {
		return t.next()
	}
	m := t.chunked[e.uuid]
	if m == nil && e.chunk == 0 {
		m = t.next()
	}
	if m == nil || m.permits <= 0 {
		return nil
	}
	if t.chunked[e.uuid] = m; e.chunk == e.last {
		delete(t.chunked, e.uuid)
	}
	return m
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

// ackUpTo records a cumulative ack.
func (t *topic) ackUpTo(id *pulsarpb.MessageIdData) {
	t.entries = slices.DeleteFunc(t.entries, func(e *entry) bool {
		ledger, last := int64(id.GetLedgerId()), int64(id.GetEntryId())
		return e.id.Ledger < ledger || e.id.Ledger == ledger && e.id.Entry <= last
	})
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

// begin makes a topic with one reader begin at an entry: earlier ones count as sent.
func (t *topic) begin(reader *member, at wire.ID) {
	t.reader = true
	for _, e := range t.entries {
		e.to, e.read = nil, false
		if e.id.Ledger < at.Ledger || e.id.Ledger == at.Ledger && e.id.Entry < at.Entry {
			e.to = reader
		}
	}
}

func (t *topic) remove(m *member) {
	t.consumers = slices.DeleteFunc(t.consumers, func(other *member) bool { return other == m })
	delete(m.link.members, m.id)
	maps.DeleteFunc(t.chunked, func(_ string, of *member) bool { return of == m })
	t.release(m, nil)
	t.dispatch()
}
