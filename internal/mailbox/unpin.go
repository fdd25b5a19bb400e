package mailbox

import (
	"time"

	"github.com/ringfence/router/internal/clock"
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
func (b *Boxes) unpin(now clock.Instant) {
	if now.Sub(b.unpinned) < unpinAfter {
		return
	}
	b.unpinned = now
	young := func(a *arrival) bool { return now.Sub(a.at) < unpinAfter }
	if b.ages.oldest == nil || young(b.ages.oldest) {
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
	for a := b.ages.oldest; a != nil && !young(a); a = a.younger {
		a.own = true
	}
}
