package mailbox

import (
	"slices"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Sender names the recipient of a verdict: [Local], [Letters], or one inbound peer stream. Values
// are never reused.
type Sender uint64

// Local is this node's own forward.Table.
const Local Sender = 0

// Answer holds the verdicts for one recipient, in the order in which they were given.
type Answer struct {
	To       Sender
	Verdicts []event.Verdict
}

// Telling names a reservation by its recipient.
type Telling struct {
	To   Sender
	Call event.Handle
}

// Output collects the effects of calls for the caller to perform. Calls append to it;
// the caller may reuse it after Reset.
type Output struct {
	// Answers has at most one element per sender.
	Answers []Answer
	// Credits are for senders that were answered Overloaded.
	Credits []Credit
	// Telling names the reservations with a final verdict among Answers. Told is due once these are on their way.
	Telling []Telling
	// Wake names workers for which keys became ready. A worker may be named twice.
	Wake []event.WorkerID
	// TakeBack names running deliveries that their workers must be told to end.
	TakeBack []event.DeliveryID
	// Skipped are the ends of skips.
	Skipped []event.Skipped
	// Known names events that routers have published, and of which a copy was answered Done because they have finished before.
	Known []event.Known
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
	clear(o.Skipped)
	clear(o.Known)
	*o = Output{
		Answers: o.Answers[:0], Credits: o.Credits[:0], Wake: o.Wake[:0], Ended: o.Ended[:0],
		TakeBack: o.TakeBack[:0], Skipped: o.Skipped[:0], Telling: o.Telling[:0],
		Known: o.Known[:0],
	}
}

// answer adds a verdict for each live sender of an item.
func (b *Boxes) answer(it *item, kind event.VerdictKind, detail *event.Detail, out *Output) {
	if !b.isGone(it.first.sender) {
		out.say(it.first, kind, detail)
	}
	for _, to := range it.joined() {
		if !b.isGone(to.sender) {
			out.say(to, kind, detail)
		}
	}
}

// say adds a verdict. It searches the answers one by one, because there are as few senders as peers.
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

// known notes that a copy of an event has ended because the event has finished before.
func (o *Output) known(key event.Key, id event.MessageID) {
	if id.IsSent() {
		o.Known = append(o.Known, event.Known{Key: key, Event: id})
	}
}

// SenderGone drops a peer's stream as a recipient. Its events stay and are processed;
// a consumer node that sends them again joins them.
func (b *Boxes) SenderGone(from Sender) { delete(b.senders, from) }

// isGone reports whether nobody receives verdicts for a sender any more.
func (b *Boxes) isGone(s Sender) bool {
	switch s {
	case Local, Letters:
		return false
	case gone:
		return true
	}
	_, alive := b.senders[s]
	return !alive
}

// dropGone forgets the further senders of an item whose streams have ended.
func (b *Boxes) dropGone(it *item) {
	if it.others == nil {
		return
	}
	*it.others = slices.DeleteFunc(*it.others, func(to address) bool {
		isGone := b.isGone(to.sender)
		if isGone {
			delete(b.visits.by, to)
		}
		return isGone
	})
}
