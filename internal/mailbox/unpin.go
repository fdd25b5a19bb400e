package mailbox

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// unpinAfter is how long an event of a peer lies in the memory of the frame that
// brought it, give or take as much again.
const unpinAfter = time.Second

// unpin moves events that have been here for long into memory of their own. One that
// waits keeps the whole frame that it came in, of a thousand others that are done, so
// a few stuck keys would hold everything that was ever received with them; and what
// all events weigh is bounded, not what all frames do. Most events are gone within
// the time, and cost nothing here. What this node has received itself stays in the
// batch that it came in, which the source counts whole.
//
// Long is a matter of time, and of what peers have brought since: under load the
// frames of one second may be more than there is room for.
func (b *Boxes) unpin(now clock.Instant) {
	young := func(a *arrival) bool {
		return now.Sub(a.at) < unpinAfter && b.framed-a.framed < uint64(b.cfg.FramesBytesMax)/2
	}
	first := b.ages.oldest
	for first != nil && first.own {
		first = first.younger
	}
	if first == nil || young(first) {
		return
	}
	for place := range uint32(b.items.places()) {
		it := b.items.at(place)
		if it.event == nil || it.first.sender == Local || it.arrival.own || young(it.arrival) {
			continue
		}
		it.event = it.event.Clone()
		it.actor.keepKey()
		b.counters.Unpinned++
	}
	for a := first; a != nil && !young(a); a = a.younger {
		a.own = true
	}
}

// noteFrame counts what a frame of a peer weighs, after it was accepted, and lets all
// shards give up old frames each time that another part of what they may keep has come.
// All shards go by one count: an event in any of them keeps the whole frame, those that
// were refused or known included.
func (m *Mailboxes) noteFrame(now clock.Instant, weight uint64) {
	after := m.framed.Add(weight)
	if part := m.framesPart; after/part != (after-weight)/part {
		m.each(func(b *Boxes) {
			b.framed = max(b.framed, after)
			b.unpin(now)
		})
	}
}
