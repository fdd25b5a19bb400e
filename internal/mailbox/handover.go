package mailbox

import (
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

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

// leaveLate hands the newest id over if its partition has moved.
func (b *Boxes) leaveLate(p *part) {
	if !p.ours() {
		p.leaves = b.window.end
		b.late = append(b.late, p.leaves)
	}
}

// RestartHandover makes TakeHandover look at all ids again: partitions that had no other
// owner may have one now.
func (b *Boxes) RestartHandover(now clock.Instant) { b.window.beginSweep(now) }

// LearnDone takes in the ids of events that earlier owners of their partitions have finished. Waiting events among them
// are answered Done; a running one continues, and its result counts.
func (b *Boxes) LearnDone(now clock.Instant, done []event.Finished, out *Output) {
	for _, d := range done {
		hash, bit := hashOf(d.ID), bitOf(d.ID)
		s := b.spans.find(hash, d.ID)
		switch {
		case s == nil:
			b.learn(min(now, d.At), &d, b.spans.add(hash, d.ID), bit)
		case s.here.has(bit):
			if it := b.searchPart(b.part(d.Partition), s, bit); it.delivery == 0 && b.isOf(it, &d) {
				b.takeOut(now, it, b.compares(&d), out)
			}
		case !s.done.has(bit):
			b.learn(min(now, d.At), &d, s, bit)
		}
	}
	b.repayAll(out)
}

// compares reports whether an id that was handed over counts only for an event with the same content: it is that of a copy,
// whose producer can have chosen it.
func (b *Boxes) compares(d *event.Finished) bool { return d.Content != (event.Content{}) && !b.signed }

// isOf reports whether the event that is here may be the one that another member has finished.
func (b *Boxes) isOf(it *item, d *event.Finished) bool {
	return !b.compares(d) || ContentOf(it.ref.Event()) == d.Content
}

// learn adds an id to the window that another member has handed over.
func (b *Boxes) learn(at clock.Instant, d *event.Finished, s *span, bit uint8) {
	if !b.compares(d) {
		b.window.add(at, d.Partition, s, bit)
	} else {
		b.rememberCopy(at, d.Partition, s, bit, d.Content)
	}
}

// rememberCopy adds the id of a finished copy to the window.
func (b *Boxes) rememberCopy(at clock.Instant, p ring.Partition, s *span, bit uint8, what event.Content) {
	if !b.window.addCopy(at, p, s, bit, what) {
		return
	}
	b.counters.Displaced++
	if b.window.gaps() > b.window.countMax/gapsPart {
		b.closeGaps()
	}
}

// closeGaps frees the slots of ids that were removed from the window.
func (b *Boxes) closeGaps() {
	marks := make([]*uint64, 0, len(b.parts)+len(b.late)+2)
	for i := range b.parts {
		marks = append(marks, &b.parts[i].leaves)
	}
	b.late = slices.DeleteFunc(b.late, func(behind uint64) bool { return behind <= b.window.first || b.window.at(behind-1).is(recordDropped) })
	for i := range b.late {
		marks = append(marks, &b.late[i])
	}
	b.window.closeGaps(marks)
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
		if it := b.searchIn(a, s, bit); it != nil {
			return it
		}
	}
	return b.search(nil, s, bit)
}

// takeOut ends a waiting event that another member has finished; copied: its id counts only for its content.
func (b *Boxes) takeOut(now clock.Instant, it *item, copied bool, out *Output) {
	b.counters.Duplicates++
	a := it.actor
	if it.visit {
		b.window.add(now, a.part.number, b.spans.at(it.span), it.bit)
		b.endWaiting(now, it, event.Done, nil, out)
		return
	}
	b.dequeueWaiting(a)
	if it == a.head {
		a.heldUntil = 0
	}
	a.remove(it)
	out.known(a.key, it.id)
	it.copied = copied // else its earlier owner vouches for the id
	b.settleDone(now, it, out)
	b.repayKey(a, out)
	b.refile(now, a, out)
}
