package mailbox

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// unpinAfter is the time after which an event of a peer is copied out of the memory of
// its frame. The copy may be made up to unpinAfter later.
const unpinAfter = time.Second

// unpin copies old events into memory of their own. A waiting event keeps the whole frame
// that it came in, with a thousand finished ones, so a few stuck keys would hold all
// frames that were received with them; and Config.BytesMax bounds events, not frames.
// Most events finish sooner and cost nothing here. Events that this node received from
// the broker stay in their batch, which the source counts whole.
//
// An event is old by time, or by the bytes that peers have sent since: under load the
// frames of one second may exceed Config.FramesBytesMax.
func (b *Boxes) unpin(now clock.Instant) {
	young := func(a *cohort) bool {
		return now.Sub(a.at) < unpinAfter && b.peerBytes-a.peerBytes < uint64(b.cfg.FramesBytesMax)/2
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
		if it.actor == nil || it.cohort.own || young(it.cohort) {
			continue
		}
		it.ref = event.RefTo(it.ref.Event().Clone())
		it.actor.keepKey()
		b.counters.Unpinned++
	}
	for a := first; a != nil && !young(a); a = a.younger {
		a.own = true
	}
}

// noteFrame adds the weight of an accepted frame of a peer, and lets all shards unpin old
// frames whenever the sum has grown by another unpinBytes. All shards share one sum: an
// event in any of them keeps the whole frame, refused and duplicate events included.
func (m *Mailboxes) noteFrame(now clock.Instant, weight uint64) {
	after := m.peerBytes.Add(weight)
	if part := m.unpinBytes; after/part != (after-weight)/part {
		m.each(func(b *Boxes) {
			b.peerBytes = max(b.peerBytes, after)
			b.unpin(now)
		})
	}
}
