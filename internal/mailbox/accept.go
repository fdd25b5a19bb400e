package mailbox

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Accept takes events from a sender, or refuses them at once. senderEpoch is the newest epoch that the sender has
// applied; when it is newer than ours, a partition that is not ours may become ours in a moment, and the answer is
// NotYet. The events are never written to; they are kept until their verdict. A peer's stream must send nothing more
// after SenderGone.
func (b *Boxes) Accept(now clock.Instant, from Sender, senderEpoch event.Position, events []event.Ref, out *Output) {
	if from != Local && from != Letters {
		b.senders[from] = struct{}{}
	}
	group := b.ages.begin(now)
	group.peerBytes, group.own = b.peerBytes, from == Local
	group.items++ // so that it stays, though an event that is skipped at once leaves it
	b.lookAhead(events)
	for i := range events {
		e := &events[i]
		b.accept(group, address{from, e.Handle()}, senderEpoch, e, &b.lookups[i], out)
	}
	group.items--
	b.ages.end(group)
	clear(b.lookups) // their names lie in the memory of the events
}

// accept judges one event. It checks the id before the owner of the partition: that the
// event runs or finished here is true under any epoch.
func (b *Boxes) accept(group *cohort, from address, senderEpoch event.Position, e *event.Ref, seen *lookup, out *Output) {
	if call := e.Call(); call != nil {
		b.acceptCall(group, from, senderEpoch, e, call, seen, out)
		return
	}
	id, s, bit := seen.message, b.spans.find(seen.id, seen.message), bitOf(seen.message)
	other := id.IsCall() || s != nil && b.isDifferent(s, bit, e, seen) // only a copy with a false id has that of a call
	if other {
		b.counters.Mistaken++
		id = aliasOf(e.Event())
		seen.id = hashOf(id)
		s, bit = b.spans.find(seen.id, id), bitOf(id)
	}
	if s != nil && s.here.has(bit) {
		b.join(group.at, b.search(b.actorSeen(seen), s, bit), from, e, out)
		return
	}
	if s != nil && s.done.has(bit) {
		b.counters.Duplicates++
		if redelivery, round := e.Rounds(); redelivery == 0 && round == 0 {
			b.counters.Unrun++
		}
		out.known(e.Key(), id)
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
	a := b.actorSeen(seen)
	bytes := seen.bytes
	tooMuch := b.bytes > 0 && b.bytes+bytes > b.cfg.BytesMax
	if from.sender != Letters && (tooMuch || a != nil && int(a.depth) >= b.cfg.DepthMax) || b.items.len() >= itemsMax {
		b.refuseFull(a, from, out)
		return
	}
	if a == nil {
		id := ring.HashOf(string(seen.name))
		if id.Partition() != e.Partition() {
			b.refuseMisplaced(from, e, out)
			return
		}
		a = b.activate(p, seen.name, seen.key, id)
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
	it.ref, it.actor, it.cohort, it.place = *e, a, group, place
	it.attempts, it.crashes = e.Failures()
	it.span, it.bit, it.id, it.bytes, it.first = s.place, bit, seen.message, uint32(bytes), from
	it.copied = isCopy(e) && !b.signed
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
		b.refileKey(group.at, seen.name, out)
	}
}

// placeBytes approximates the overhead of an event: an item, an actor if it is the only
// event of its key, its part of a span, and index cells.
const placeBytes = 256

// weigh returns an event's part of Config.BytesMax.
func weigh(e *event.Ref) int { return e.Weight() + placeBytes }

// search returns the item of an id that is here. It is nearly always in the actor a of
// the key; a may be nil. An id that came under two keys costs a search of all items.
func (b *Boxes) search(a *actor, s *span, bit uint8) *item {
	if a != nil {
		if it := b.searchIn(a, s, bit); it != nil {
			return it
		}
	}
	for place := range uint32(b.items.places()) {
		if it := b.items.at(place); it.actor != nil && it.is(s.place, bit) {
			return it
		}
	}
	return nil // never
}

// searchIn returns the item of an id in an actor, an event or a visit, nil if it is not there.
func (b *Boxes) searchIn(a *actor, s *span, bit uint8) *item {
	if a.running != nil && a.running.is(s.place, bit) {
		return a.running
	}
	it := a.search(s.place, bit)
	if it == nil && a.visited {
		it = b.visits.of[a].search(s.place, bit)
	}
	return it
}

// join adds a sender to the recipients of an item's verdict.
func (b *Boxes) join(now clock.Instant, it *item, from address, e *event.Ref, out *Output) {
	if it.hasSender(from) {
		return
	}
	if len(it.joined())+1 >= b.cfg.JoinsMax && from.sender != Letters {
		b.dropGone(it)
		if len(it.joined())+1 >= b.cfg.JoinsMax {
			b.refuseOverload(from, out)
			return
		}
	}
	b.counters.Joined++
	it.addSender(from)
	it.copied = it.copied && isCopy(e)
	if attempts, crashes := e.Failures(); attempts > it.attempts || crashes > it.crashes {
		newer := *e // this consumer node knows of failures that the first did not
		if from.sender != Local {
			newer = event.RefTo(e.Event().Clone()) // unpin may have passed the item
		}
		if attempts < it.attempts || crashes < it.crashes {
			both := *newer.Event()
			both.Attempts, both.Crashes = max(attempts, it.attempts), max(crashes, it.crashes)
			newer = event.RefTo(&both)
		}
		b.replace(it, newer)
	}
	if from.sender == Letters {
		b.refile(now, it.actor, out) // it no longer waits behind the other events of an unparked key
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

// refuseMisplaced rejects an event whose key does not belong to its partition. If it were accepted, it could run
// beside other events of its key; if it were refused, its sender would send it again unchanged.
func (b *Boxes) refuseMisplaced(to address, e *event.Ref, out *Output) {
	b.counters.Misplaced++
	ev := e.Event()
	out.say(to, event.Rejected, &event.Detail{
		Attempts:   ev.Attempts,
		Reason:     "the event's partition is not that of its key",
		FirstError: ev.FirstError,
		Owner:      b.member,
	})
}
