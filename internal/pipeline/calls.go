package pipeline

import (
	"slices"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/ownership"
)

// Call sends a call to the owner of its key. Its handle is one of [event.NewCallHandle], and Parts.Answered gets its verdict, once.
func (p *Pipeline) Call(call *event.Event) {
	e := event.NewEntry(event.Message{Event: call, Key: string(call.Key)})
	e.First, e.Fresh = call.Handle, event.AllBits(1)
	p.Holder.Hold(e)
}

// GiveUp ends a call whose caller is no longer waiting: Parts.Answered gets its verdict before it returns, unless it
// had one. The verdict on a granted reservation with a ttl may come later, see [forward.Table.GiveUp].
func (p *Pipeline) GiveUp(call event.Handle) { p.Holder.GiveUp(call) }

// Cancel implements forward.Sink.
func (p *Pipeline) Cancel(calls []event.Handle) (ended []event.Handle) {
	p.with(func(out *mailbox.Output) { p.Boxes.Cancel(mailbox.Local, calls, out) })
	for _, h := range calls {
		if _, telling := p.Boxes.Renewable(mailbox.Local, h); telling {
			ended = append(ended, h)
		}
	}
	return ended
}

// CancelFor implements forward.Acceptor.
func (p *Pipeline) CancelFor(from forward.StreamID, calls []event.Handle) {
	p.with(func(out *mailbox.Output) { p.Boxes.Cancel(mailbox.Sender(from), calls, out) })
}

// answerCalls passes on the verdicts on calls, and returns all others: mostly there are no calls, and it returns its argument.
func (p *Pipeline) answerCalls(done []event.Set, verdicts []event.Verdict) ([]event.Set, []event.Verdict) {
	if p.parts.Answered == nil {
		return done, verdicts
	}
	calls, done, verdicts := split(done, verdicts, event.Handle.IsCall)
	if len(calls) > 0 {
		p.parts.Answered(calls)
	}
	return done, verdicts
}

// refuseRelayedCalls answers the calls of an arrival that is to be passed on: no member of this release sends any. It returns the events.
func (p *Pipeline) refuseRelayedCalls(a forward.Arrival) []event.Ref {
	var refused []event.Verdict
	events := slices.DeleteFunc(a.Events, func(r event.Ref) bool {
		isCall := r.Call() != nil
		if isCall {
			refused = append(refused, event.NotRun(r.Handle(), event.CodeUnreachable, "calls are not relayed"))
		}
		return isCall
	})
	if len(refused) > 0 {
		p.Peers.Answer(a.From, refused)
	}
	return events
}

// Granted implements forward.Sink.
func (p *Pipeline) Granted(verdicts []event.Verdict) { p.parts.Answered(verdicts) }

// RenewReservation asks the owner of a reservation for new permission. Parts.Renewed gets the answer, if one comes.
func (p *Pipeline) RenewReservation(r event.Renewal) { p.Holder.Renew(r) }

// ForgetReservation ends a reservation at this node alone: its holder may resume it through another node.
func (p *Pipeline) ForgetReservation(h event.Handle) { p.Holder.Forget(h) }

// Renew implements forward.Sink.
func (p *Pipeline) Renew(asked []event.Renewal) { p.parts.Renewed(p.renew(mailbox.Local, asked)) }

// Renewed implements forward.Sink.
func (p *Pipeline) Renewed(answers []event.Renewal) { p.parts.Renewed(answers) }

// RenewFor implements forward.Acceptor.
func (p *Pipeline) RenewFor(from forward.StreamID, asked []event.Renewal) {
	p.Peers.Renewed(from, p.renew(mailbox.Sender(from), asked))
}

// renew answers renewals of reservations of keys that this node owns. A reservation whose verdict is about to be sent gets no
// other answer: the answer would overtake the verdict, and a release that freed nothing would count as confirmed.
func (p *Pipeline) renew(from mailbox.Sender, asked []event.Renewal) []event.Renewal {
	ids := make([]event.DeliveryID, 0, len(asked))
	answers := make([]event.Renewal, 0, len(asked))
	for _, r := range asked {
		if id, telling := p.Boxes.Renewable(from, r.Handle); !telling {
			ids, answers = append(ids, id), append(answers, r)
		}
	}
	for i, permission := range p.App.Renew(ids) {
		answers[i].Permission = permission
	}
	return answers
}

// Covered passes on the instant until which a turn of a reservation may be promised its ttl.
func (p *Pipeline) Covered(c ownership.Covered) { p.App.Covered(c) }

// Grant implements app.Boxes.
func (p *Pipeline) Grant(id event.DeliveryID, g event.Grant) {
	p.with(func(out *mailbox.Output) { p.Boxes.Grant(id, g, out) })
}
