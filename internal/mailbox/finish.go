package mailbox

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
)

// Finish ends deliveries. It ignores and counts results of deliveries that are unknown
// or have ended.
func (b *Boxes) Finish(now clock.Instant, results []event.Result, out *Output) {
	b.readAhead(results)
	for i := range results {
		r := &results[i]
		it := b.find(r.Delivery)
		if it == nil {
			b.counters.Ignored++
			out.Ignored++
			continue
		}
		a, p := it.actor, it.actor.part
		if it.visit {
			b.finishVisit(now, it, r, out)
		} else {
			b.finish(now, it, r, out)
		}
		b.enqueue(now, a, out)
		if p.gate != ownership.Open {
			b.outlived(r.Kind)
			out.Ended = append(out.Ended, p.number)
		}
	}
	b.repayAll(out)
}

// finish ends a delivery of an event. The caller enqueues its key.
func (b *Boxes) finish(now clock.Instant, it *item, r *event.Result, out *Output) {
	a, p := it.actor, it.actor.part
	var o outcome.Outcome // zero for an ack, which is nearly every result
	if !outcome.IsAck(r.Kind) {
		o = outcome.Of(b.retry, it.id, it.attempts, it.crashes, *r)
	}
	skip := b.takenBack(it.delivery)
	if skip != nil && o.Kind == outcome.Retry && (!b.skips.lease.MayDispatch(ownership.Open, now) || !b.mayEnd(it)) {
		skip = nil // another owner may run the event by now, or it waits as an event that was not delivered; the skip stays in effect
	}
	b.record(now, it, r, o, skip)
	b.stop(it)
	switch {
	case outcome.IsAck(r.Kind):
		b.counters.Done++
		mayHandOver := !it.copied || it.id.IsSent()
		b.settleDone(now, it, out)
		if mayHandOver {
			b.leaveLate(p)
		}
		if skip != nil {
			b.counters.SkippedDone++
			out.Skipped = append(out.Skipped, event.Skipped{Skip: *skip, Done: true})
		}
	case skip != nil:
		b.finishSkipped(it, o, skip, out)
	case o.Kind == outcome.DeadLetter:
		b.counters.Rejected++
		b.settle(it, event.Rejected, b.failure(it.ref.Event(), o), out)
	default:
		b.again(now, it, o, out)
	}
	b.repayKey(a, out)
}

// Outlook returns the outcome that a result of a running delivery will have, unless an operator skips its event; the zero Outcome if it does not run.
func (b *Boxes) Outlook(r event.Result) outcome.Outcome {
	it := b.find(r.Delivery)
	if it == nil || it.visit {
		return outcome.Outcome{}
	}
	return outcome.Of(b.retry, it.id, it.attempts, it.crashes, r)
}

// outlived counts a delivery that was running when its partition moved away.
func (b *Boxes) outlived(result event.ResultKind) {
	switch result {
	case event.ResultNotStarted, event.ResultPutOff, event.ResultHandedOver:
	case event.ResultCancelled, event.ResultLost, event.ResultCrashed:
		b.counters.Cut++
	default:
		b.counters.Outlived++
	}
}

// again retries an event: by way of the retry topic, at the next owner if its partition has moved, or else here. Here it
// is the first event of its key, or the last one if the outcome says so, which can also name the worker.
func (b *Boxes) again(now clock.Instant, it *item, o outcome.Outcome, out *Output) {
	failed := o.Attempts > it.attempts || o.Crashes > it.crashes
	if !o.Hold {
		b.counters.Failed++
		failure := b.failure(it.ref.Event(), o)
		failure.Delay = o.Delay
		b.settle(it, event.Failed, failure, out)
		return
	}
	if failed {
		if o.Crashes > it.crashes {
			b.counters.Crashed++
		} else {
			b.counters.Retried++
		}
		b.answer(it, event.Attempted, &event.Detail{Attempts: o.Attempts, Crashes: o.Crashes, Reason: o.Reason}, out)
		b.replace(it, event.RefTo(withFailure(it.ref.Event(), o)))
	} else {
		b.counters.Returned++
	}
	if !it.actor.part.ours() {
		b.counters.Moved++
		b.settle(it, event.NotOwner, b.notOwner, out)
		return
	}
	delay := o.Delay
	if a := it.actor; o.Behind && a.head != nil && !b.comesFirst(it) {
		a.pushBack(it)
		delay /= time.Duration(a.depth) // so that each is looked at about once in that time, if all are put off
	} else {
		a.pushFront(it)
	}
	if w := b.workers.find(o.To); w != nil {
		if w != it.actor.worker {
			it.actor.part.changes++ // the worker to which the key falls back does not see this turn
		}
		it.actor.worker, it.actor.workers = w, b.workers.generation
		delay = 0
	}
	if delay > 0 {
		it.actor.heldUntil = now.Add(delay)
	}
}

// failure returns the detail of a final verdict on an event that the application failed.
func (b *Boxes) failure(e *event.Event, o outcome.Outcome) *event.Detail {
	return &event.Detail{
		Attempts:   o.Attempts,
		Crashes:    o.Crashes,
		Reason:     o.Reason,
		FirstError: firstError(e, o),
		Owner:      b.member,
	}
}

// withFailure returns a copy of e that has failed once more. e itself is shared with the
// consumer node's table and with streams that may still be encoding it.
func withFailure(e *event.Event, o outcome.Outcome) *event.Event {
	failed := *e
	failed.Attempts, failed.Crashes = o.Attempts, o.Crashes
	failed.FirstError = firstError(e, o)
	failed.LastError = o.Reason
	return &failed
}

// firstError returns the event's first error, which is that of the outcome if it has failed only now.
func firstError(e *event.Event, o outcome.Outcome) string {
	if e.FirstError != "" {
		return e.FirstError
	}
	return o.Reason
}

// replace replaces an item's event by another version of the same event.
func (b *Boxes) replace(it *item, e event.Ref) {
	b.bytes -= int(it.bytes)
	it.ref, it.bytes = e, uint32(weigh(&e))
	it.attempts, it.crashes = e.Failures()
	b.bytes += int(it.bytes)
}

// settleDone is settle for a finished event: its id moves to the window.
func (b *Boxes) settleDone(now clock.Instant, it *item, out *Output) {
	s := b.spans.at(it.span)
	if it.copied {
		b.rememberCopy(now, it.actor.part.number, s, it.bit, ContentOf(it.ref.Event()))
	} else {
		b.window.add(now, it.actor.part.number, s, it.bit)
	}
	s.here.remove(it.bit)
	b.answer(it, event.Done, nil, out)
	b.free(it)
}

// settle answers an item's senders and frees it. The item is in no queue and does not
// run.
func (b *Boxes) settle(it *item, kind event.VerdictKind, detail *event.Detail, out *Output) {
	if it.span != noSpan {
		s := b.spans.at(it.span)
		s.here.remove(it.bit)
		b.spans.drop(s)
	}
	b.answer(it, kind, detail, out)
	b.free(it)
}

// free gives up an item whose senders were answered. Its actor may live on.
func (b *Boxes) free(it *item) {
	b.bytes -= int(it.bytes)
	it.cohort.items--
	b.ages.end(it.cohort)
	it.actor.keepKey()
	b.items.put(it.place)
}
