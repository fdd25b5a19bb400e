package mailbox

import (
	"hash/maphash"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/ring"
)

// Boxes holds the actors of the partitions of one shard. It is not safe for
// concurrent use. Its instants may go back by as long as callers wait for a lock;
// retries and ageing are then off by the same amount.
type Boxes struct {
	cfg    Config // bounds of this shard
	retry  outcome.Config
	member string
	shard  int
	shards int

	epoch event.Position // newest applied epoch

	// The details of refusals, which many verdicts share.
	notOwner, notYet, overloaded *event.Detail

	parts   []part              // by partition / shards
	actors  table[actor]        // by hash of their keys
	seed    maphash.Seed        // of these hashes, so that producers cannot choose keys that collide
	spans   *spans              // of the ids of items and of the window
	items   slab[item]          // waiting or running
	running int                 // items that run
	signed  bool                // copies are authentic: a key of the group has signed them
	senders map[Sender]struct{} // live peer streams that have sent events
	owed    debts
	window  window
	late    []uint64 // the window serials behind those of events that finished after their partition had moved

	workers    workers
	ready      int   // keys in the workers' queues
	orphans    queue // ready keys while there is no worker
	retrying   retryHeap
	onHold     map[event.Key]bool // keys that an operator holds, see Hold
	onHoldHere int                // keys with events here that wait until an operator releases them
	skips      skips
	parks      map[event.Key]event.Park // in effect, see Park
	onParkHere int                      // keys with events here that wait because of a park
	ages       ages
	visits     visits

	unpinned   clock.Instant // when Tick last called unpin
	peerBytes  uint64        // total received from peers by this node, see unpin
	delivered  uint64        // number of deliveries, for their ids and turns; never decreases
	bytes      int           // of all items, see weigh
	counters   Counters
	lookups    []lookup // scratch of Accept
	batchBytes int      // of this Accept, without placeBytes, see unpin
	loaded     int      // keeps the loads of prefetch.go alive
	records    *records // nil: nothing is remembered
}

// New returns the Boxes of a node with one shard. cfg and retry must be valid; member
// is the node's name in verdicts.
func New(cfg Config, retry outcome.Config, member string) *Boxes {
	return newShard(cfg, retry, member, 0, 1)
}

// newShard returns the Boxes for the partitions p with p mod shards = shard. The
// bounds of cfg are those of one shard.
func newShard(cfg Config, retry outcome.Config, member string, shard, shards int) *Boxes {
	count := (ring.Partitions - shard + shards - 1) / shards
	b := &Boxes{
		cfg: cfg, retry: retry, member: member, shard: shard, shards: shards,
		parts:   make([]part, count),
		actors:  newTable[actor](),
		seed:    maphash.MakeSeed(),
		spans:   newSpans(),
		senders: make(map[Sender]struct{}),
		onHold:  make(map[event.Key]bool),
		parks:   make(map[event.Key]event.Park),
		skips:   skips{known: make(map[event.Key][]event.Skip), running: make(map[event.DeliveryID]*event.Skip)},
		owed:    debts{keys: make(map[*actor][]Sender)},

		notYet:     &event.Detail{Delay: cfg.NotYetDelay},
		overloaded: &event.Detail{Delay: cfg.OverloadedDelay},
	}
	b.visits.init(cfg)
	b.window = newWindow(b.spans, cfg.WindowBytesMax, cfg.WindowAgeMax)
	for i := range b.parts {
		b.parts[i].number = ring.Partition(i*shards + shard)
	}
	return b
}

// part returns the state of p, which must be a partition of this shard.
func (b *Boxes) part(p ring.Partition) *part { return &b.parts[int(p)/b.shards] }

// Tick makes due retries ready, expires old window ids, and wakes every worker that has
// ready keys. It is due at Next, and when a lease is valid again.
func (b *Boxes) Tick(now clock.Instant, out *Output) {
	for len(b.retrying) > 0 && !b.retrying[0].heldUntil.After(now) {
		a := b.retrying[0]
		b.dequeueWaiting(a)
		b.enqueue(now, a, out)
	}
	b.expireVisits(now, out)
	b.window.expire(now)
	if now.Sub(b.unpinned) >= unpinAfter {
		b.unpinned = now
		b.unpin(now)
	}
	for _, w := range b.workers.all {
		if w.ready.n > 0 {
			w.wake(out)
		}
	}
	if b.visits.keeper.ready.n > 0 {
		b.visits.keeper.wake(out)
	}
	b.repayAll(out)
}

// Next returns when Tick is due, or clock.Forever.
func (b *Boxes) Next() clock.Instant {
	next := min(b.window.next(), b.visits.soonest)
	if len(b.retrying) > 0 {
		next = min(next, b.retrying[0].heldUntil)
	}
	if oldest := b.ages.oldest; oldest != nil {
		next = min(next, max(oldest.at, b.unpinned).Add(unpinAfter))
	}
	return next
}
