package audit

import (
	"cmp"
	"math"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// Cause tells why an event of a key began after a later one of its topic partition, as far as its owner can see.
type Cause uint8

// The causes, the first that applies.
const (
	Relayed  Cause = iota // a member passed it on, because the receiving one did not reach the owner
	Moved                 // the key had come to this owner within MovedFor
	Retried               // the broker had delivered it before, or it came by way of the retry topic
	Received              // it was received in that order
	causes
)

// String returns the cause as metrics have it.
func (c Cause) String() string {
	return [causes]string{"relay", "move", "retry", "received"}[c]
}

// Causes lists all causes.
func Causes() []Cause { return []Cause{Relayed, Moved, Retried, Received} }

// MovedFor is how long after a tenure has begun here an inversion counts as caused by the move.
const MovedFor = 10 * time.Second

// OrderCounts are totals of an [Inversions].
type OrderCounts struct {
	First      uint64         // first handlings of events
	Inversions [causes]uint64 // of these, such that began after a later event of their key and topic partition
	Forgotten  uint64         // keys that had to make room for others
}

// Inversions counts how often an event of a key began after a later one of its topic partition, by message id. Only
// first handlings count: a failed event comes again on purpose. It knows only the keys that most recently began here,
// so it misses inversions across a move and those of forgotten keys: the count is a lower bound. It is not safe for
// concurrent use.
type Inversions struct {
	sets      [][newestWays]newest
	tenures   [partition.Count]tenure
	age       uint32 // counts up; the least recent of a set makes room
	topic     string // of the newest event
	topicHash uint64 // of topic
	counts    OrderCounts
	keys      *invertedKeys

	hashes [32]uint64 // scratch of Began
	warm   [32]uint32
}

// newest is the latest event of a key and a topic partition that has begun.
type newest struct {
	of            uint64 // hash of both; 0: free
	ledger, entry int64
	batch         int32
	age           uint32
}

// compare compares an event's id with that of the newest one: below 0 if it is earlier.
func (n *newest) compare(id *event.MessageID) int {
	if at := cmp.Compare(id.Ledger, n.ledger); at != 0 {
		return at
	}
	if at := cmp.Compare(id.Entry, n.entry); at != 0 {
		return at
	}
	return cmp.Compare(id.Batch, n.batch)
}

type tenure struct {
	token int64
	since clock.Instant
}

const (
	newestWays  = 2 // fill a line of the CPU's cache
	newestBytes = 32
)

// NewInversions returns an Inversions that takes at most about memory bytes for the order of keys, and at most [InvertedBytes] for those
// with the most inversions.
func NewInversions(memory int) *Inversions {
	sets := 1
	for sets*2*newestWays*newestBytes <= memory {
		sets *= 2
	}
	return &Inversions{sets: make([][newestWays]newest, sets), keys: new(invertedKeys)}
}

// Counts returns the totals.
func (v *Inversions) Counts() OrderCounts { return v.counts }

// Keys returns the keys with the most inversions, the greatest first: up to 256.
func (v *Inversions) Keys() []InvertedKey { return v.keys.top() }

// Began notes deliveries that were handed to a worker at an instant, in their order.
func (v *Inversions) Began(now clock.Instant, deliveries []event.Delivery) {
	for len(deliveries) > 0 {
		n := min(len(deliveries), len(v.hashes))
		for i := range n { // first this alone, so that cache misses overlap
			v.hashes[i] = v.orderHash(&deliveries[i])
			v.warm[i] = v.setOf(v.hashes[i])[0].age
		}
		for i := range n {
			v.began(now, &deliveries[i], v.hashes[i])
		}
		deliveries = deliveries[n:]
	}
}

func (v *Inversions) began(now clock.Instant, d *event.Delivery, hash uint64) {
	t := &v.tenures[d.Partition%partition.Count]
	if t.token != d.Token {
		*t = tenure{d.Token, now}
	}
	id := d.MessageID()
	if d.Attempt != 1 || d.Crashes > 0 || id.IsCall() || id.IsSent() { // no broker has given these ids, so they have no order
		return
	}
	v.counts.First++
	n := v.newestOf(hash)
	if at := n.compare(&id); at <= 0 {
		if at < 0 {
			cause := v.cause(now, t, d)
			v.counts.Inversions[cause]++
			v.keys.add(now, d, cause)
		}
		return
	}
	n.ledger, n.entry, n.batch = id.Ledger, id.Entry, id.Batch
}

func (v *Inversions) cause(now clock.Instant, t *tenure, d *event.Delivery) Cause {
	redelivery, round := d.Rounds()
	switch {
	case d.Handle().IsRelayed():
		return Relayed
	case now.Sub(t.since) < MovedFor:
		return Moved
	case redelivery > 0 || round > 0:
		return Retried
	}
	return Received
}

// orderHash names a key and a topic partition. It is not 0.
func (v *Inversions) orderHash(d *event.Delivery) uint64 {
	if topic := d.Topic(); v.topic != topic {
		v.topic, v.topicHash = strings.Clone(topic), spread(uint64(partition.HashOf(topic)))
	}
	return max(1, spread(uint64(d.Key)^v.topicHash+uint64(uint32(d.MessageID().TopicPartition))))
}

func (v *Inversions) setOf(of uint64) *[newestWays]newest { return &v.sets[of&uint64(len(v.sets)-1)] }

// newestOf returns the entry of a key and topic partition, a new one if there was none.
func (v *Inversions) newestOf(of uint64) *newest {
	v.age++
	set := v.setOf(of)
	oldest := &set[0]
	for i := range set {
		n := &set[i]
		if n.of == of {
			n.age = v.age
			return n
		}
		if n.of == 0 || oldest.of != 0 && v.age-n.age > v.age-oldest.age {
			oldest = n
		}
	}
	if oldest.of != 0 {
		v.counts.Forgotten++
	}
	*oldest = newest{of: of, ledger: math.MinInt64, age: v.age} // before all events
	return oldest
}
