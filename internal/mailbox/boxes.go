package mailbox

import (
	"container/heap"
	"hash/maphash"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/invariant"
	"github.com/ringfence/router/internal/base/planted"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Sender names who waits for a verdict: [Local], or one inbound peer stream. Never reused.
type Sender uint64

// Local is this node's own table of events held until their verdict.
const Local Sender = 0

// Addressed is a verdict and who waits for it.
type Addressed struct {
	To Sender
	event.Verdict
}

// Done is handles of events that were done, and who waits for them.
type Done struct {
	To      Sender
	Handles []event.Handle
}

// Output is what calls ask their caller to do. Calls append to it; the caller may
// reuse it after Reset.
type Output struct {
	// Verdicts on events that do not say done, each to be passed on to its sender. They
	// come before Done of the same event.
	Verdicts []Addressed
	// Done is all verdicts that say done, as most do, by sender: at most one for each.
	Done []Done
	// Credits for senders that were told Overloaded, each to be passed on.
	Credits []Credit
	// Wake names workers for which keys became ready. A worker may be named twice.
	Wake []event.WorkerID
	// Ended names partitions that were not open and on which a delivery ended.
	// It says where to look: when it is read, the gate may have moved on. Only who
	// moves gates can tell by Busy that a partition is drained and stays so.
	Ended []ring.Partition
	// Nearer says that a key waits for a retry that is due before all others, so that
	// Next is nearer than it was.
	Nearer bool
	// Ignored counts results of deliveries that are unknown or over.
	Ignored int
}

// Reset empties the output and keeps its memory.
func (o *Output) Reset() {
	clear(o.Verdicts) // they hold strings
	clear(o.Credits)
	*o = Output{Verdicts: o.Verdicts[:0], Done: o.Done[:0], Credits: o.Credits[:0], Wake: o.Wake[:0], Ended: o.Ended[:0]}
}

// Boxes holds the actors of the partitions of one shard. It is not safe for
// concurrent use. The instants it is given may go back by the little that callers
// wait for a lock: retries and ageing are then off by as little.
type Boxes struct {
	cfg    Config // of this shard alone
	retry  outcome.Config
	member string
	shard  int
	shards int

	epoch   event.Position // newest applied epoch that we were told
	parts   []part         // partition / shards → partition
	keys    *index         // hash of a key → its actor
	seed    maphash.Seed   // of the hashes of keys, so that nobody can choose keys that meet
	actors  slab[actor]
	spans   *spans     // of what is here, and of what the window remembers
	items   slab[item] // waiting or running
	running int
	signed  bool                // copies are what they say: a key of the group has signed them
	senders map[Sender]struct{} // peer streams that sent something and are not gone
	owed    debts
	window  window
	late    []uint64 // serials in the window of what ended on partitions that were not ours any more

	workers workers
	ready   int   // keys in the workers' queues
	orphans queue // ready keys while there is no worker
	held    heldHeap
	ages    ages

	unpinned  clock.Instant // when Tick called unpin last
	framed    uint64        // weight of all that peers have brought to this node, see unpin
	call      uint64        // counts calls, so that each of them wakes a worker once
	delivered uint64        // counts deliveries, for their ids and turns; never goes back
	bytes     int
	counters  Counters
	looks     []look // at the events that are being accepted
	brought   int    // what these weigh without their places here, see unpin
	read      int    // by readAhead and lookAhead
}

// New returns the Boxes of a node with one shard. The bounds of cfg and retry are
// taken as valid; member is the node's name in verdicts.
func New(cfg Config, retry outcome.Config, member string) *Boxes {
	return newShard(cfg, retry, member, 0, 1)
}

// newShard returns the Boxes for the partitions p with p mod shards = shard. The
// bounds of cfg are those of this shard alone.
func newShard(cfg Config, retry outcome.Config, member string, shard, shards int) *Boxes {
	count := (ring.Partitions - shard + shards - 1) / shards
	b := &Boxes{
		cfg: cfg, retry: retry, member: member, shard: shard, shards: shards,
		parts:   make([]part, count),
		keys:    newIndex(),
		seed:    maphash.MakeSeed(),
		spans:   newSpans(),
		senders: make(map[Sender]struct{}),
	}
	b.window = newWindow(b.spans, cfg.WindowBytesMax, cfg.WindowAgeMax)
	for i := range b.parts {
		b.parts[i].number = ring.Partition(i*shards + shard)
	}
	return b
}

// part returns what is known about p, which must be a partition of this shard.
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
	came := b.ages.begin(now)
	came.framed = b.framed
	b.lookAhead(events)
	for i, e := range events {
		b.accept(came, address{from, e.Handle}, senderEpoch, e, &b.looks[i], out)
	}
	b.ages.end(came)
}

// accept judges one event. What is known about its id comes before whose partition
// it is: that it runs here or was done here is true under any epoch.
func (b *Boxes) accept(came *arrival, from address, senderEpoch event.Position, e *event.Event, seen *look, out *Output) {
	id, s, bit := e.ID, b.spans.find(seen.id, e.ID), bitOf(e.ID)
	other := s != nil && b.isAnother(s, bit, e, seen)
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
		out.sayDone(from)
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
	it.event, it.actor, it.arrival, it.place, it.attempts, it.crashes = e, a, came, place, e.Attempts, e.Crashes
	it.span, it.bit, it.id, it.bytes, it.first = s.place, bit, e.ID, uint32(bytes), from
	it.copied = e.Round > 0 && !b.signed && !other
	b.bytes += bytes
	came.items++
	a.pushBack(it)
	if a.wait == WaitNothing {
		b.place(came.at, a, out)
	}
}

// placeBytes is about what an event takes here besides its own weight: an item, an
// actor if no other event of its key is here, its part of a span, and their places in
// the indexes.
const placeBytes = 256

// weigh returns what an event counts in Config.BytesMax.
func weigh(e *event.Event) int { return e.Bytes() + placeBytes }

// look is what accepting an event needs to know of it: the hashes of its span and its
// key, what it weighs, and its partition.
type look struct {
	id, key uint32
	actor   uint32 // reference under the hash of the key, nearly always of its actor; 0 if there was none
	bytes   int
	part    *part // nil if there is no such partition
}

// lookAhead looks at events once, and reads what accepting them will look at besides.
// As in readAhead, the cache misses of many events are then under way at a time.
func (b *Boxes) lookAhead(events []*event.Event) {
	sum := 0
	b.brought = 0
	b.looks = grow(b.looks, len(events))
	for i, e := range events {
		seen := &b.looks[i]
		seen.id, seen.key, seen.bytes, seen.part = hashOf(e.ID), b.hashOfKey(e.Key), weigh(e), nil
		if e.Partition < ring.Partitions {
			seen.part = b.part(e.Partition)
			sum += seen.part.running
		}
		b.brought += seen.bytes - placeBytes
		sum += int(b.spans.index.peek(seen.id) + b.keys.peek(seen.key))
	}
	fresh := 0
	for i := range b.looks {
		seen := &b.looks[i]
		if seen.actor = b.keys.guess(seen.key); seen.actor != 0 {
			a := b.actors.at(seen.actor - 1)
			sum += int(a.depth) + int(a.place)
			if len(a.key) > 0 {
				sum += int(a.key[0])
			}
			if a.tail != nil {
				sum += int(a.tail.place)
			}
			continue
		}
		fresh++
		if p := seen.part; p != nil && p.actors != nil {
			sum += int(p.actors.place)
		}
	}
	for _, place := range b.actors.next(fresh) {
		a := b.actors.at(place)
		sum += int(a.depth) + int(a.place)
	}
	for _, place := range b.items.next(len(events)) {
		it := b.items.at(place)
		sum += int(it.delivery) + len(it.joined)
	}
	b.read = sum
}

// search returns the item of an id that is here. It is nearly always in the actor of the
// key, a, which may be nil. An id that has come under two keys costs a look at every item.
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

// join lets one more sender wait for the verdict on an event that is here.
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
		b.replace(it, e) // its consumer node has heard of failures that ours has not
	}
}

func (b *Boxes) refuseForeign(to address, senderEpoch event.Position, out *Output) {
	if b.epoch.Before(senderEpoch) {
		b.counters.NotYet++
		out.say(to, event.Verdict{Kind: event.NotYet, Delay: b.cfg.NotYetDelay})
		return
	}
	b.counters.NotOwner++
	out.say(to, event.Verdict{Kind: event.NotOwner, Epoch: b.epoch})
}

func (b *Boxes) refuseOverload(to address, out *Output) {
	b.counters.Overloaded++
	out.say(to, event.Verdict{Kind: event.Overloaded, Delay: b.cfg.OverloadedDelay})
}

// refuseMisplaced answers an event whose key belongs to another partition than it
// says. Taken in, it could run beside its key; sent again, it would come back the same.
func (b *Boxes) refuseMisplaced(to address, e *event.Event, out *Output) {
	b.counters.Misplaced++
	out.say(to, event.Verdict{
		Kind:       event.Rejected,
		Attempts:   e.Attempts,
		Reason:     "the event's partition is not that of its key",
		FirstError: e.FirstError,
		Owner:      b.member,
	})
}

// Take appends to dst the first events of up to limit keys that are ready for w, and
// returns it. Each of them runs from now on. It takes nothing for a worker that is
// not up, nor while the lease is over: then Tick wakes w when it may come back.
func (b *Boxes) Take(now clock.Instant, lease ownership.Lease, w event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	worker := b.workers.find(w)
	if worker == nil {
		return dst
	}
	for range limit {
		a := worker.ready.head()
		if a == nil || !lease.MayDispatch(a.part.gate, now) {
			break // the gate of a ready key is open, so it is the lease
		}
		worker.ready.pop()
		b.ready--
		if !invariant.Check(a.running == nil, "mailbox: one delivery of a key at a time") {
			a.wait = WaitHandler // give the key up rather than the promise
			continue
		}
		dst = append(dst, event.Delivery{})
		b.dispatch(now, a, &dst[len(dst)-1])
	}
	return dst
}

// dispatch makes the first event of a ready key run. It writes what it says into its
// place: to copy what was just written has to wait until all writes before are through.
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
	if d.Token != 0 { // without one, the counts of two owners have no order
		d.Turn = b.turn()
	}
}

// turn returns the turn of the newest delivery. A partition stays in its shard, and
// Boxes live as long as the process: so turns of a key grow as long as its token stays.
func (b *Boxes) turn() uint64 {
	if planted.On(planted.SameToken) {
		return 1
	}
	return b.delivered
}

// itemsMax is how many events one shard may hold, so that the number of a place fits
// into the id of a delivery.
const (
	placeBits = 20
	itemsMax  = 1 << placeBits
)

// newDelivery names a delivery: how many there were before, the place of its item,
// and the shard. So the item is found without a search, and all shards together give
// 1<<44 names before the first comes again.
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

// Delivered returns the event of a delivery that is not over, nil when it is.
func (b *Boxes) Delivered(id event.DeliveryID) *event.Event {
	if it := b.find(id); it != nil {
		return it.event
	}
	return nil
}

// Finish ends deliveries. A result of a delivery that is unknown or over is ignored
// and counted.
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

// readAhead reads what finishing results will look at, and does nothing else. In
// finish each cache miss waits for the one before it; here those of many results are
// under way at a time.
func (b *Boxes) readAhead(results []event.Result) {
	sum := 0
	for i := range results {
		it := b.find(results[i].Delivery)
		if it == nil {
			continue
		}
		a := it.actor
		sum += a.part.running + int(a.place) + it.arrival.items + len(it.joined) + int(b.spans.at(it.span).done[0])
		if a.head == nil { // it will go
			sum += int(b.keys.peek(a.hash))
			if a.inPart.prev != nil {
				sum += int(a.inPart.prev.place)
			}
			if a.inPart.next != nil {
				sum += int(a.inPart.next.place)
			}
		}
	}
	b.read = sum // or the compiler would leave it all out
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
	b.place(now, a, out)
	if p.gate != ownership.Open {
		out.Ended = append(out.Ended, p.number)
	}
}

// fail is what becomes of an event that was not done.
func (b *Boxes) fail(now clock.Instant, it *item, o outcome.Outcome, out *Output) {
	if o.Kind == outcome.DeadLetter {
		b.counters.Rejected++
		b.settle(it, b.failure(event.Rejected, it.event, o), out)
		return
	}
	b.again(now, it, o, out)
}

// again is what becomes of an event that is to be tried again: it leaves by way of
// the retry topic, or it goes to the next owner, or it stays first in its key.
func (b *Boxes) again(now clock.Instant, it *item, o outcome.Outcome, out *Output) {
	failed := o.Attempts > it.attempts || o.Crashes > it.crashes
	if !o.Hold {
		b.counters.Failed++
		verdict := b.failure(event.Failed, it.event, o)
		verdict.Delay = o.Delay
		b.settle(it, verdict, out)
		return
	}
	if failed {
		if o.Crashes > it.crashes {
			b.counters.Crashed++
		} else {
			b.counters.Retried++
		}
		b.answer(it, event.Verdict{Kind: event.Attempted, Attempts: o.Attempts, Crashes: o.Crashes, Reason: o.Reason}, out)
		b.replace(it, withFailure(it.event, o))
	} else {
		b.counters.Returned++
	}
	if !it.actor.part.ours() {
		b.counters.Moved++
		b.settle(it, event.Verdict{Kind: event.NotOwner, Epoch: b.epoch}, out)
		return
	}
	it.actor.pushFront(it)
	if o.Delay > 0 {
		it.actor.heldUntil = now.Add(o.Delay)
	}
}

// failure returns a final verdict on an event that the application failed.
func (b *Boxes) failure(kind event.VerdictKind, e *event.Event, o outcome.Outcome) event.Verdict {
	return event.Verdict{
		Kind:       kind,
		Attempts:   o.Attempts,
		Reason:     o.Reason,
		FirstError: firstError(e, o),
		Owner:      b.member,
	}
}

// withFailure returns a copy of e that has failed once more. A copy, because others
// hold e: the table of the consumer node, and whoever is still writing it to a stream.
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

// SetGates moves gates, each of a partition of this shard; epoch is the newest
// applied one. Waiting events of a partition that is not ours any more are answered
// NotOwner; running ones go on. No delivery under an old gate begins after it.
func (b *Boxes) SetGates(now clock.Instant, changes []ownership.GateChange, epoch event.Position, out *Output) {
	b.call++
	b.SetEpoch(epoch)
	for _, c := range changes {
		b.setGate(now, c, out)
	}
}

// SetEpoch says what the newest applied epoch is, where no gate moved with it.
func (b *Boxes) SetEpoch(epoch event.Position) {
	if b.epoch.Before(epoch) {
		b.epoch = epoch
	}
}

func (b *Boxes) setGate(now clock.Instant, c ownership.GateChange, out *Output) {
	p := b.part(c.Partition)
	// Were it broken, a key that runs would still not run twice here.
	opens := c.Gate == ownership.Open && p.gate != ownership.Open
	invariant.Check(!opens || p.running == 0, "mailbox: a gate opens only when nothing of an earlier tenure runs")
	p.gate, p.token, p.withheld = c.Gate, c.Token, c.Withheld
	for a := p.actors; a != nil; {
		next := a.inPart.next
		b.lift(a)
		if !p.ours() {
			b.refuseWaiting(a, out)
			b.cancelDebts(a)
		}
		if a.running == nil {
			b.place(now, a, out)
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
		b.settle(it, event.Verdict{Kind: event.NotOwner, Epoch: b.epoch}, out)
		it = next
	}
}

// Running returns how many deliveries on p are not over, whatever tenure they began in.
func (b *Boxes) Running(p ring.Partition) int { return b.part(p).running }

// Busy returns the keys on p of which a delivery is not over, ascending, whatever
// tenure it began in.
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

// WorkerUp adds a worker: it gets its share of the keys that are ready.
func (b *Boxes) WorkerUp(now clock.Instant, id event.WorkerID, out *Output) {
	b.call++
	i, found := b.workers.search(id)
	if found {
		return
	}
	b.workers.all = slices.Insert(b.workers.all, i, &worker{id: id, salt: mix(uint64(id))})
	b.workers.generation++
	b.assignAnew(now, &b.orphans, nil, out)
	for _, w := range b.workers.all {
		b.assignAnew(now, &w.ready, w, out)
	}
}

// WorkerGone removes a worker: its ready keys go to the others. What it runs goes on
// running until Finish says how it ended.
func (b *Boxes) WorkerGone(now clock.Instant, id event.WorkerID, out *Output) {
	b.call++
	i, found := b.workers.search(id)
	if !found {
		return
	}
	gone := b.workers.all[i]
	b.workers.all = slices.Delete(b.workers.all, i, i+1)
	b.workers.generation++
	b.assignAnew(now, &gone.ready, gone, out)
}

// assignAnew moves the keys in q, which are ready for from, to the workers that
// rendezvous now gives them.
func (b *Boxes) assignAnew(now clock.Instant, q *queue, from *worker, out *Output) {
	for number := q.first; number < q.end; number++ {
		if a := q.at(number); a != nil && b.workers.pick(a.key) != from {
			b.dequeue(a)
			b.makeReady(now, a, out)
		}
	}
}

// SenderGone says that verdicts for a peer's stream have no address any more. Its
// events stay: they are worked on, and who sends them again joins them.
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

// Tick lets retries that are due become ready, ages the window, and wakes every
// worker that has ready keys. It is due at Next, and when a lease has come back.
func (b *Boxes) Tick(now clock.Instant, out *Output) {
	b.call++
	for len(b.held) > 0 && !b.held[0].heldUntil.After(now) {
		a := b.held[0]
		b.lift(a)
		b.place(now, a, out)
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

// PartWith forgets events that were done lately on partitions that were ours, and
// appends them to dst for the next owners, where elsewhere says that there is such an
// owner: all that ended after its partition had moved, and at most so many others, those
// of the last seconds first. It reports whether there may be more of these.
func (b *Boxes) PartWith(idsMax int, elsewhere func(ring.Partition) bool, dst []event.Finished) (_ []event.Finished, more bool) {
	leaves := func(serial uint64, number ring.Partition) bool {
		p := b.part(number)
		return serial < p.leaves && !p.ours() && elsewhere(number)
	}
	dst = b.window.takeAll(b.late, leaves, dst)
	b.late = b.late[:0]
	return b.window.sweepSome(idsMax, leaves, dst)
}

// PartAgain lets PartWith begin again: what had no owner elsewhere may have one.
func (b *Boxes) PartAgain(now clock.Instant) { b.window.beginSweep(now) }

// TakeOver takes in what earlier owners have done. Events that wait here and stand in
// it are answered Done; one that runs goes on, and counts by its result.
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

// Forget forgets all ids of events that were done lately, and returns how many: what the
// broker delivers again of them runs again.
func (b *Boxes) Forget() (ids int) {
	ids = b.window.n
	for b.window.n > 0 {
		b.window.forgetOldest()
	}
	b.late = b.late[:0]
	return ids
}

// searchPart is search where the key is not known, but its partition.
func (b *Boxes) searchPart(p *part, s *span, bit uint8) *item {
	for a := p.actors; a != nil; a = a.inPart.next {
		if it := a.search(s.place, bit); it != nil {
			return it
		}
	}
	return b.search(nil, s, bit)
}

// takeOut settles a waiting event that was done elsewhere.
func (b *Boxes) takeOut(now clock.Instant, it *item, out *Output) {
	a := it.actor
	b.lift(a)
	if it == a.head {
		a.heldUntil = 0
	}
	a.remove(it)
	b.counters.Duplicates++
	it.copied = false // its earlier owner says that it was done
	b.settleDone(now, it, out)
	b.repayKey(a, out)
	if a.running == nil {
		b.place(now, a, out)
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

// actorSeen is actor for an event that lookAhead has seen, while no actor has gone since.
func (b *Boxes) actorSeen(key event.Key, seen *look) *actor {
	if seen.actor != 0 {
		if a := b.actors.at(seen.actor - 1); a.key == key {
			return a
		}
	}
	return b.actor(key, seen.key)
}

func (b *Boxes) hashOfKey(key event.Key) uint32 {
	return uint32(maphash.String(b.seed, string(key)))
}

// activate makes the actor of a key.
func (b *Boxes) activate(p *part, key event.Key, hash uint32) *actor {
	a, place := b.actors.get()
	a.key, a.place, a.hash = key, place, hash
	p.link(a)
	b.keys.add(a.hash, a.ref())
	return a
}

// passivate lets the actor of a key without events go.
func (b *Boxes) passivate(a *actor) {
	a.part.unlink(a)
	b.keys.remove(a.hash, a.ref())
	b.actors.put(a.place)
}

// place puts an actor that is nowhere, and of whose key nothing runs, where its
// first event has to wait.
func (b *Boxes) place(now clock.Instant, a *actor, out *Output) {
	switch {
	case a.head == nil:
		b.passivate(a)
	case !a.part.mayRun(a.key):
		a.wait, a.since = WaitGate, now
	case a.heldUntil.After(now):
		a.wait, a.since = WaitRetry, now
		heap.Push(&b.held, a)
		out.Nearer = out.Nearer || b.held[0] == a
	default:
		b.makeReady(now, a, out)
	}
}

// makeReady queues an actor whose first event may run at the worker of its key.
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

// lift takes an actor out of where it waits. One whose key runs stays where it is.
func (b *Boxes) lift(a *actor) {
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

// replace puts another version of the same event in the place of an item's.
func (b *Boxes) replace(it *item, e *event.Event) {
	b.bytes -= int(it.bytes)
	it.event, it.attempts, it.crashes, it.bytes = e, e.Attempts, e.Crashes, uint32(weigh(e))
	b.bytes += int(it.bytes)
}

// settleDone is settle for an event that was done: its id goes over to the window.
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
	if !b.isGone(it.first) {
		out.sayDone(it.first)
	}
	for _, to := range it.joined {
		if !b.isGone(to) {
			out.sayDone(to)
		}
	}
	b.release(it)
}

// settle tells everybody who waits for an item, and lets it go. The item is in no
// queue and does not run.
func (b *Boxes) settle(it *item, v event.Verdict, out *Output) {
	s := b.spans.at(it.span)
	s.here.remove(it.bit)
	b.spans.drop(s)
	b.answer(it, v, out)
	b.release(it)
}

// release lets an item go that was answered.
func (b *Boxes) release(it *item) {
	b.bytes -= int(it.bytes)
	it.arrival.items--
	b.ages.end(it.arrival)
	it.actor.keepKey()
	b.items.put(it.place)
}

// answer tells everybody who waits for an item and can be told.
func (b *Boxes) answer(it *item, v event.Verdict, out *Output) {
	if !b.isGone(it.first) {
		out.say(it.first, v)
	}
	for _, to := range it.joined {
		if !b.isGone(to) {
			out.say(to, v)
		}
	}
}

func (o *Output) say(to address, v event.Verdict) {
	v.Handle = to.handle
	o.Verdicts = append(o.Verdicts, Addressed{To: to.sender, Verdict: v})
}

// sayDone is say for what is said most. Senders are few, as many as peers.
func (o *Output) sayDone(to address) {
	for i := range o.Done {
		if d := &o.Done[i]; d.To == to.sender {
			d.Handles = append(d.Handles, to.handle)
			return
		}
	}
	if len(o.Done) == cap(o.Done) {
		o.Done = append(o.Done, Done{})
	} else {
		o.Done = o.Done[:len(o.Done)+1] // with the memory of what was there before Reset
	}
	d := &o.Done[len(o.Done)-1]
	d.To, d.Handles = to.sender, append(d.Handles[:0], to.handle)
}
