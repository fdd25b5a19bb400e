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
	by      map[address]uint32     // address of a waiting caller → place of its call
	n       int                    // waiting or running
	running int                    // the running ones of n
	reserve int                    // the reservations of n
	all     []visit                // names of all waiting visits, and of running ones that were not taken back; may hold duplicates and ended ones
	fences  map[uint32]event.Fence // of the reservations that run, by place
	moved   map[uint32]struct{}    // places of running reservations that were resumed from another address before their grant
	telling map[address]int        // number of reservations whose final verdicts may not have been sent yet, see Told
	release map[uint32]address     // of the granted reservations that were cancelled and still run, by place
	keeper  worker                 // the worker of reservations
	soonest clock.Instant          // lower bound of the deadlines of visits that wait, or run and were not taken back
	replies replies
	covers  bool // reservations can be covered: all members of the group know how
}

// visit names the item with that place and id, if it exists.
type visit struct {
	place uint32
	id    event.MessageID
}

// visitMarks holds the fields that only a few visits need.
type visitMarks uint8

const (
	visitBegun visitMarks = 1 << iota // it waits, and may have run before
	visitNamed                        // visits.all names it
)

func (it *item) has(m visitMarks) bool { return it.marks&m != 0 }

// gone is the sender of an item after its last caller has given up.
const gone Sender = math.MaxUint64 - 1

func (v *visits) init(cfg Config) {
	v.of, v.by, v.soonest = make(map[*actor]*visitors), make(map[address]uint32), clock.Forever
	v.fences, v.moved, v.keeper.id = make(map[uint32]event.Fence), make(map[uint32]struct{}), event.Keeper
	v.telling, v.release = make(map[address]int), make(map[uint32]address)
	v.replies = replies{bytesMax: cfg.RepliesBytesMax, known: make(map[event.MessageID]*event.Reply)}
}

// The details of answers to calls and reservations that end without a reply, which many verdicts share. answerCut is for
// an Attempted: the call waits again.
var (
	answerParked     = &event.Detail{Reason: "an operator has parked the key", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeParked}}
	answerCycle      = &event.Detail{Reason: "a handler of this key waits for the call", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeCycle}}
	answerNotCovered = &event.Detail{Reason: "a router of the group is of a release that does not know covered reservations, or the control log is in an older version", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeNotCovered}}
	answerBadID      = &event.Detail{Reason: "its message id is not that of a call", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeUnreachable}}
	answerMixed      = &event.Detail{Reason: "its id is that of a call and of a reservation", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeUnreachable}}
	answerOver       = &event.Detail{Reason: "the reservation is over", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeLost}}
	answerMayHaveRun = &event.Detail{Reason: "its handler was cut before", Reply: &event.Reply{Outcome: event.CallUnknown}}
	answerCut        = &event.Detail{Reason: "its handler was cut"}
	answerTooLate    = &event.Detail{Reason: "its time was up before it could begin", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeTimeout}}
)

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
	crowded := b.visits.n >= b.cfg.CallsMax || b.bytes > 0 && b.bytes+seen.bytes > b.cfg.BytesMax || a != nil && a.visited && int(b.visits.of[a].n) >= b.cfg.KeyCallsMax
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
	b.visits.n++
	if call.Reservation {
		b.visits.reserve++
	}
	b.visits.by[from] = place
	b.watch(it, deadline, out)
	b.visitorsOf(a).pushBack(it)
	b.refileVisited(now, a, out)
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
	for it := v.head; it != nil; {
		next := it.next
		if meant(it, it.ref.Event().Call) {
			v.remove(it)
			b.endVisit(it, kind, detail, out)
		}
		it = next
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
		return &event.Detail{Reason: "the call's partition is not that of its key", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeUnreachable}}
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
		return &event.Detail{Reason: err.Error(), Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeTooLarge}}
	}
	return nil
}

// watch lets a visit end at its deadline.
func (b *Boxes) watch(it *item, deadline clock.Instant, out *Output) {
	if deadline.Before(b.visits.soonest) {
		b.visits.soonest = deadline
		out.DueSooner = true
	}
	if it.has(visitNamed) {
		return
	}
	it.marks |= visitNamed
	b.visits.all = append(b.visits.all, visit{it.place, it.id})
	if n := len(b.visits.all); n > 64 && n > 4*b.visits.n {
		b.forgetVisits()
	}
}

// forgetVisits removes the names of ended visits, and the duplicates of others: a repeat may have the place of an earlier visit.
func (b *Boxes) forgetVisits() {
	for _, v := range b.visits.all {
		if it := b.visitAt(v); it != nil {
			it.marks &^= visitNamed
		}
	}
	kept := b.visits.all[:0]
	for _, v := range b.visits.all {
		if it := b.visitAt(v); it != nil && !it.has(visitNamed) {
			it.marks |= visitNamed
			kept = append(kept, v)
		}
	}
	b.visits.all = kept
}

// visitAt returns a visit, nil if it is over. Its place may be gone: an empty slab gives up the places of a burst.
func (b *Boxes) visitAt(v visit) *item {
	if int(v.place) >= b.items.places() {
		return nil
	}
	if it := b.items.at(v.place); it.actor != nil && it.visit && it.id == v.id {
		return it
	}
	return nil
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
	if it.first == from || slices.Contains(it.joined(), from) { // it waits already
		b.waitUntil(now, it, call.Deadline, out)
		return
	}
	b.dropGone(it)
	alone := b.isGone(it.first)
	if !alone && len(it.joined())+1 >= b.cfg.JoinsMax {
		b.refuseVisit(from, out)
		return
	}
	b.counters.Joined++
	if alone {
		delete(b.visits.by, it.first)
		it.first = from
	} else {
		if it.others == nil {
			it.others = new([]address)
		}
		*it.others = append(*it.others, from)
	}
	b.visits.by[from] = it.place
	if it.has(visitBegun) {
		out.say(from, event.Attempted, answerCut)
	}
	b.waitUntil(now, it, call.Deadline, out)
}

// dropGone forgets the further callers of a call whose streams have ended.
func (b *Boxes) dropGone(it *item) {
	if it.others == nil {
		return
	}
	*it.others = slices.DeleteFunc(*it.others, func(to address) bool {
		isGone := b.isGone(to)
		if isGone {
			delete(b.visits.by, to)
		}
		return isGone
	})
}

// waitUntil moves the deadline of a call, if that is later. If its time was up, a worker may have skipped it.
func (b *Boxes) waitUntil(now clock.Instant, it *item, deadline clock.Instant, out *Output) {
	if e := it.ref.Event(); e.Call.Deadline.Before(deadline) {
		it.ref = withDeadline(e, deadline)
		b.watch(it, deadline, out)
		if !e.Call.Deadline.After(now) {
			b.refileVisited(now, it.actor, out)
		}
	}
}

// expireVisits ends the visits with a passed deadline: waiting ones as not run; running calls are taken back.
func (b *Boxes) expireVisits(now clock.Instant, out *Output) {
	if b.visits.soonest.After(now) {
		return
	}
	b.forgetVisits()
	soonest, kept := clock.Forever, b.visits.all[:0]
	var ended []*item
	for _, v := range b.visits.all {
		it := b.visitAt(v)
		it.marks &^= visitNamed
		switch deadline := it.ref.Event().Call.Deadline; {
		case deadline.After(now):
			it.marks |= visitNamed
			soonest, kept = min(soonest, deadline), append(kept, v)
		case it.delivery == 0:
			ended = append(ended, it)
		case !it.isReservation(): // the deadline of a reservation bounds only its wait
			b.takeVisitBack(it, out)
		}
	}
	b.visits.all, b.visits.soonest = kept, soonest
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
	b.refileVisited(now, a, out)
}

// endVisit answers the callers of a visit that neither waits nor runs, and frees it. It never answers a visit that may have
// run before as not run.
func (b *Boxes) endVisit(it *item, kind event.VerdictKind, detail *event.Detail, out *Output) {
	b.visits.n--
	if it.isReservation() {
		b.visits.reserve--
		b.tell(it.first, out)
	}
	delete(b.visits.fences, it.place)
	delete(b.visits.by, it.first)
	for _, from := range it.joined() {
		delete(b.visits.by, from)
	}
	if it.span != noSpan {
		s := b.spans.at(it.span)
		s.here.remove(it.bit)
		b.spans.drop(s)
	}
	if it.has(visitBegun) && kind == event.Answered && detail != nil && detail.Reply.Outcome == event.CallNotRun {
		detail = answerMayHaveRun
	}
	b.answer(it, kind, detail, out)
	b.free(it)
}

// Cancel removes a sender from calls. A call without another sender ends without a verdict: a waiting one at once; a running one is named
// in out.TakeBack, and its key stays busy until Finish; if it is a granted reservation that ends with a result other
// than done, its sender gets the verdict. Unknown calls are ignored.
func (b *Boxes) Cancel(now clock.Instant, from Sender, calls []event.Handle, out *Output) {
	b.inputs++
	for _, h := range calls {
		place, here := b.visits.by[address{from, h}]
		if !here {
			continue
		}
		delete(b.visits.by, address{from, h})
		it := b.items.at(place)
		if !it.leave(address{from, h}) {
			continue
		}
		if it.delivery == 0 {
			b.endWaiting(now, it, event.Answered, nil, out)
			continue
		}
		if _, granted := b.visits.fences[place]; granted {
			if before, twice := b.visits.release[place]; twice {
				b.told(before) // it has come back since
			}
			b.visits.release[place] = address{from, h}
			b.visits.telling[address{from, h}]++
		}
		b.takeVisitBack(it, out)
	}
	b.repayAll(out)
}

// leave removes a sender of an item. It reports whether none is left.
func (it *item) leave(from address) (none bool) {
	others := it.joined()
	for i := range others {
		if others[i] == from {
			*it.others = append(others[:i], others[i+1:]...)
			return false
		}
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
	a, p, e := it.actor, it.actor.part, it.ref.Event()
	o := outcome.OfCall(e.Call.Once() || e.Call.Reservation, e.Call.Deadline.After(now) && it.first.sender != gone, r)
	b.recordVisit(now, it, r, o)
	b.running--
	b.visits.running--
	it.delivery = 0
	a.running, a.wait = nil, WaitNothing
	p.running--
	delete(b.visits.fences, it.place)
	delete(b.visits.moved, it.place)
	b.endRelease(it, r)

	if o.Again && (r.Kind == event.ResultCancelled || r.Kind == event.ResultLost) {
		it.marks |= visitBegun
		b.answer(it, event.Attempted, answerCut, out) // before a sender gives it to another owner
	}
	switch {
	case r.Kind == event.ResultHandedOver, o.Again && !p.ours():
		b.endVisit(it, event.NotOwner, b.notOwner, out)
	case o.Again && !e.Call.Resume && b.parkOf(a.key).State != event.NotParked:
		b.endVisit(it, event.Answered, answerParked, out)
	case o.Again:
		v := b.visitorsOf(a)
		v.inTurn -= min(v.inTurn, 1)
		v.pushFront(it)
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
