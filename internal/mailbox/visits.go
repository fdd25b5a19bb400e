package mailbox

import (
	"math"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/ring"
)

// visits holds the calls and the reservations: exclusive work on a key that no broker stores. They wait in the actor of their key, in a
// queue of their own, run by the same rules as events, and make the key busy as events do. They run before waiting events; after visitsInTurn of
// them one event runs. The pause after a failed event does not delay them.
//
// An event of a key without visits costs only a check of one flag.
type visits struct {
	of      map[*actor]*visitors
	state   map[*item]*visit  // of those that wait or run
	by      map[address]*item // address of a waiting caller → its call
	running int               // the running ones of state
	reserve int               // the reservations of state
	granted int               // the granted ones of state
	watched []*visit          // those that wait, or run and were not taken back; may hold ended ones
	telling map[address]int   // number of reservations whose final verdicts may not have been sent yet, see Told
	keeper  worker            // the worker of reservations
	soonest clock.Instant     // lower bound of the deadlines of watched
	replies replies
	covers  bool // reservations can be covered: all members of the group know how
}

// visit is the state of a call or a reservation, beside that of its item.
type visit struct {
	item    *item       // nil: it is over
	watched bool        // visits.watched has it
	begun   bool        // it waits, and may have run before
	moved   bool        // a reservation that runs, and was resumed from another address before its grant
	granted bool        // a reservation that runs, and whose holder knows
	fence   event.Fence // of one that is granted
	release *address    // of one that is granted, was cancelled from there, and still runs; otherwise nil
}

// gone is the sender of an item after its last caller has given up.
const gone Sender = math.MaxUint64 - 1

func (v *visits) init(cfg Config) {
	v.of, v.state, v.by, v.telling = make(map[*actor]*visitors), make(map[*item]*visit), make(map[address]*item), make(map[address]int)
	v.keeper.id, v.soonest = event.Keeper, clock.Forever
	v.replies = replies{bytesMax: cfg.RepliesBytesMax, known: make(map[event.MessageID]*event.Reply)}
}

// The details of answers to calls and reservations that end without a reply, which many verdicts share. answerCut is for
// an Attempted: the call waits again.
var (
	answerParked     = didNotRun(event.CodeParked, "an operator has parked the key")
	answerCycle      = didNotRun(event.CodeCycle, "a handler of this key waits for the call")
	answerNotCovered = didNotRun(event.CodeNotCovered, "a router of the group is of a release that does not know covered reservations, or the control log is in an older version")
	answerBadID      = didNotRun(event.CodeUnreachable, "its message id is not that of a call")
	answerMixed      = didNotRun(event.CodeUnreachable, "its id is that of a call and of a reservation")
	answerOver       = didNotRun(event.CodeLost, "the reservation is over")
	answerMayHaveRun = &event.Detail{Reason: "its handler was cut before", Reply: &event.Reply{Outcome: event.CallUnknown}}
	answerCut        = &event.Detail{Reason: "its handler was cut"}
	answerTooLate    = didNotRun(event.CodeTimeout, "its time was up before it could begin")
)

// didNotRun returns the detail of an answer to a call that has not run, and never will.
func didNotRun(code, why string) *event.Detail { return event.NotRun(0, code, why).Detail }

// acceptCall judges one call. A repeat of a call that is here joins it; a repeat of a call that was done gets the same answer.
func (b *Boxes) acceptCall(group *cohort, from address, senderEpoch event.Position, e *event.Ref, call *event.Call, seen *lookup, out *Output) {
	if !seen.message.IsCall() { // the id could be that of an event
		out.say(from, event.Answered, answerBadID)
		return
	}
	var s *span
	bit := bitOf(seen.message)
	if !call.Once() {
		s = b.spans.find(seen.id, seen.message)
		switch {
		case s != nil && s.here.has(bit):
			b.joinCall(group.at, b.search(b.actorSeen(seen), s, bit), from, call, out)
			return
		case s != nil && s.done.has(bit) && call.Reservation: // which is never done
			out.say(from, event.Answered, answerMixed)
			return
		case s != nil && s.done.has(bit):
			b.counters.Duplicates++
			b.repeatAnswer(from, seen.message, out)
			return
		}
	}
	now, p := group.at, seen.part
	switch {
	case p == nil:
		b.refuseMisplaced(from, e, out)
		return
	case !p.ours():
		b.refuseForeign(from, senderEpoch, out)
		return
	}
	a, id := b.actorSeen(seen), ring.HashOf(string(seen.name))
	if detail := b.refusalOf(now, p, id, seen.message, e, call); detail != nil {
		out.say(from, event.Answered, detail)
		return
	}
	ref, deadline := *e, call.Deadline
	if call.Resume { // its first wait is over: it waits until the gate of the key opens, which decides
		deadline = now.Add(resumeMax)
		ref = withDeadline(e.Event(), deadline)
	}
	// A returning holder would take a refusal for the loss of its key, so only the bound of reservations applies to it, if
	// its reservation has the usual size.
	comesBack := call.Resume && seen.bytes <= resumeBytesMax
	crowded := len(b.visits.state) >= b.cfg.CallsMax || b.bytes > 0 && b.bytes+seen.bytes > b.cfg.BytesMax || a != nil && a.visited && int(b.visits.of[a].depth) >= b.cfg.KeyCallsMax
	if crowded && !comesBack || call.Reservation && b.visits.reserve >= b.reservesMax(comesBack) || b.items.len() >= itemsMax {
		b.refuseVisit(from, out)
		return
	}
	if a == nil {
		a = b.activate(p, seen.name, seen.key, id)
	}
	it, place := b.items.get()
	it.ref, it.actor, it.cohort, it.place, it.visit = ref, a, group, place, true
	it.id, it.bytes, it.first, it.span = seen.message, uint32(seen.bytes), from, noSpan
	if !call.Once() {
		if s == nil {
			s = b.spans.add(seen.id, seen.message)
		}
		s.here.add(bit)
		it.span, it.bit = s.place, bit
	}
	b.bytes += seen.bytes
	group.items++
	b.counters.Calls++
	if call.Reservation {
		b.visits.reserve++
	}
	b.visits.state[it], b.visits.by[from] = &visit{item: it}, it
	b.watch(it, deadline, out)
	b.visitorsOf(a).pushBack(it)
	b.refile(now, a, out)
}

// withDeadline returns a call that waits for longer.
func withDeadline(e *event.Event, deadline clock.Instant) event.Ref {
	later, longer := *e, *e.Call
	longer.Deadline = deadline
	later.Call = &longer
	return event.RefTo(&later)
}

// parkVisits ends the waiting visits of a parked key. Returning holders continue to wait: they would take a
// refusal for the loss of the key, while a park ends no running turn.
func (b *Boxes) parkVisits(a *actor, out *Output) {
	b.endVisits(a, event.Answered, answerParked, out, func(_ *item, call *event.Call) bool { return !call.Resume })
}

// endVisits ends the waiting visits of a key for which meant returns true.
func (b *Boxes) endVisits(a *actor, kind event.VerdictKind, detail *event.Detail, out *Output, meant func(*item, *event.Call) bool) {
	if !a.visited {
		return
	}
	v := b.visits.of[a]
	for it := range v.all {
		if meant(it, it.ref.Event().Call) {
			v.remove(it)
			b.endVisit(it, kind, detail, out)
		}
	}
}

// refuseVisit answers a call or a reservation beyond a bound.
func (b *Boxes) refuseVisit(from address, out *Output) {
	b.counters.Crowded++
	b.refuseOverload(from, out)
}

// refusalOf returns the answer to a call that must not wait here, nil if it may.
func (b *Boxes) refusalOf(now clock.Instant, p *part, id ring.KeyHash, message event.MessageID, e *event.Ref, call *event.Call) *event.Detail {
	switch {
	case slices.Contains(call.Path, id):
		return answerCycle
	case id.Partition() != e.Partition():
		return didNotRun(event.CodeUnreachable, "the call's partition is not that of its key")
	case call.Resume && !mayResume(p, id, message, call): // a reservation that is not here, however long it may wait
		return answerOver
	case call.TTL != 0 && !call.Resume && !b.visits.covers:
		return answerNotCovered
	case !call.Resume && !call.Deadline.After(now):
		b.counters.Expired++
		return answerTooLate
	case !call.Resume && b.parkOf(e.Key()).State != event.NotParked: // a park does not end the turn of a returning holder
		return answerParked
	}
	if err := call.Check(len(e.Event().Payload)); err != nil {
		return didNotRun(event.CodeTooLarge, err.Error())
	}
	return nil
}

// watch lets a visit end at its deadline.
func (b *Boxes) watch(it *item, deadline clock.Instant, out *Output) {
	if deadline.Before(b.visits.soonest) {
		b.visits.soonest = deadline
		out.DueSooner = true
	}
	v := b.visits.state[it]
	if v.watched {
		return
	}
	v.watched = true
	b.visits.watched = append(b.visits.watched, v)
	if n := len(b.visits.watched); n > 64 && n > 4*len(b.visits.state) {
		b.forgetVisits()
	}
}

// forgetVisits removes those that are over from the watched ones.
func (b *Boxes) forgetVisits() {
	b.visits.watched = slices.DeleteFunc(b.visits.watched, func(v *visit) bool { return v.item == nil })
}

// joinCall adds a caller to those that wait for the answer of a call. The call waits for the last of them.
func (b *Boxes) joinCall(now clock.Instant, it *item, from address, call *event.Call, out *Output) {
	if call.Reservation != it.isReservation() { // callers choose the ids of calls, also as those of reservations
		out.say(from, event.Answered, answerMixed)
		return
	}
	if call.Reservation {
		b.comeBack(now, it, from, call, out)
		return
	}
	if slices.Contains(call.Path, it.actor.id) { // a handler of this key waits for the answer, and this call waits for that handler or is the handler's own
		out.say(from, event.Answered, answerCycle)
		return
	}
	if it.hasSender(from) { // it waits already
		b.waitUntil(now, it, call.Deadline, out)
		return
	}
	b.dropGone(it)
	alone := b.isGone(it.first.sender)
	if !alone && len(it.joined())+1 >= b.cfg.JoinsMax {
		b.refuseVisit(from, out)
		return
	}
	b.counters.Joined++
	if alone {
		delete(b.visits.by, it.first)
		it.first = from
	} else {
		it.addSender(from)
	}
	b.visits.by[from] = it
	if b.visits.state[it].begun {
		out.say(from, event.Attempted, answerCut)
	}
	b.waitUntil(now, it, call.Deadline, out)
}

// waitUntil moves the deadline of a call, if that is later. If its time was up, a worker may have skipped it.
func (b *Boxes) waitUntil(now clock.Instant, it *item, deadline clock.Instant, out *Output) {
	if e := it.ref.Event(); e.Call.Deadline.Before(deadline) {
		it.ref = withDeadline(e, deadline)
		b.watch(it, deadline, out)
		if !e.Call.Deadline.After(now) {
			b.refile(now, it.actor, out)
		}
	}
}

// expireVisits ends the visits with a passed deadline: waiting ones as not run; running calls are taken back.
func (b *Boxes) expireVisits(now clock.Instant, out *Output) {
	if b.visits.soonest.After(now) {
		return
	}
	b.forgetVisits()
	soonest, kept := clock.Forever, b.visits.watched[:0]
	var ended []*item
	for _, v := range b.visits.watched {
		it := v.item
		v.watched = false
		switch deadline := it.ref.Event().Call.Deadline; {
		case deadline.After(now):
			v.watched = true
			soonest, kept = min(soonest, deadline), append(kept, v)
		case it.delivery == 0:
			ended = append(ended, it)
		case !it.isReservation(): // the deadline of a reservation bounds only its wait
			b.takeVisitBack(it, out)
		}
	}
	b.visits.watched, b.visits.soonest = kept, soonest
	for _, it := range ended {
		b.counters.Expired++
		b.endWaiting(now, it, event.Answered, answerTooLate, out)
	}
}

func (b *Boxes) takeVisitBack(it *item, out *Output) {
	b.counters.Recalled++
	out.TakeBack = append(out.TakeBack, it.delivery)
}

// endWaiting ends a visit that waits.
func (b *Boxes) endWaiting(now clock.Instant, it *item, kind event.VerdictKind, detail *event.Detail, out *Output) {
	a := it.actor
	b.visits.of[a].remove(it)
	b.endVisit(it, kind, detail, out)
	b.refile(now, a, out)
}

// endVisit answers the callers of a visit that neither waits nor runs, and frees it. It never answers a visit that may have
// run before as not run.
func (b *Boxes) endVisit(it *item, kind event.VerdictKind, detail *event.Detail, out *Output) {
	v := b.visits.state[it]
	v.item = nil
	delete(b.visits.state, it)
	if it.isReservation() {
		b.visits.reserve--
		b.tell(it.first, out)
	}
	delete(b.visits.by, it.first)
	for _, from := range it.joined() {
		delete(b.visits.by, from)
	}
	if v.begun && kind == event.Answered && detail != nil && detail.Reply.Outcome == event.CallNotRun {
		detail = answerMayHaveRun
	}
	b.settle(it, kind, detail, out)
}

// Cancel removes a sender from calls. A call without another sender ends without a verdict: a waiting one at once; a running one is named
// in out.TakeBack, and its key stays busy until Finish; if it is a granted reservation that ends with a result other
// than done, its sender gets the verdict. Unknown calls are ignored.
func (b *Boxes) Cancel(now clock.Instant, from Sender, calls []event.Handle, out *Output) {
	for _, h := range calls {
		at := address{from, h}
		it := b.visits.by[at]
		if it == nil {
			continue
		}
		delete(b.visits.by, at)
		if !it.leave(at) {
			continue
		}
		if it.delivery == 0 {
			b.endWaiting(now, it, event.Answered, nil, out)
			continue
		}
		if v := b.visits.state[it]; v.granted {
			if v.release != nil {
				b.told(*v.release) // it has come back since
			}
			v.release = &at
			b.visits.telling[at]++
		}
		b.takeVisitBack(it, out)
	}
	b.repayAll(out)
}

// leave removes a sender of an item. It reports whether none is left.
func (it *item) leave(from address) (none bool) {
	others := it.joined()
	if i := slices.Index(others, from); i >= 0 {
		*it.others = slices.Delete(others, i, i+1)
		return false
	}
	it.first = address{sender: gone}
	if n := len(others); n > 0 {
		it.first, *it.others = others[n-1], others[:n-1]
		return false
	}
	return true
}

// finishVisit is finish for a visit.
func (b *Boxes) finishVisit(now clock.Instant, it *item, r *event.Result, out *Output) {
	a, p, e, v := it.actor, it.actor.part, it.ref.Event(), b.visits.state[it]
	o := outcome.OfCall(e.Call.Once() || e.Call.Reservation, e.Call.Deadline.After(now) && it.first.sender != gone, r)
	b.recordVisit(now, it, r, o)
	b.stop(it)
	if v.granted {
		b.visits.granted--
	}
	v.moved, v.granted, v.fence = false, false, event.Fence{}
	b.endRelease(it, r)

	if o.Again && (r.Kind == event.ResultCancelled || r.Kind == event.ResultLost) {
		v.begun = true
		b.answer(it, event.Attempted, answerCut, out) // before a sender gives it to another owner
	}
	switch {
	case r.Kind == event.ResultHandedOver, o.Again && !p.ours():
		b.endVisit(it, event.NotOwner, b.notOwner, out)
	case o.Again && !e.Call.Resume && b.parkOf(a.key).State != event.NotParked:
		b.endVisit(it, event.Answered, answerParked, out)
	case o.Again:
		waiting := b.visitorsOf(a)
		waiting.inTurn -= min(waiting.inTurn, 1)
		waiting.pushFront(it)
		b.watch(it, e.Call.Deadline, out)
	case o.Reply.Outcome == event.CallReplied:
		b.counters.Answered++
		b.remember(now, it, &o.Reply)
		b.endVisit(it, event.Answered, &event.Detail{Reply: &o.Reply}, out)
	default:
		if o.Reply.Outcome == event.CallFailed {
			b.counters.Answered++
		}
		b.endVisit(it, event.Answered, &event.Detail{Reason: o.Reason, Reply: &o.Reply}, out)
	}
}

// recordVisit is record for a visit.
func (b *Boxes) recordVisit(now clock.Instant, it *item, r *event.Result, o outcome.CallOutcome) {
	if b.records == nil {
		return
	}
	end := history.Answered
	switch {
	case o.Again && it.actor.part.ours():
		end = history.Returned
	case o.Again:
		end = history.Moved
	}
	b.recordTurn(now, it, r, end)
}
