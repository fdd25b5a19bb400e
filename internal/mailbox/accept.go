package mailbox

import (
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Accept takes events from a sender, or says at once why not. senderEpoch is the
// newest epoch that the sender has applied; when it is newer than ours, a partition
// that is not ours may become ours in a moment, and the answer is NotYet. The events are
// never written to; they are kept until their verdict. A peer's stream that is
// SenderGone must not send any more.
func (b *Boxes) Accept(now clock.Instant, from Sender, senderEpoch event.Position, events []*event.Event, out *Output) {
	b.call++
	if from != Local && from != Letters {
		b.senders[from] = struct{}{}
	}
	group := b.ages.begin(now)
	group.peerBytes = b.peerBytes
	group.items++ // so that it stays, though an event that is skipped at once leaves it
	b.lookAhead(events)
	for i, e := range events {
		b.accept(group, address{from, e.Handle}, senderEpoch, e, &b.lookups[i], out)
	}
	group.items--
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
		b.join(group.at, b.search(b.actorSeen(e.Key, seen), s, bit), from, e, out)
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
	if from.sender != Letters && (tooMuch || a != nil && int(a.depth) >= b.cfg.DepthMax) || b.items.len() >= itemsMax {
		b.refuseFull(a, from, out)
		return
	}
	if a == nil {
		id := ring.HashOf(string(e.Key))
		if id.Partition() != e.Partition {
			b.refuseMisplaced(from, e, out)
			return
		}
		a = b.activate(p, e.Key, seen.key, id)
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
		return
	}
	if len(b.skips.known) > 0 {
		b.leaveSkipped(group.at, a, out)
	}
	if from.sender == Letters {
		b.refile(group.at, e.Key, out)
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
func (b *Boxes) join(now clock.Instant, it *item, from address, e *event.Event, out *Output) {
	if it.first == from || slices.Contains(it.joined, from) {
		return
	}
	if len(it.joined)+1 >= b.cfg.JoinsMax && from.sender != Letters {
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
	if from.sender == Letters {
		b.refile(now, it.actor.key, out) // it need not wait behind the other events of an unparked key any more
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
