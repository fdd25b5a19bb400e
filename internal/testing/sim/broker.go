package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/ring"
)

// broker is the toy data broker: one topic with a SHARED subscription, and the retry
// topic beside it. Producers send batches; a batch is an entry, which goes to one
// consumer, whole, and comes whole again when that consumer is gone.
type broker struct {
	w         *world
	next      source.EntryID
	ready     []*entry // to be dispatched, oldest first
	consumers []*consumer
	turn      int
	unacked   int // entries
	outage    time.Duration
	events    []*published   // those that are not settled
	last      event.Position // of the newest batch
	byID      map[event.MessageID]*published
}

// published is one event, from its publication to its end.
type published struct {
	id     event.MessageID
	key    event.Key
	at     time.Duration
	copies int // entries that hold it and are not acked
	done   int // handlers that finished and reported it
	dead   bool
	kills  int // workers that it has killed since it was last a dead letter
}

type entry struct {
	id       source.EntryID
	events   []*event.Event // as received: each receiver copies them
	acked    bool
	left     event.Bits // events that are not acked
	consumer *consumer  // whose it is now
	times    uint32     // deliveries
}

// consumer is a member's subscription.
type consumer struct {
	member *member
	ledger *source.Ledger
	closed bool
	holds  []*entry
	lost   bool // the broker has dropped the connection, the client connects again
}

// permitsMax is the number of entries that a consumer holds.
const permitsMax = 16

func newBroker(w *world) *broker {
	return &broker{w: w, next: source.EntryID{Ledger: 5000}, byID: map[event.MessageID]*published{}}
}

// publish sends one batch.
func (b *broker) publish() {
	w := b.w
	e := b.newEntry()
	for i := range 1 + w.rng.IntN(4) {
		key := w.keys[w.rng.IntN(len(w.keys))]
		if w.chance(0.3) {
			key = w.keys[0] // a hot key
		}
		id := event.MessageID{Ledger: e.id.Ledger, Entry: e.id.Entry, Batch: int32(i), TopicPartition: -1}
		p := &published{id: id, key: key, at: w.now, copies: 1}
		b.add(p)
		e.events = append(e.events, &event.Event{ID: id, Key: key, Topic: "t", PublishTime: int64(w.now / time.Millisecond)})
		w.count("published")
	}
	b.last = event.Position{Ledger: e.id.Ledger, Entry: e.id.Entry}
	b.ready = append(b.ready, e)
	b.dispatch()
}

func (b *broker) newEntry() *entry {
	b.next.Entry++
	b.unacked++
	return &entry{id: b.next}
}

// copyLater takes a copy of an event for the retry topic, which delivers it after a delay.
func (b *broker) copyLater(ev *event.Event, d event.Detail) {
	b.copied(ev, 1)
	e := b.newEntry()
	c := *ev
	c.Handle, c.Attempts, c.Round, c.LastError = 0, max(ev.Attempts, d.Attempts), ev.Round+1, d.Reason
	if c.FirstError == "" {
		c.FirstError = d.FirstError
	}
	e.events = []*event.Event{&c}
	b.w.count("copied")
	b.w.after(d.Delay, func() {
		b.ready = append(b.ready, e)
		b.dispatch()
	})
}

// find returns the entry of an event. An already settled event returns through a copy that
// another member makes of an old delivery.
func (b *broker) find(ev *event.Event) *published {
	p := b.byID[ev.ID]
	if p == nil {
		p = &published{id: ev.ID, key: ev.Key, at: b.w.now, done: 1}
		b.add(p)
	}
	return p
}

func (b *broker) add(p *published) {
	b.events = append(b.events, p)
	b.byID[p.id] = p
}

// copied counts n further copies of an event.
func (b *broker) copied(ev *event.Event, n int) *published {
	p := b.find(ev)
	p.copies += n
	if b.w.agenda != nil && ev.ID.IsSent() {
		b.w.agenda.copies[ev.ID] += n
	}
	return p
}

// subscribe opens a consumer.
func (b *broker) subscribe(m *member, ledger *source.Ledger) *consumer {
	c := &consumer{member: m, ledger: ledger}
	if b.w.spills {
		ledger.Bound(bounds())
		m.process.later(spillEvery, c.spill)
	}
	b.w.after(b.w.between(time.Millisecond, 20*time.Millisecond), func() {
		if !c.closed {
			b.consumers = append(b.consumers, c)
			b.dispatch()
		}
	})
	return c
}

// dispatch gives entries to consumers that have room, each in its turn.
func (b *broker) dispatch() {
	if b.w.now < b.outage {
		return
	}
	for len(b.ready) > 0 {
		c := b.choose()
		if c == nil {
			return
		}
		e := b.ready[0]
		b.ready = b.ready[1:]
		if e.acked {
			continue
		}
		e.times++
		e.consumer = c
		c.holds = append(c.holds, e)
		times := e.times
		c.member.process.later(b.w.between(200*time.Microsecond, 5*time.Millisecond), func() {
			if !c.closed && e.consumer == c && e.times == times {
				c.receive(e)
			}
		})
	}
}

func (b *broker) choose() *consumer {
	for i := range b.consumers {
		c := b.consumers[(b.turn+i)%len(b.consumers)]
		if len(c.holds) < permitsMax && c.member.reading == c && !c.lost {
			b.turn += i + 1
			return c
		}
	}
	return nil
}

// release returns a consumer's events for redelivery.
func (b *broker) release(c *consumer) {
	var again []*entry
	for _, e := range c.holds {
		if e.consumer == c && !e.acked {
			e.consumer = nil
			again = append(again, e)
			b.w.count("redelivered")
		}
	}
	c.holds = nil
	b.ready = append(again, b.ready...)
}

// remove ends a consumer.
func (b *broker) remove(c *consumer) {
	c.closed = true
	b.consumers = slices.DeleteFunc(b.consumers, func(o *consumer) bool { return o == c })
	b.release(c)
	b.dispatch()
}

// drop loses a consumer's connection: the client connects again by itself.
func (b *broker) drop(c *consumer) {
	if c.closed || c.lost {
		return
	}
	b.w.tracef("broker: connection of %s dropped", c.member)
	c.lost = true
	b.release(c)
	b.dispatch()
	c.member.process.later(b.w.between(100*time.Millisecond, time.Second), func() {
		c.lost = false
		b.dispatch()
	})
}

// receive takes one entry in, as source.Source does. Entries that arrive when it no longer
// reads stay in place until the consumer is closed.
func (c *consumer) receive(e *entry) {
	if c.member.reading != c {
		return
	}
	r := &source.Receipt{Entry: e.received(), ID: e.id, Has: slices.Clone(e.unacked()), Ref: e}
	got, again := c.ledger.Received(c.member.clock(), r, nil)
	if len(again) > 0 {
		c.member.w.count("acked_after_loss")
		c.ack(again)
	}
	if got.Fresh > 0 {
		c.member.pipeline.Received(context.Background(), []*event.Entry{r.Entry})
	}
	c.ledger.HandedOn()
}

// received returns the entry as its receiver sees it: a batch as bytes, a copy as an object.
func (e *entry) received() *event.Entry {
	if first := e.events[0]; first.Round == 0 {
		batch := event.NewBatch(len(e.events), 0)
		batch.Ledger, batch.Entry, batch.TopicPartition = first.ID.Ledger, first.ID.Entry, first.ID.TopicPartition
		batch.Batched, batch.Topic, batch.Redelivery = first.ID.Batch >= 0, first.Topic, e.times-1
		for _, ev := range e.events {
			batch.AddPart(event.Part{Key: string(ev.Key), EventTime: ev.EventTime}, ev.Payload, "", ev.Properties)
		}
		return batch
	}
	messages := make([]event.Message, len(e.events))
	for i, ev := range e.events {
		fresh := *ev
		fresh.Redelivery = e.times - 1
		messages[i] = event.Message{Event: &fresh, Key: string(ev.Key)}
	}
	return event.NewEntry(messages...)
}

// spillEvery is longer than in production: spills are to happen, not to be prompt.
const spillEvery = 500 * time.Millisecond

// bounds let a ledger spill in the small numbers that this world has.
func bounds() source.Bounds {
	b := source.Bounds{Spill: source.DefaultSpill(), UnsettledMax: 24, BytesMax: 1 << 20}
	b.PinnedMax, b.KeyShareMax, b.RateMax = 12, 0.3, 5
	b.After, b.StuckAfter = 400*time.Millisecond, 2*time.Second
	return b
}

// spill copies long-open events, as source.Source does.
func (c *consumer) spill() {
	if c.closed {
		return
	}
	for _, h := range c.ledger.Spill(c.member.clock()) {
		c.copySpilled(h)
	}
	c.member.process.later(spillEvery, c.spill)
}

// copySpilled sends a copy of an event that is open. Now and then that fails, which may
// mean that only its confirmation was lost.
func (c *consumer) copySpilled(h event.Handle) {
	m, ok := c.ledger.Sending(h)
	if !ok {
		return
	}
	ev := m.Event
	if newest := c.member.table.Newest(h); newest != nil {
		ev = newest
	}
	w := c.member.w
	failed, landed := w.chance(0.1), !w.chance(0.05)
	w.after(w.between(time.Millisecond, 20*time.Millisecond), func() {
		if landed {
			w.broker.copyLater(ev, event.Detail{Delay: time.Second << min(ev.Round, 2)})
			w.count("spilled")
		}
		c.member.process.act(func() {
			if failed || !landed {
				c.ledger.NotCopied(h)
				c.member.process.later(100*time.Millisecond, func() { c.copySpilled(h) })
				return
			}
			acks, settled := c.ledger.Copied(h, nil)
			if settled {
				c.member.pipeline.Drop([]event.Handle{h}, event.Spilled)
			}
			c.ack(acks)
			c.member.consumeLater()
		})
	})
}

// settle ends events, as source.Source does.
func (c *consumer) settle(done []event.Set, verdicts []event.Verdict) {
	for _, v := range verdicts {
		if !v.Kind.Final() {
			c.member.w.fail("%s settles an event with the verdict %v", c.member, v.Kind)
		}
	}
	var acks []source.Ack
	for _, set := range done {
		acks, _ = c.ledger.Done(set, acks)
	}
	acks, copies, _ := c.ledger.Settle(verdicts, acks)
	for _, claimed := range copies {
		c.copy(claimed.Message, claimed.Verdict)
	}
	c.ack(acks)
	c.member.consumeLater()
}

// copy sends a copy of an event, and settles it when the copy is safe.
func (c *consumer) copy(m event.Message, v event.Verdict) {
	w, parks := c.member.w, v.Kind == event.Parked
	if parks {
		c.member.keeper.copying[m.Event.Key]++
	}
	w.after(w.between(time.Millisecond, 20*time.Millisecond), func() {
		if parks {
			w.acts.land(m.Event, v.DetailOrZero())
			if w.chance(0.05) { // its answer is lost, and it is sent again
				w.acts.land(m.Event, v.DetailOrZero())
			}
		} else if v.Kind == event.Rejected {
			w.broker.deadLetter(m.Event)
			w.count("dead_letter")
		} else {
			w.broker.copyLater(m.Event, v.DetailOrZero())
		}
		c.member.process.act(func() {
			if parks {
				c.member.keeper.copying[m.Event.Key]--
			}
			acks, _ := c.ledger.Copied(v.Handle, nil)
			c.ack(acks)
			c.member.consumeLater()
		})
	})
}

// ack sends acks. They may be lost with the connection.
func (c *consumer) ack(acks []source.Ack) {
	w := c.member.w
	for _, a := range acks {
		e := a.Ref.(*entry)
		w.after(w.between(100*time.Microsecond, 5*time.Millisecond), func() {
			if c.closed || c.lost {
				w.count("ack_lost")
				return
			}
			w.broker.acked(c, e, a.Events)
		})
	}
}

// unacked returns the events of an entry that are not acked.
func (e *entry) unacked() event.Bits {
	if e.left == nil {
		e.left = event.AllBits(len(e.events))
	}
	return e.left
}

// acked ends events of an entry, nil: all, and with them the events of which no other copy is left.
func (b *broker) acked(c *consumer, e *entry, events event.Bits) {
	left := e.unacked()
	for i, ev := range e.events {
		if left.Has(i) && (events == nil || events.Has(i)) {
			left.Remove(i)
			b.gone(ev)
		}
	}
	if left.Len() > 0 {
		b.w.count("acked_in_part")
		return
	}
	c.holds = slices.DeleteFunc(c.holds, func(o *entry) bool { return o == e })
	if e.acked {
		b.w.count("acked_again")
		return
	}
	e.acked = true
	b.unacked--
	if o := e.consumer; o != nil && o != c {
		o.holds = slices.DeleteFunc(o.holds, func(x *entry) bool { return x == e })
	}
	b.dispatch()
}

// gone ends one copy of an event.
func (b *broker) gone(ev *event.Event) {
	p := b.copied(ev, -1)
	if p.copies > 0 {
		return
	}
	if p.done == 0 && !p.dead {
		b.w.fail("event %v was acked, and nobody did it", ev.ID)
	}
	if b.byID[ev.ID] == p {
		delete(b.byID, ev.ID)
	}
}

// open returns how many events are not settled, and the oldest of them.
func (b *broker) open() (n int, oldest *published) {
	b.events = slices.DeleteFunc(b.events, func(p *published) bool { return p.copies <= 0 })
	if len(b.events) > 0 {
		oldest = b.events[0]
	}
	return len(b.events), oldest
}

// deadLetter takes a dead letter. If an entry of its event comes again, the event runs again.
func (b *broker) deadLetter(ev *event.Event) {
	p := b.find(ev)
	p.dead, p.kills = true, 0
	if b.w.agenda != nil && ev.ID.IsSent() {
		b.w.agenda.over[ev.ID]++
		b.w.count("firing_dead")
	}
}

func (p *published) String() string {
	return fmt.Sprintf("event %v of %v ago, done %d times, in %d entries", p.id, p.at, p.done, p.copies)
}

// makeKeys returns n keys that lie in the first partitions of the ring, so that
// tables can be small.
func makeKeys(n, partitions int) []event.Key {
	var keys []event.Key
	for i := 0; len(keys) < n; i++ {
		k := fmt.Sprintf("key-%d", i)
		if p := ring.PartitionOf(k); int(p) < partitions {
			keys = append(keys, event.Key(k))
		}
	}
	return keys
}

// place puts partitions on members by rendezvous hashing: pure, and with few moves. Members of
// one group may place differently, by salt.
func place(partitions int, salt uint64) func(names []string) ([]uint16, error) {
	return func(names []string) ([]uint16, error) {
		table := make([]uint16, partitions)
		for p := range table {
			best := uint64(0)
			for i, name := range names {
				if h := hashOf(salt, uint64(p), name); h >= best {
					best, table[p] = h, uint16(i)
				}
			}
		}
		return table, nil
	}
}

func hashOf(a, b uint64, s string) uint64 {
	h := a*0x9e3779b97f4a7c15 ^ b*0xbf58476d1ce4e5b9
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	h ^= h >> 29
	h *= 0x94d049bb133111eb
	return h ^ h>>32
}
