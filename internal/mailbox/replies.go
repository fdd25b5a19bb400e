package mailbox

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// repeatAnswer answers a call that was done before.
func (b *Boxes) repeatAnswer(to address, id event.MessageID, out *Output) {
	if r := b.visits.replies.known[id]; r != nil {
		out.say(to, event.Answered, &event.Detail{Reply: r})
		return
	}
	out.say(to, event.Done, nil)
}

// remember keeps the id of a call that was done, and its reply, for repeats.
func (b *Boxes) remember(now clock.Instant, it *item, r *event.Reply) {
	if it.span == noSpan || it.isReservation() { // a reservation ends and may be made again
		return
	}
	p := it.actor.part
	b.window.add(now, p.number, b.spans.at(it.span), it.bit)
	b.leaveLate(p)
	b.visits.replies.add(it.id, r)
}

// replies holds the newest replies of calls that were done.
type replies struct {
	bytesMax, bytes int
	known           map[event.MessageID]*event.Reply
	order           []event.MessageID // oldest first
}

// replyBytes is the overhead of a reply.
const replyBytes = 256

func (t *replies) add(id event.MessageID, r *event.Reply) {
	if old := t.known[id]; old != nil { // its id was forgotten, and the call ran again
		t.bytes += len(r.Payload) - len(old.Payload)
		t.known[id] = r
	} else {
		t.known[id] = r
		t.order = append(t.order, id)
		t.bytes += replyBytes + len(r.Payload)
	}
	for t.bytes > t.bytesMax && len(t.order) > 0 {
		t.bytes -= replyBytes + len(t.known[t.order[0]].Payload)
		delete(t.known, t.order[0])
		t.order = t.order[1:]
	}
}
