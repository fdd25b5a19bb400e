package mailbox

import (
	"container/heap"
	"hash/maphash"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/invariant"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Sender names the recipient of a verdict: [Local], or one inbound peer stream. Values
// are never reused.
type Sender uint64

// Local is this node's own forward.Table.
const Local Sender = 0

// Answer holds the verdicts for one recipient, in the order in which they were given.
type Answer struct {
	To       Sender
	Verdicts []event.Verdict
}

// Output collects the effects of calls for the caller to perform. Calls append to it;
// the caller may reuse it after Reset.
type Output struct {
	// Answers has at most one element per sender.
	Answers []Answer
	// Credits are for senders that were answered Overloaded.
	Credits []Credit
	// Wake names workers for which keys became ready. A worker may be named twice.
	Wake []event.WorkerID
	// Ended lists partitions to re-check: their gate was not open when a delivery on them
	// ended. It is a hint: only the goroutine that moves gates may conclude from Busy that
	// a partition is drained.
	Ended []ring.Partition
	// DueSooner says that Next has moved earlier: re-arm the timer.
	DueSooner bool
	// Ignored counts results of deliveries that are unknown or have ended.
	Ignored int
}

// Reset empties the output and keeps its memory.
func (o *Output) Reset() {
	for i := range o.Answers {
		clear(o.Answers[i].Verdicts) // they hold details
	}
	clear(o.Credits)
	*o = Output{Answers: o.Answers[:0], Credits: o.Credits[:0], Wake: o.Wake[:0], Ended: o.Ended[:0]}
}

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

	parts   []part       // by partition / shards
	keys    *index       // hash of a key → its actor
	seed    maphash.Seed // of key hashes, so that producers cannot choose keys that collide
	actors  slab[actor]
	spans   *spans     // of the ids of items and of the window
	items   slab[item] // waiting or running
	running int
	signed  bool                // copies are authentic: a key of the group has signed them
	senders map[Sender]struct{} // live peer streams that have sent events
	owed    debts
	window  window
	late    []uint64 // window serials of events that finished after their partition had moved

	workers workers
	ready   int   // keys in the workers' queues
	orphans queue // ready keys while there is no worker
	held    heldHeap
	ages    ages

	unpinned   clock.Instant // when Tick last called unpin
	peerBytes  uint64        // total received from peers by this node, see unpin
	call       uint64        // number of calls, so that each call wakes a worker once
	delivered  uint64        // number of deliveries, for their ids and turns; never decreases
	bytes      int
	counters   Counters
	lookups    []lookup // scratch of Accept
	batchBytes int      // of this Accept, without placeBytes, see unpin
	loaded     int      // keeps the loads of prefetch.go alive
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
		keys:    newIndex(),
		seed:    maphash.MakeSeed(),
		spans:   newSpans(),
		senders: make(map[Sender]struct{}),

		notYet:     &event.Detail{Delay: cfg.NotYetDelay},
		overloaded: &event.Detail{Delay: cfg.OverloadedDelay},
	}
	b.window = newWindow(b.spans, cfg.WindowBytesMax, cfg.WindowAgeMax)
	for i := range b.parts {
		b.parts[i].number = ring.Partition(i*shards + shard)
	}
	return b
}

// part returns the state of p, which must be a partition of this shard.
func (b *Boxes) part(p ring.Partition) *part { return &b.parts[int(p)/b.shards] }

// Accept takes events from a sender, or says at once why not. senderEpoch is the
// newest epoch that the sender has applied; when it is newer than ours, a partition
// that is not ours may be so in a moment, and the answer is NotYet. The events are
// never written to; they are kept until their verdict. A peer's stream that is
// SenderGone must not send any more.
func (b *Boxes) Accept(now clock.Instant, from Sender, senderEpoch event.Position, events []*event.Event, out *Output) {
	b.call++
	if from != Local {
		b.senders[from] = struct{}{}
	}
	group := b.ages.begin(now)
	group.peerBytes = b.peerBytes
	b.lookAhead(events)
	for i, e := range events {
		b.accept(group, address{from, e.Handle}, senderEpoch, e, &b.lookups[i], out)
	}
	b.ages.end(group)
}

// accept judges one event. It checks the id before the owner of the partition: that the
// event runs or finished here is true under any epoch.
func (b *Boxes) accept(group *cohort, from address, senderEpoch event.Position, e *event.Event, seen *lookup, out *Output) {
	id, s, bit := e.ID, b.spans.find(seen.id, e.ID), bitOf(e.ID)
	other := s != nil && b.isDifferent(s, bit, e, seen)
	if other {
		b.counters.Mistaken++
		id = aliasOf(e)
		seen.id = hashOf(id)
		s, bit = b.spans.find(seen.id, id), bitOf(id)
	}
	if s != nil && s.here.has(bit) {
		b.join(b.search(b.actorSeen(e.Key, seen), s, bit), from, e, out)
		return
	}
	if s != nil && s.done.has(bit) {
		b.counters.Duplicates++
		if e.Redelivery == 0 && e.Round == 0 {
			b.counters.Unrun++
		}
		out.say(from, event.Done, nil)
		return
	}
	p := seen.part
	if p == nil {
		b.refuseMisplaced(from, e, out)
		return
	}
	if !p.ours() {
		b.refuseForeign(from, senderEpoch, out)
		return
	}
	a := b.actorSeen(e.Key, seen)
	bytes := seen.bytes
	tooMuch := b.bytes > 0 && b.bytes+bytes > b.cfg.BytesMax || b.items.len() >= itemsMax
	if tooMuch || a != nil && int(a.depth) >= b.cfg.DepthMax {
		b.refuseFull(a, from, out)
		return
	}
	if a == nil {
		if ring.PartitionOf(string(e.Key)) != e.Partition {
			b.refuseMisplaced(from, e, out)
			return
		}
		a = b.activate(p, e.Key, seen.key)
	} else if a.part != p {
		b.refuseMisplaced(from, e, out)
		return
	}
	b.counters.Accepted++
	if s == nil {
		s = b.spans.add(seen.id, id)
	}
	s.here.add(bit)
	it, place := b.items.get() // all zero
	it.event, it.actor, it.cohort, it.place, it.attempts, it.crashes = e, a, group, place, e.Attempts, e.Crashes
	it.span, it.bit, it.id, it.bytes, it.first = s.place, bit, e.ID, uint32(bytes), from
	it.copied = e.Round > 0 && !b.signed && !other
	b.bytes += bytes
	group.items++
	a.pushBack(it)
	if a.wait == WaitNothing {
		b.enqueue(group.at, a, out)
	}
}

// placeBytes approximates the overhead of an event: an item, an actor if it is the only
// event of its key, its part of a span, and index cells.
const placeBytes = 256

// weigh returns an event's part of Config.BytesMax.
func weigh(e *event.Event) int { return e.Bytes() + placeBytes }

// search returns the item of an id that is here. It is nearly always in the actor a of
// the key; a may be nil. An id that came under two keys costs a search of all items.
func (b *Boxes) search(a *actor, s *span, bit uint8) *item {
	if a != nil {
		if it := a.search(s.place, bit); it != nil {
			return it
		}
	}
	for place := range uint32(b.items.places()) {
		if it := b.items.at(place); it.event != nil && it.is(s.place, bit) {
			return it
		}
	}
	return nil // never
}

// join adds a sender to the recipients of an item's verdict.
func (b *Boxes) join(it *item, from address, e *event.Event, out *Output) {
	if it.first == from || slices.Contains(it.joined, from) {
		return
	}
	if len(it.joined)+1 >= b.cfg.JoinsMax {
		it.joined = slices.DeleteFunc(it.joined, b.isGone)
		if len(it.joined)+1 >= b.cfg.JoinsMax {
			b.refuseOverload(from, out)
			return
		}
	}
	b.counters.Joined++
	it.joined = append(it.joined, from)
	it.copied = it.copied && e.Round > 0
	if e.Attempts > it.attempts || e.Crashes > it.crashes {
		b.replace(it, e) // this consumer node knows of failures that the first did not
	}
}

func (b *Boxes) refuseForeign(to address, senderEpoch event.Position, out *Output) {
	if b.epoch.Before(senderEpoch) {
		b.counters.NotYet++
		out.say(to, event.NotYet, b.notYet)
		return
	}
	b.counters.NotOwner++
	out.say(to, event.NotOwner, b.notOwner)
}

func (b *Boxes) refuseOverload(to address, out *Output) {
	b.counters.Overloaded++
	out.say(to, event.Overloaded, b.overloaded)
}

// refuseMisplaced rejects an event whose key does not belong to its partition. Accepted,
// it could run beside its key; refused, it would be sent again unchanged.
func (b *Boxes) refuseMisplaced(to address, e *event.Event, out *Output) {
	b.counters.Misplaced++
	out.say(to, event.Rejected, &event.Detail{
		Attempts:   e.Attempts,
		Reason:     "the event's partition is not that of its key",
		FirstError: e.FirstError,
		Owner:      b.member,
	})
}

// Take appends to dst the first events of up to limit keys that are ready for w, and
// returns it. Each of them runs from now on. It takes nothing for a worker that is not
// up or while the lease has expired; Tick wakes w when the lease is back.
func (b *Boxes) Take(now clock.Instant, lease ownership.Lease, w event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	worker := b.workers.find(w)
	if worker == nil {
		return dst
	}
	for range limit {
		a := worker.ready.head()
		if a == nil || !lease.MayDispatch(a.part.gate, now) {
			break // the gate of a ready key is open, so the lease has expired
		}
		worker.ready.pop()
		b.ready--
		if !invariant.Check(a.running == nil, "mailbox: one delivery of a key at a time") {
			a.wait = WaitHandler // block the key rather than run it twice
			continue
		}
		dst = append(dst, event.Delivery{})
		b.dispatch(now, a, &dst[len(dst)-1])
	}
	return dst
}

// dispatch makes the first event of a ready key run. It writes the delivery in place: a
// copy of memory that was just written stalls on the pending stores.
func (b *Boxes) dispatch(now clock.Instant, a *actor, d *event.Delivery) {
	it := a.popFront()
	it.delivery = b.newDelivery(it)
	a.running = it
	b.running++
	a.part.running++
	a.wait, a.since, a.heldUntil = WaitHandler, now, 0
	d.ID, d.Event = it.delivery, it.event
	d.Partition, d.Token = a.part.number, int64(a.part.token)
	d.Attempt, d.Crashes = it.attempts+1, it.crashes
	if d.Token != 0 { // without a token, the turns of two owners have no order
		d.Turn = b.turn()
	}
}

// turn returns the turn of the newest delivery. A partition stays in its shard, and
// Boxes live as long as the process, so turns of a key grow while its token stays.
func (b *Boxes) turn() uint64 {
	return b.delivered
}

// itemsMax bounds the events of one shard, so that the index of an item fits into the id
// of a delivery.
const (
	placeBits = 20
	itemsMax  = 1 << placeBits
)

// newDelivery returns the id of a delivery: a count, the index of its item, and the
// shard. The item is found without a search, and an id repeats after 1<<44 deliveries
// of all shards.
func (b *Boxes) newDelivery(it *item) event.DeliveryID {
	b.delivered++
	return event.DeliveryID((b.delivered<<placeBits|uint64(it.place))*uint64(b.shards) + uint64(b.shard))
}

// find returns the item of a delivery that runs, or nil.
func (b *Boxes) find(id event.DeliveryID) *item {
	place := uint64(id) / uint64(b.shards) % itemsMax
	if id == 0 || place >= uint64(b.items.places()) {
		return nil
	}
	if it := b.items.at(uint32(place)); it.delivery == id {
		return it
	}
	return nil
}

// Delivered returns the event of a running delivery, nil if the delivery has ended.
func (b *Boxes) Delivered(id event.DeliveryID) *event.Event {
	if it := b.find(id); it != nil {
		return it.event
	}
	return nil
}

// Finish ends deliveries. It ignores and counts results of deliveries that are unknown
// or have ended.
func (b *Boxes) Finish(now clock.Instant, results []event.Result, out *Output) {
	b.call++
	b.readAhead(results)
	for i := range results {
		it := b.find(results[i].Delivery)
		if it == nil {
			b.counters.Ignored++
			out.Ignored++
			continue
		}
		b.finish(now, it, &results[i], out)
	}
	b.repayAll(out)
}

func (b *Boxes) finish(now clock.Instant, it *item, r *event.Result, out *Output) {
	a, p := it.actor, it.actor.part
	b.running--
	it.delivery = 0
	a.running, a.wait = nil, WaitNothing
	p.running--

	if outcome.IsAck(r.Kind) {
		b.counters.Done++
		copied := it.copied
		b.settleDone(now, it, out)
		if !p.ours() && !copied {
			b.late = append(b.late, b.window.end-1)
			p.leaves = b.window.end
		}
	} else {
		b.fail(now, it, outcome.Of(b.retry, it.id, it.attempts, it.crashes, *r), out)
	}
	b.repayKey(a, out)
	b.enqueue(now, a, out)
	if p.gate != ownership.Open {
		out.Ended = append(out.Ended, p.number)
	}
}

// fail applies the outcome of a failed delivery.
func (b *Boxes) fail(now clock.Instant, it *item, o outcome.Outcome, out *Output) {
	if o.Kind == outcome.DeadLetter {
		b.counters.Rejected++
		b.settle(it, event.Rejected, b.failure(it.event, o), out)
		return
	}
	b.again(now, it, o, out)
}

// again retries an event: by way of the retry topic, at the next owner, or here, first
// in its key.
func (b *Boxes) again(now clock.Instant, it *item, o outcome.Outcome, out *Output) {
	failed := o.Attempts > it.attempts || o.Crashes > it.crashes
	if !o.Hold {
		b.counters.Failed++
		failure := b.failure(it.event, o)
		failure.Delay = o.Delay
		b.settle(it, event.Failed, failure, out)
		return
	}
	if failed {
		if o.Crashes > it.crashes {
			b.counters.Crashed++
		} else {
			b.counters.Retried++
		}
		b.answer(it, event.Attempted, &event.Detail{Attempts: o.Attempts, Crashes: o.Crashes, Reason: o.Reason}, out)
		b.replace(it, withFailure(it.event, o))
	} else {
		b.counters.Returned++
	}
	if !it.actor.part.ours() {
		b.counters.Moved++
		b.settle(it, event.NotOwner, b.notOwner, out)
		return
	}
	it.actor.pushFront(it)
	if o.Delay > 0 {
		it.actor.heldUntil = now.Add(o.Delay)
	}
}

// failure returns the detail of a final verdict on an event that the application failed.
func (b *Boxes) failure(e *event.Event, o outcome.Outcome) *event.Detail {
	return &event.Detail{
		Attempts:   o.Attempts,
		Reason:     o.Reason,
		FirstError: firstError(e, o),
		Owner:      b.member,
	}
}

// withFailure returns a copy of e that has failed once more. e itself is shared with the
// consumer node's table and with streams that may still be encoding it.
func withFailure(e *event.Event, o outcome.Outcome) *event.Event {
	failed := *e
	failed.Attempts, failed.Crashes = o.Attempts, o.Crashes
	failed.FirstError = firstError(e, o)
	failed.LastError = o.Reason
	return &failed
}

func firstError(e *event.Event, o outcome.Outcome) string {
	if e.FirstError != "" {
		return e.FirstError
	}
	return o.Reason
}

// SetGates moves gates, each of a partition of this shard; epoch is the newest applied
// one. Waiting events of a partition that has moved away are answered NotOwner; running
// events continue. No delivery under an old gate begins after the call.
func (b *Boxes) SetGates(now clock.Instant, changes []ownership.GateChange, epoch event.Position, out *Output) {
	b.call++
	b.SetEpoch(epoch)
	for _, c := range changes {
		b.setGate(now, c, out)
	}
}

// SetEpoch sets the newest applied epoch when no gate moved with it.
func (b *Boxes) SetEpoch(epoch event.Position) {
	if b.epoch.Before(epoch) {
		b.epoch, b.notOwner = epoch, &event.Detail{Epoch: epoch}
	}
}

func (b *Boxes) setGate(now clock.Instant, c ownership.GateChange, out *Output) {
	p := b.part(c.Partition)
	// Even if this were violated, a running key would not run twice here.
	opens := c.Gate == ownership.Open && p.gate != ownership.Open
	invariant.Check(!opens || p.running == 0, "mailbox: a gate opens only when nothing of an earlier tenure runs")
	p.gate, p.token, p.withheld = c.Gate, c.Token, c.Withheld
	for a := p.actors; a != nil; {
		next := a.inPart.next
		b.dequeueWaiting(a)
		if !p.ours() {
			b.refuseWaiting(a, out)
			b.cancelDebts(a)
		}
		if a.running == nil {
			b.enqueue(now, a, out)
		}
		a = next
	}
	b.repayAll(out)
	if !p.ours() {
		p.leaves = b.window.end
		b.window.beginSweep(now)
	}
}

// refuseWaiting sends the waiting events of a key to their next owner.
func (b *Boxes) refuseWaiting(a *actor, out *Output) {
	it := a.head
	a.head, a.tail, a.depth, a.heldUntil = nil, nil, 0, 0
	for it != nil {
		next := it.next
		b.counters.Moved++
		b.settle(it, event.NotOwner, b.notOwner, out)
		it = next
	}
}

// Running returns the number of running deliveries on p, of any tenure.
func (b *Boxes) Running(p ring.Partition) int { return b.part(p).running }

// Busy returns the keys on p with a running delivery of any tenure, ascending.
func (b *Boxes) Busy(p ring.Partition) []ring.KeyHash {
	part := b.part(p)
	if part.running == 0 {
		return nil
	}
	keys := make([]ring.KeyHash, 0, part.running)
	for a := part.actors; a != nil; a = a.inPart.next {
		if a.running != nil {
			keys = append(keys, ring.HashOf(string(a.key)))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// WorkerUp adds a worker and gives it its share of the ready keys.
func (b *Boxes) WorkerUp(now clock.Instant, id event.WorkerID, out *Output) {
	b.call++
	i, found := b.workers.search(id)
	if found {
		return
	}
	b.workers.all = slices.Insert(b.workers.all, i, &worker{id: id, salt: mix(uint64(id))})
	b.workers.generation++
	b.reassign(now, &b.orphans, nil, out)
	for _, w := range b.workers.all {
		b.reassign(now, &w.ready, w, out)
	}
}

// WorkerGone removes a worker and reassigns its ready keys. Its deliveries count as
// running until Finish has their results.
func (b *Boxes) WorkerGone(now clock.Instant, id event.WorkerID, out *Output) {
	b.call++
	i, found := b.workers.search(id)
	if !found {
		return
	}
	gone := b.workers.all[i]
	b.workers.all = slices.Delete(b.workers.all, i, i+1)
	b.workers.generation++
	b.reassign(now, &gone.ready, gone, out)
}

// reassign moves the keys in q, the queue of worker from, to the workers that rendezvous
// hashing now gives them.
func (b *Boxes) reassign(now clock.Instant, q *queue, from *worker, out *Output) {
	for number := q.first; number < q.end; number++ {
		if a := q.at(number); a != nil && b.workers.pick(a.key) != from {
			b.dequeue(a)
			b.makeReady(now, a, out)
		}
	}
}

// SenderGone drops a peer's stream as a recipient. Its events stay and are processed;
// a consumer node that sends them again joins them.
func (b *Boxes) SenderGone(from Sender) { delete(b.senders, from) }

func (b *Boxes) isGone(to address) bool {
	return b.isSenderGone(to.sender)
}

func (b *Boxes) isSenderGone(s Sender) bool {
	if s == Local {
		return false
	}
	_, alive := b.senders[s]
	return !alive
}

// Tick makes due retries ready, expires old window ids, and wakes every worker that has
// ready keys. It is due at Next, and when a lease is valid again.
func (b *Boxes) Tick(now clock.Instant, out *Output) {
	b.call++
	for len(b.held) > 0 && !b.held[0].heldUntil.After(now) {
		a := b.held[0]
		b.dequeueWaiting(a)
		b.enqueue(now, a, out)
	}
	b.window.expire(now)
	if now.Sub(b.unpinned) >= unpinAfter {
		b.unpinned = now
		b.unpin(now)
	}
	for _, w := range b.workers.all {
		if w.ready.n > 0 {
			b.wake(w, out)
		}
	}
}

// Next returns when Tick is due, or clock.Forever.
func (b *Boxes) Next() clock.Instant {
	next := b.window.next()
	if len(b.held) > 0 {
		next = min(next, b.held[0].heldUntil)
	}
	if oldest := b.ages.oldest; oldest != nil {
		next = min(next, max(oldest.at, b.unpinned).Add(unpinAfter))
	}
	return next
}

// TakeHandover removes the ids of recently finished events on partitions that have moved
// and for which elsewhere reports another owner, and appends them to dst: all events that
// finished after their partition had moved, then at most idsMax others, those of the last
// seconds first. It reports whether there may be more.
func (b *Boxes) TakeHandover(idsMax int, elsewhere func(ring.Partition) bool, dst []event.Finished) (_ []event.Finished, more bool) {
	leaves := func(serial uint64, number ring.Partition) bool {
		p := b.part(number)
		return serial < p.leaves && !p.ours() && elsewhere(number)
	}
	dst = b.window.takeAll(b.late, leaves, dst)
	b.late = b.late[:0]
	return b.window.sweepSome(idsMax, leaves, dst)
}

// RestartHandover makes TakeHandover look at all ids again: partitions that had no other
// owner may have one now.
func (b *Boxes) RestartHandover(now clock.Instant) { b.window.beginSweep(now) }

// TakeOver takes in ids that earlier owners have finished. Waiting events among them are
// answered Done; a running one continues, and its result counts.
func (b *Boxes) TakeOver(now clock.Instant, done []event.Finished, out *Output) {
	b.call++
	for _, d := range done {
		hash, bit := hashOf(d.ID), bitOf(d.ID)
		s := b.spans.find(hash, d.ID)
		switch {
		case s == nil:
			b.window.add(min(now, d.At), d.Partition, b.spans.add(hash, d.ID), bit)
		case s.here.has(bit):
			if it := b.searchPart(b.part(d.Partition), s, bit); it.delivery == 0 {
				b.takeOut(now, it, out)
			}
		case !s.done.has(bit):
			b.window.add(min(now, d.At), d.Partition, s, bit)
		}
	}
}

// Forget removes all ids of recently finished events and returns their number. If the
// broker delivers such an event again, it runs again.
func (b *Boxes) Forget() (ids int) {
	ids = b.window.n
	for b.window.n > 0 {
		b.window.forgetOldest()
	}
	b.late = b.late[:0]
	return ids
}

// searchPart is search by partition, for an event whose key is not known.
func (b *Boxes) searchPart(p *part, s *span, bit uint8) *item {
	for a := p.actors; a != nil; a = a.inPart.next {
		if it := a.search(s.place, bit); it != nil {
			return it
		}
	}
	return b.search(nil, s, bit)
}

// takeOut ends a waiting event that another member has finished.
func (b *Boxes) takeOut(now clock.Instant, it *item, out *Output) {
	a := it.actor
	b.dequeueWaiting(a)
	if it == a.head {
		a.heldUntil = 0
	}
	a.remove(it)
	b.counters.Duplicates++
	it.copied = false // its earlier owner vouches for the id
	b.settleDone(now, it, out)
	b.repayKey(a, out)
	if a.running == nil {
		b.enqueue(now, a, out)
	}
}

// actor returns the actor of a key, or nil.
func (b *Boxes) actor(key event.Key, hash uint32) *actor {
	ref := b.keys.find(hash, func(ref uint32) bool { return b.actors.at(ref-1).key == key })
	if ref == 0 {
		return nil
	}
	return b.actors.at(ref - 1)
}

func (b *Boxes) hashOfKey(key event.Key) uint32 {
	return uint32(maphash.String(b.seed, string(key)))
}

// activate creates the actor of a key.
func (b *Boxes) activate(p *part, key event.Key, hash uint32) *actor {
	a, place := b.actors.get()
	a.key, a.place, a.hash = key, place, hash
	p.addActor(a)
	b.keys.add(a.hash, a.ref())
	return a
}

// passivate frees the actor of a key without events.
func (b *Boxes) passivate(a *actor) {
	a.part.removeActor(a)
	b.keys.remove(a.hash, a.ref())
	b.actors.put(a.place)
}

// enqueue files an idle actor under the reason why its first event waits: gate, retry, worker
// or slot.
func (b *Boxes) enqueue(now clock.Instant, a *actor, out *Output) {
	switch {
	case a.head == nil:
		b.passivate(a)
	case !a.part.mayRun(a.key):
		a.wait, a.since = WaitGate, now
	case a.heldUntil.After(now):
		a.wait, a.since = WaitRetry, now
		heap.Push(&b.held, a)
		out.DueSooner = out.DueSooner || b.held[0] == a
	default:
		b.makeReady(now, a, out)
	}
}

// makeReady adds an actor whose first event may run to the queue of its worker.
func (b *Boxes) makeReady(now clock.Instant, a *actor, out *Output) {
	if a.workers != b.workers.generation {
		a.worker, a.workers = b.workers.pick(a.key), b.workers.generation
	}
	a.since = now
	if a.worker == nil {
		a.wait = WaitWorker
		b.orphans.push(a)
		return
	}
	a.wait = WaitSlot
	a.worker.ready.push(a)
	b.ready++
	b.wake(a.worker, out)
}

// dequeue undoes makeReady.
func (b *Boxes) dequeue(a *actor) {
	if a.wait == WaitWorker {
		b.orphans.remove(a)
		return
	}
	a.worker.ready.remove(a)
	b.ready--
}

// dequeueWaiting undoes enqueue. An actor whose key runs is not changed.
func (b *Boxes) dequeueWaiting(a *actor) {
	switch a.wait {
	case WaitHandler:
		return
	case WaitRetry:
		heap.Remove(&b.held, int(a.heldIndex))
	case WaitWorker, WaitSlot:
		b.dequeue(a)
	case WaitNothing, WaitGate:
	}
	a.wait = WaitNothing
}

func (b *Boxes) wake(w *worker, out *Output) {
	if w.woken != b.call {
		w.woken = b.call
		out.Wake = append(out.Wake, w.id)
	}
}

// replace replaces an item's event by another version of the same event.
func (b *Boxes) replace(it *item, e *event.Event) {
	b.bytes -= int(it.bytes)
	it.event, it.attempts, it.crashes, it.bytes = e, e.Attempts, e.Crashes, uint32(weigh(e))
	b.bytes += int(it.bytes)
}

// settleDone is settle for a finished event: its id moves to the window.
func (b *Boxes) settleDone(now clock.Instant, it *item, out *Output) {
	s := b.spans.at(it.span)
	if !it.copied {
		b.window.add(now, it.actor.part.number, s, it.bit)
		s.here.remove(it.bit)
	} else {
		added := b.window.addCopy(now, it.actor.part.number, s, it.bit, contentOf(it.event))
		s.here.remove(it.bit)
		if !added {
			b.spans.drop(s)
		}
	}
	b.answer(it, event.Done, nil, out)
	b.release(it)
}

// settle answers an item's senders and frees it. The item is in no queue and does not
// run.
func (b *Boxes) settle(it *item, kind event.VerdictKind, detail *event.Detail, out *Output) {
	s := b.spans.at(it.span)
	s.here.remove(it.bit)
	b.spans.drop(s)
	b.answer(it, kind, detail, out)
	b.release(it)
}

// release frees an item whose senders were answered.
func (b *Boxes) release(it *item) {
	b.bytes -= int(it.bytes)
	it.cohort.items--
	b.ages.end(it.cohort)
	it.actor.keepKey()
	b.items.put(it.place)
}

// answer adds a verdict for each live sender of an item.
func (b *Boxes) answer(it *item, kind event.VerdictKind, detail *event.Detail, out *Output) {
	if !b.isGone(it.first) {
		out.say(it.first, kind, detail)
	}
	for _, to := range it.joined {
		if !b.isGone(to) {
			out.say(to, kind, detail)
		}
	}
}

// say adds a verdict. There are as few senders as peers.
func (o *Output) say(to address, kind event.VerdictKind, detail *event.Detail) {
	v := event.Verdict{Handle: to.handle, Kind: kind, Detail: detail}
	for i := range o.Answers {
		if a := &o.Answers[i]; a.To == to.sender {
			a.Verdicts = append(a.Verdicts, v)
			return
		}
	}
	if len(o.Answers) == cap(o.Answers) {
		o.Answers = append(o.Answers, Answer{})
	} else {
		o.Answers = o.Answers[:len(o.Answers)+1] // reuses the Verdicts from before Reset
	}
	a := &o.Answers[len(o.Answers)-1]
	a.To, a.Verdicts = to.sender, append(a.Verdicts[:0], v)
}
