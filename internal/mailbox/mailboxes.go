package mailbox

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Mailboxes spreads the partitions over shards, each a [Boxes] behind its own mutex.
//
// # Concurrency
//
// All methods are safe for concurrent use. A mutex is held for machine calls only,
// a call takes each shard's at most once, and never two together. The clock is read
// once per call; Take reads it under the lock of each shard that it visits, as
// ownership.Lease.MayDispatch demands. No method blocks for longer than another's
// machine call.
type Mailboxes struct {
	now       func() clock.Instant
	shards    []shard
	next      atomic.Uint32 // shard at which the next Take begins
	peerBytes atomic.Uint64 // total weight of events received from peers
	events    sync.Pool     // of *buckets[event.Ref]
	results   sync.Pool     // of *buckets[event.Result]

	hot hot

	unpinBytes uint64 // growth of peerBytes after which the shards check their frames
}

// TrustCopies says that copies are authentic, because a key of the group has signed them.
// It must be called before any other method.
func (m *Mailboxes) TrustCopies() {
	m.each(func(b *Boxes) { b.signed = true })
}

// JudgeSkips sets the function that decides whether a skipped event that a router has published may end. An event
// that may not end yet is not delivered either, and is checked again soon. may is called under a shard's mutex: it
// must be quick and call no method. It must be set before any other method is called.
func (m *Mailboxes) JudgeSkips(may func(*event.Event) bool) {
	m.each(func(b *Boxes) { b.skips.mayEnd = may })
}

// Forget is [Boxes.Forget].
func (m *Mailboxes) Forget() (ids int) {
	m.each(func(b *Boxes) { ids += b.Forget() })
	return ids
}

// shard is one Boxes and its lock.
type shard struct {
	mu    sync.Mutex
	boxes *Boxes
	ready atomic.Bool // some worker has ready keys; written under mu, read without it
	_     [64]byte    // keeps the next shard off this cache line
}

// NewMailboxes returns the mailboxes of the node called member. The configurations
// must be valid; now reads the clock that leases run on.
func NewMailboxes(cfg Config, retry outcome.Config, member string, now func() clock.Instant) *Mailboxes {
	m := &Mailboxes{now: now, shards: make([]shard, cfg.Shards), unpinBytes: max(1, uint64(cfg.FramesBytesMax)/4)}
	for i := range m.shards {
		m.shards[i].boxes = newShard(cfg.share(), retry, member, i, cfg.Shards)
	}
	m.events.New = func() any { return new(buckets[event.Ref]) }
	m.results.New = func() any { return new(buckets[event.Result]) }
	return m
}

// with runs a machine call under the shard's lock.
func (s *shard) with(call func(*Boxes)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call(s.boxes)
	s.ready.Store(s.boxes.ready > 0)
}

// each runs a machine call on one shard after the other.
func (m *Mailboxes) each(call func(*Boxes)) {
	for i := range m.shards {
		m.shards[i].with(call)
	}
}

// of runs a machine call on the shard of p.
func (m *Mailboxes) of(p ring.Partition, call func(*Boxes)) {
	m.shards[m.shardOf(p)].with(call)
}

// ofDelivery runs a machine call on the shard of a delivery.
func (m *Mailboxes) ofDelivery(id event.DeliveryID, call func(*Boxes)) {
	m.shards[m.shardOfDelivery(id)].with(call)
}

// shardOf returns the number of the shard of a partition.
func (m *Mailboxes) shardOf(p ring.Partition) int { return int(p) % len(m.shards) }

// shardOfKey returns the number of the shard of a key.
func (m *Mailboxes) shardOfKey(key event.Key) int { return m.shardOf(ring.PartitionOf(string(key))) }

// shardOfDelivery returns the number of the shard of a delivery, see [Boxes.newDelivery].
func (m *Mailboxes) shardOfDelivery(id event.DeliveryID) int {
	return int(uint64(id) % uint64(len(m.shards)))
}

// Accept is [Boxes.Accept].
func (m *Mailboxes) Accept(from Sender, senderEpoch event.Position, events []event.Ref, out *Output) {
	now, peerBytes := m.now(), m.peerBytes.Load()
	sorted := m.events.Get().(*buckets[event.Ref])
	defer m.events.Put(sorted)
	weight := 0
	sorted.each(m, events, func(e *event.Ref) int { return m.shardOf(e.Partition()) }, func(b *Boxes, events []event.Ref) {
		b.peerBytes = max(b.peerBytes, peerBytes)
		b.Accept(now, from, senderEpoch, events, out)
		weight += b.batchBytes
	})
	if from != Local {
		m.noteFrame(now, uint64(weight))
	}
}

// Take is [Boxes.Take] over all shards. Calls begin at different shards in turn.
func (m *Mailboxes) Take(lease ownership.Lease, w event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	full := len(dst) + limit
	turn := uint(m.next.Add(1))
	for i := range uint(len(m.shards)) {
		s := &m.shards[(turn+i)%uint(len(m.shards))]
		if len(dst) >= full {
			break
		}
		if !s.ready.Load() {
			continue // a call that makes a key ready sets the flag before it wakes w
		}
		s.with(func(b *Boxes) { dst = b.Take(m.now(), lease, w, full-len(dst), dst) })
	}
	return dst
}

// Delivered is [Boxes.Delivered].
func (m *Mailboxes) Delivered(id event.DeliveryID) (e *event.Event) {
	m.ofDelivery(id, func(b *Boxes) { e = b.Delivered(id) })
	return e
}

// Outlook is [Boxes.Outlook].
func (m *Mailboxes) Outlook(r event.Result) (o outcome.Outcome) {
	m.ofDelivery(r.Delivery, func(b *Boxes) { o = b.Outlook(r) })
	return o
}

// Finish is [Boxes.Finish].
func (m *Mailboxes) Finish(results []event.Result, out *Output) {
	now := m.now()
	sorted := m.results.Get().(*buckets[event.Result])
	defer m.results.Put(sorted)
	sorted.each(m, results, func(r *event.Result) int { return m.shardOfDelivery(r.Delivery) }, func(b *Boxes, results []event.Result) {
		b.Finish(now, results, out)
	})
}

// Cancel is [Boxes.Cancel].
func (m *Mailboxes) Cancel(from Sender, calls []event.Handle, out *Output) {
	now := m.now()
	m.each(func(b *Boxes) { b.Cancel(now, from, calls, out) })
}

// Grant is [Boxes.Grant].
func (m *Mailboxes) Grant(id event.DeliveryID, g event.Grant, out *Output) {
	m.ofDelivery(id, func(b *Boxes) { b.Grant(id, g, out) })
}

// SetCovers is [Boxes.SetCovers].
func (m *Mailboxes) SetCovers(covers bool) {
	m.each(func(b *Boxes) { b.SetCovers(covers) })
}

// Renewable is [Boxes.Renewable].
func (m *Mailboxes) Renewable(from Sender, call event.Handle) (id event.DeliveryID, telling bool) {
	m.each(func(b *Boxes) {
		here, over := b.Renewable(from, call)
		id, telling = max(id, here), telling || over
	})
	return id, telling
}

// Told is [Boxes.Told].
func (m *Mailboxes) Told(all []Telling) {
	m.each(func(b *Boxes) { b.Told(all) })
}

// SetGates is [Boxes.SetGates]. No delivery under an old gate begins after it has returned.
func (m *Mailboxes) SetGates(changes []ownership.GateChange, epoch event.Position, out *Output) {
	now := m.now()
	m.each(func(b *Boxes) { b.SetGates(now, changes, epoch, out) })
}

// Hold is [Boxes.Hold]. No delivery of these keys begins after it has returned.
func (m *Mailboxes) Hold(keys []event.Key, out *Output) {
	now := m.now()
	byShard(m, keys, func(k *event.Key) int { return m.shardOfKey(*k) }, func(b *Boxes, keys []event.Key) { b.Hold(now, keys, out) })
}

// Release is [Boxes.Release].
func (m *Mailboxes) Release(keys []event.Key, out *Output) {
	now := m.now()
	byShard(m, keys, func(k *event.Key) int { return m.shardOfKey(*k) }, func(b *Boxes, keys []event.Key) { b.Release(now, keys, out) })
}

// Skip is [Boxes.Skip]. No delivery of these events begins after it has returned.
func (m *Mailboxes) Skip(skips []event.Skip, out *Output) {
	now := m.now()
	byShard(m, skips, m.shardOfSkip, func(b *Boxes, skips []event.Skip) { b.Skip(now, skips, out) })
}

// Park is [Boxes.Park]. No delivery that it forbids begins after it has returned.
func (m *Mailboxes) Park(parks []event.Park, out *Output) {
	now := m.now()
	byShard(m, parks, func(p *event.Park) int { return m.shardOfKey(p.Key) }, func(b *Boxes, parks []event.Park) { b.Park(now, parks, out) })
}

// SetLease is [Boxes.SetLease].
func (m *Mailboxes) SetLease(lease ownership.Lease, out *Output) {
	now := m.now()
	m.each(func(b *Boxes) { b.SetLease(now, lease, out) })
}

// Unskip is [Boxes.Unskip].
func (m *Mailboxes) Unskip(skips []event.Skip) {
	byShard(m, skips, m.shardOfSkip, (*Boxes).Unskip)
}

// shardOfSkip returns the number of the shard of a skip's key.
func (m *Mailboxes) shardOfSkip(s *event.Skip) int { return m.shardOfKey(s.Key) }

// byShard runs a machine call on each shard that has some of the values, with these values in their order.
func byShard[T any](m *Mailboxes, values []T, shardOf func(*T) int, call func(*Boxes, []T)) {
	new(buckets[T]).each(m, values, shardOf, call)
}

// Running is [Boxes.Running].
func (m *Mailboxes) Running(p ring.Partition) (running int) {
	m.of(p, func(b *Boxes) { running = b.Running(p) })
	return running
}

// Busy is [Boxes.Busy].
func (m *Mailboxes) Busy(p ring.Partition) (keys []ring.KeyHash) {
	m.of(p, func(b *Boxes) { keys = b.Busy(p) })
	return keys
}

// WorkerUp is [Boxes.WorkerUp].
func (m *Mailboxes) WorkerUp(id event.WorkerID, out *Output) {
	now := m.now()
	m.each(func(b *Boxes) { b.WorkerUp(now, id, out) })
}

// WorkerGone is [Boxes.WorkerGone].
func (m *Mailboxes) WorkerGone(id event.WorkerID, out *Output) {
	now := m.now()
	m.each(func(b *Boxes) { b.WorkerGone(now, id, out) })
}

// SenderGone is [Boxes.SenderGone].
func (m *Mailboxes) SenderGone(from Sender) {
	m.each(func(b *Boxes) { b.SenderGone(from) })
}

// Tick is [Boxes.Tick].
func (m *Mailboxes) Tick(out *Output) {
	now := m.now()
	m.each(func(b *Boxes) { b.Tick(now, out) })
}

// Next is [Boxes.Next]. Finish may move it earlier.
func (m *Mailboxes) Next() clock.Instant {
	next := clock.Forever
	m.each(func(b *Boxes) { next = min(next, b.Next()) })
	return next
}

// TakeHandover is [Boxes.TakeHandover], with an equal part of idsMax, rounded up, for each shard.
func (m *Mailboxes) TakeHandover(idsMax int, elsewhere func(ring.Partition) bool, dst []event.Finished) (_ []event.Finished, more bool) {
	each := (idsMax + len(m.shards) - 1) / len(m.shards)
	m.each(func(b *Boxes) {
		var older bool
		dst, older = b.TakeHandover(each, elsewhere, dst)
		more = more || older
	})
	return dst, more
}

// RestartHandover is [Boxes.RestartHandover].
func (m *Mailboxes) RestartHandover() {
	now := m.now()
	m.each(func(b *Boxes) { b.RestartHandover(now) })
}

// LearnDone is [Boxes.LearnDone].
func (m *Mailboxes) LearnDone(done []event.Finished, out *Output) {
	now := m.now()
	byShard(m, done, func(d *event.Finished) int { return m.shardOf(d.Partition) }, func(b *Boxes, ids []event.Finished) { b.LearnDone(now, ids, out) })
}

// Inspect is [Boxes.Inspect].
func (m *Mailboxes) Inspect(key event.Key) (state KeyState) {
	m.of(ring.PartitionOf(string(key)), func(b *Boxes) { state = b.Inspect(key) })
	return state
}

// Parts is [Boxes.Parts] of all shards, one after the other.
func (m *Mailboxes) Parts() *[ring.Partitions]PartState {
	states := new([ring.Partitions]PartState)
	m.each(func(b *Boxes) { b.Parts(states) })
	return states
}

// Stats returns a snapshot of all shards, taken one after the other.
func (m *Mailboxes) Stats() Stats {
	sum := Stats{Oldest: clock.Forever}
	m.each(func(b *Boxes) { b.addTo(&sum) })
	return sum
}

// buckets holds values by shard, in their order.
type buckets[T any] [][]T

// each is byShard. It uses the memory of the call before.
func (b *buckets[T]) each(m *Mailboxes, values []T, shardOf func(*T) int, call func(*Boxes, []T)) {
	b.fill(values, len(m.shards), shardOf)
	for i, mine := range *b {
		if len(mine) > 0 {
			m.shards[i].with(func(b *Boxes) { call(b, mine) })
			clear(mine) // so that they can be collected
		}
	}
}

func (b *buckets[T]) fill(values []T, shards int, shardOf func(*T) int) {
	*b = slices.Grow((*b)[:0], shards)[:shards]
	for i := range *b {
		(*b)[i] = (*b)[i][:0]
	}
	for i := range values {
		shard := shardOf(&values[i])
		(*b)[shard] = append((*b)[shard], values[i])
	}
}
