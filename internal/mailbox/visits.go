package mailbox

import (
	"math"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// visits holds the calls and the reservations: exclusive work on a key that no broker stores. They wait in the actor of their key, in a
// queue of their own, run by the same rules as events, and make the key busy as events do. They go before waiting events; after visitsInTurn of
// them one event goes. The pause after a failed event does not delay them.
//
// An event of a key without visits costs only a check of one flag.
type visits struct {
	of      map[*actor]*visitors
	by      map[address]uint32     // address of a waiting caller → place of its call
	n       int                    // waiting or running
	running int                    // of these
	reserve int                    // those that are reservations
	all     []visit                // names all that wait, and those that run and were not taken back; some twice, and some that are over
	fences  map[uint32]event.Fence // of the reservations that run, by place
	moved   map[uint32]struct{}    // places of running reservations that were resumed from another address before their grant
	telling map[address]int        // reservations whose final verdicts are due, or may not be on their way yet: how many, see Told
	release map[uint32]address     // of the granted reservations that were cancelled and still run, by place
	keeper  worker                 // the worker of reservations
	soonest clock.Instant          // lower bound of the deadlines of visits that wait, or run and were not taken back
	replies replies
	covers  bool // reservations can be covered: all members of the group know how
}

// visit names an item: the one with that place and id, if there is one.
type visit struct {
	place uint32
	id    event.MessageID
}

// visitMarks are what few visits have.
type visitMarks uint8

const (
	visitBegun visitMarks = 1 << iota // it waits, and may have run before
	visitNamed                        // visits.all names it
)

func (it *item) has(m visitMarks) bool { return it.marks&m != 0 }

// visitors are the visits of a key.
type visitors struct {
	head, tail *item // queue of those that wait, oldest first
	n          int32 // length of the queue
	inTurn     uint8 // number of visits that ran since the last event
}

// ReservationsMax bounds the reservations at one owner, held and waiting together, so that the keeper, which has room for twice as many, always has some
// for the next one: the events of a key would wait behind a reservation without room.
const ReservationsMax = 512

// visitsInTurn is how many visits of a key run in a row while an event of it could.
const visitsInTurn = 8

// gone is the sender of an item after its last caller has given up.
const gone Sender = math.MaxUint64 - 1

func (v *visits) init(cfg Config) {
	v.of, v.by, v.soonest = make(map[*actor]*visitors), make(map[address]uint32), clock.Forever
	v.fences, v.moved, v.keeper.id = make(map[uint32]event.Fence), make(map[uint32]struct{}), event.Keeper
	v.telling, v.release = make(map[address]int), make(map[uint32]address)
	v.replies = replies{bytesMax: cfg.RepliesBytesMax, known: make(map[event.MessageID]*event.Reply)}
}

// The answers to calls that do not run here.
var (
	parked = &event.Detail{Reason: "an operator has parked the key", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeParked}}
	cycle  = &event.Detail{Reason: "a handler of this key waits for the call", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeCycle}}
	bare   = &event.Detail{Reason: "a router of the group is of a release that does not know covered reservations, or the control log is in an older version", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeNotCovered}}
	badID  = &event.Detail{Reason: "its message id is not that of a call", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeUnreachable}}
	over   = &event.Detail{Reason: "the reservation is over", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeLost}}
	mayRun = &event.Detail{Reason: "its handler was cut before", Reply: &event.Reply{Outcome: event.CallUnknown}}
	begun  = &event.Detail{Reason: "its handler was cut"}
	tooOld = &event.Detail{Reason: "its time was up before it could begin", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeTimeout}}
)

// acceptCall judges one call. A repeat of one that is here joins it; one of a call that was done gets the same answer.
func (b *Boxes) acceptCall(group *cohort, from address, senderEpoch event.Position, e *event.Ref, call *event.Call, seen *lookup, out *Output) {
	if !seen.message.IsCall() { // it could be that of an event
		out.say(from, event.Answered, badID)
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
	if call.Resume { // not of its first wait: until the gate of the key opens, and says whether it may
		deadline = now.Add(resumeMax)
		ref = withDeadline(e.Event(), deadline)
	}
	// To a holder that comes back a refusal means that the key is lost, and the bound of reservations suffices, if they have their usual size. Others may fill
	// that before it comes.
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

// reservesMax bounds the reservations. Holders that come back find as much room again.
func (b *Boxes) reservesMax(comesBack bool) int {
	most := max(1, ReservationsMax/b.shards)
	if comesBack {
		return 2 * most
	}
	return most
}

// resumeBytesMax is more than a reservation weighs with the longest key, id and path. A larger one is of no router, and finds room as a call does.
const resumeBytesMax = event.KeyMax + 2<<10

// resumeMax is how long a holder may wait for the gate of its key to open, and for another one to let go: longer than any promise lasts.
const resumeMax = 2 * event.TTLMost

// withDeadline returns a call that waits for longer.
func withDeadline(e *event.Event, deadline clock.Instant) event.Ref {
	later, longer := *e, *e.Call
	longer.Deadline = deadline
	later.Call = &longer
	return event.RefTo(&later)
}

// mayResume reports whether a reservation that was granted before may go on here, as far as is known: only one that is covered outlives its
// owner, and its key waits for it.
func mayResume(p *part, key ring.KeyHash, id event.MessageID, call *event.Call) bool {
	if call.TTL == 0 || p.gate == ownership.Waiting {
		return call.TTL != 0
	}
	holder, found := p.holderOf(key)
	return found && holder == ownership.ReservationOf(id)
}

// resuming returns the visit for which its key waits, nil if it is not here. Nothing else of the key may run.
func (b *Boxes) resuming(now clock.Instant, a *actor) *item {
	if !a.visited || a.part.gate != ownership.Open || len(a.part.awaited) == 0 || a.part.withholds(a.key) {
		return nil
	}
	holder, found := a.part.holderOf(a.id)
	if !found || holder == (ownership.ReservationID{}) {
		return nil
	}
	return b.visits.of[a].first(now, func(it *item) bool { return it.isReservation() && ownership.ReservationOf(it.id) == holder })
}

// endResumes ends the waiting visits of a key that only wanted to resume, and cannot.
func (b *Boxes) endResumes(a *actor, out *Output) {
	b.endVisits(a, event.Answered, over, out, func(it *item, call *event.Call) bool { return call.Resume && !mayResume(a.part, a.id, it.id, call) })
}

// parkVisits ends the waiting visits of a parked key. Holders that come back wait on: a refusal means to them that the key is lost, while a park leaves
// their turn, as it leaves all that run.
func (b *Boxes) parkVisits(a *actor, out *Output) {
	b.endVisits(a, event.Answered, parked, out, func(_ *item, call *event.Call) bool { return !call.Resume })
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

// SetCovers says whether reservations can be covered.
func (b *Boxes) SetCovers(covers bool) { b.visits.covers = covers }

// refuseVisit answers a call or a reservation beyond a bound.
func (b *Boxes) refuseVisit(from address, out *Output) {
	b.counters.Crowded++
	b.refuseOverload(from, out)
}

// refusalOf returns the answer to a call that must not wait here, nil if it may.
func (b *Boxes) refusalOf(now clock.Instant, p *part, id ring.KeyHash, message event.MessageID, e *event.Ref, call *event.Call) *event.Detail {
	switch {
	case slices.Contains(call.Path, id):
		return cycle
	case id.Partition() != e.Partition():
		return &event.Detail{Reason: "the call's partition is not that of its key", Reply: &event.Reply{Outcome: event.CallNotRun, Code: event.CodeUnreachable}}
	case call.Resume && !mayResume(p, id, message, call): // a reservation that is not here, whatever its wait was
		return over
	case call.TTL != 0 && !call.Resume && !b.visits.covers:
		return bare
	case !call.Resume && !call.Deadline.After(now):
		b.counters.Expired++
		return tooOld
	case !call.Resume && b.parkOf(e.Key()).State != event.NotParked: // a park leaves the turn of a holder that comes back
		return parked
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

// forgetVisits removes the names of visits that are over, and leaves one of each other: a repeat may have got the place of the one before.
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
	if call.Reservation {
		b.comeBack(now, it, from, call, out)
		return
	}
	if slices.Contains(call.Path, it.actor.id) { // a handler of this key waits for the answer, and the call that is here for that handler, or is its own
		out.say(from, event.Answered, cycle)
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
		out.say(from, event.Attempted, begun)
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

// waitUntil moves the deadline of a call, if that is later. If its time was up, a worker may have passed it over.
func (b *Boxes) waitUntil(now clock.Instant, it *item, deadline clock.Instant, out *Output) {
	if e := it.ref.Event(); e.Call.Deadline.Before(deadline) {
		it.ref = withDeadline(e, deadline)
		b.watch(it, deadline, out)
		if !e.Call.Deadline.After(now) {
			b.refileVisited(now, it.actor, out)
		}
	}
}

// comeBack moves a reservation, held or waiting, to another address: knowledge of its secret id proves the holder. The former address is
// told that the reservation is over there.
func (b *Boxes) comeBack(now clock.Instant, it *item, from address, call *event.Call, out *Output) {
	b.counters.Joined++
	delete(b.visits.by, it.first)
	if it.first != from && !b.isGone(it.first) {
		out.say(it.first, event.Answered, over)
		b.tell(it.first, out)
	}
	it.first = from
	b.visits.by[from] = it.place
	if fence, runs := b.visits.fences[it.place]; runs {
		out.say(from, event.Granted, &event.Detail{Grant: &event.Grant{Fence: fence}}) // to be renewed before anything is done
		return
	}
	if it.delivery != 0 {
		b.visits.moved[it.place] = struct{}{}
	}
	b.waitUntil(now, it, call.Deadline, out)
}

// repeatAnswer answers a call that was done before.
func (b *Boxes) repeatAnswer(to address, id event.MessageID, out *Output) {
	if r := b.visits.replies.known[id]; r != nil {
		out.say(to, event.Answered, &event.Detail{Reply: r})
		return
	}
	out.say(to, event.Done, nil)
}

func (b *Boxes) visitorsOf(a *actor) *visitors {
	v := b.visits.of[a]
	if v == nil {
		v = new(visitors)
		b.visits.of[a], a.visited = v, true
	}
	return v
}

func (v *visitors) pushBack(it *item) {
	if v.tail == nil {
		v.head = it
	} else {
		v.tail.next = it
	}
	v.tail = it
	v.n++
}

func (v *visitors) pushFront(it *item) {
	it.next, v.head = v.head, it
	if v.tail == nil {
		v.tail = it
	}
	v.n++
}

// remove removes a visit from any place of the queue.
func (v *visitors) remove(it *item) {
	var before *item
	for at := v.head; at != it; at = at.next {
		before = at
	}
	if before == nil {
		v.head = it.next
	} else {
		before.next = it.next
	}
	if v.tail == it {
		v.tail = before
	}
	it.next = nil
	v.n--
}

// isReservation reports whether a visit is one.
func (it *item) isReservation() bool { return it.ref.Event().Call.Reservation }

// workerOf returns the worker of what runs next of a key: the keeper if it is a reservation.
func (b *Boxes) workerOf(now clock.Instant, a *actor) *worker {
	if b.resuming(now, a) != nil {
		a.workers = noWorkers
		return &b.visits.keeper
	}
	if a.visited {
		alone := len(b.workers.all) == 0 // nothing else could run: reservations wait for no turn of an event, or of a call before them
		if v := b.visits.of[a]; alone || !b.eventMay(now, a) || v.inTurn < visitsInTurn {
			if it := v.first(now, func(it *item) bool { return !alone || it.isReservation() }); it != nil && it.isReservation() {
				a.workers = noWorkers
				return &b.visits.keeper
			}
		}
	}
	if a.workers != b.workers.generation {
		a.worker, a.workers = b.workers.pick(a.key), b.workers.generation
	}
	return a.worker
}

// noWorkers is no generation of workers: the key is given one anew when it needs one.
const noWorkers = 1<<32 - 1

// first returns the first visit whose time is not up, and that is wanted.
func (v *visitors) first(now clock.Instant, wanted func(*item) bool) *item {
	for it := v.head; it != nil; it = it.next {
		if wanted(it) && it.ref.Event().Call.Deadline.After(now) { // otherwise Tick ends it
			return it
		}
	}
	return nil
}

// eventMay reports whether the first event of a key need not wait for its retry.
func (b *Boxes) eventMay(now clock.Instant, a *actor) bool {
	return a.head != nil && !a.heldUntil.After(now)
}

// refileVisited files a key again whose visits have changed, unless it runs.
func (b *Boxes) refileVisited(now clock.Instant, a *actor, out *Output) {
	if a.running == nil {
		b.dequeueWaiting(a)
		b.enqueue(now, a, out)
	}
}

// nextOfBoth is next for a key with visits that wait. The keeper gets reservations alone, and all other workers none.
func (b *Boxes) nextOfBoth(now clock.Instant, w *worker, a *actor, v *visitors) *item {
	if !a.part.mayRun(a.key) {
		it := b.resuming(now, a)
		if it == nil || w.id != event.Keeper {
			return nil
		}
		v.remove(it)
		return it
	}
	eventMay, keeper := b.eventMay(now, a) && w.id != event.Keeper, w.id == event.Keeper
	if !eventMay || v.inTurn < visitsInTurn {
		if it := v.first(now, func(it *item) bool { return it.isReservation() == keeper }); it != nil {
			v.remove(it)
			v.inTurn = min(v.inTurn+1, visitsInTurn)
			return it
		}
	}
	if !eventMay {
		return nil
	}
	v.inTurn, a.heldUntil = 0, 0
	return a.popFront()
}

// putOff files a key that was ready and has nothing that may run: its visits' time is up, which Tick finds, and its event waits for its retry.
func (b *Boxes) putOff(now clock.Instant, a *actor) {
	a.wait, a.since = WaitNothing, now
	if a.head != nil && a.heldUntil.After(now) {
		var out Output // the retry was in Next before
		a.wait = WaitRetry
		b.hold(a, &out)
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
		b.endWaiting(now, it, event.Answered, tooOld, out)
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

// endVisit answers the callers of a visit that is in no queue and does not run, and frees it. A visit that may have run before is never
// answered as not run.
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
		detail = mayRun
	}
	b.answer(it, kind, detail, out)
	b.release(it)
}

// takeVisitOut is takeOut for a visit.
func (b *Boxes) takeVisitOut(now clock.Instant, it *item, out *Output) {
	b.counters.Duplicates++
	b.window.add(now, it.actor.part.number, b.spans.at(it.span), it.bit)
	b.endWaiting(now, it, event.Done, nil, out)
}

// refuseVisits ends the visits of a key that wait.
func (b *Boxes) refuseVisits(a *actor, kind event.VerdictKind, detail *event.Detail, out *Output) {
	b.endVisits(a, kind, detail, out, func(*item, *event.Call) bool { return true })
}

// Cancel removes a sender from calls. A call without another sender ends without a verdict: a waiting one at once; a running one is named
// in out.TakeBack, and its key stays busy until Finish; if it is a granted reservation that ends by another result than done, its sender gets the verdict. Unknown calls are ignored.
func (b *Boxes) Cancel(now clock.Instant, from Sender, calls []event.Handle, out *Output) {
	b.call++
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

// Grant tells the holder of a reservation that it has begun. A delivery that is over is ignored. Permission counts from the holder's asking: one
// that has asked from another place since the delivery was taken may have done so after the permission was computed, and gets none.
func (b *Boxes) Grant(id event.DeliveryID, g event.Grant, out *Output) {
	b.call++
	it := b.find(id)
	if it == nil || !it.visit {
		return
	}
	if _, moved := b.visits.moved[it.place]; moved {
		delete(b.visits.moved, it.place)
		g.Remaining = 0
	}
	b.visits.fences[it.place] = g.Fence
	b.counters.Granted++
	b.answer(it, event.Granted, &event.Detail{Grant: &g}, out)
}

// Renewable returns the delivery of a reservation that a sender has here and that runs, 0 if there is none. Nothing may be answered to a renewal of
// one that is over before the verdict that says so is on its way: telling says that it may not be.
func (b *Boxes) Renewable(from Sender, call event.Handle) (id event.DeliveryID, telling bool) {
	at := address{from, call}
	if place, here := b.visits.by[at]; here {
		if _, runs := b.visits.fences[place]; runs {
			id = b.items.at(place).delivery
		}
	}
	return id, b.visits.telling[at] > 0
}

// tell names the final verdict on a reservation in the output, until it is on its way.
func (b *Boxes) tell(to address, out *Output) {
	if b.isGone(to) {
		return
	}
	b.visits.telling[to]++
	out.Telling = append(out.Telling, Telling{to.sender, to.handle})
}

// endRelease is for the end of a reservation that was cancelled: if it had ended in another way already, its Cancel has freed nothing, and its
// sender is told after all.
func (b *Boxes) endRelease(it *item, r *event.Result) {
	to, released := b.visits.release[it.place]
	if !released {
		return
	}
	delete(b.visits.release, it.place)
	b.told(to)
	if r.Kind != event.ResultDone && it.first.sender == gone {
		it.first = to
	}
}

// Told says that verdicts are on their way that an output has named.
func (b *Boxes) Told(all []Telling) {
	for _, t := range all {
		b.told(address{t.To, t.Call})
	}
}

func (b *Boxes) told(to address) {
	switch n := b.visits.telling[to]; {
	case n > 1:
		b.visits.telling[to] = n - 1
	case n == 1:
		delete(b.visits.telling, to)
	}
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

// finishVisit ends a delivery of a visit.
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
		b.answer(it, event.Attempted, begun, out) // before a sender gives it to another owner
	}
	switch {
	case r.Kind == event.ResultHandedOver, o.Again && !p.ours():
		b.endVisit(it, event.NotOwner, b.notOwner, out)
	case o.Again && !e.Call.Resume && b.parkOf(a.key).State != event.NotParked:
		b.endVisit(it, event.Answered, parked, out)
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
	b.enqueue(now, a, out)
	if p.gate != ownership.Open {
		b.outlived(r.Kind)
		out.Ended = append(out.Ended, p.number)
	}
}

// remember keeps the id of a call that was done, and its reply, for repeats.
func (b *Boxes) remember(now clock.Instant, it *item, r *event.Reply) {
	if it.span == noSpan || it.isReservation() { // that is over, and may be made anew
		return
	}
	p := it.actor.part
	b.window.add(now, p.number, b.spans.at(it.span), it.bit)
	if !p.ours() {
		b.late = append(b.late, b.window.end-1)
		p.leaves = b.window.end
	}
	b.visits.replies.add(it.id, r)
}

// replies are the replies of calls that were done, the newest ones.
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

// recordVisit is record for a visit.
func (b *Boxes) recordVisit(now clock.Instant, it *item, r *event.Result, o outcome.CallOutcome) {
	if b.records == nil {
		return
	}
	a := it.actor
	took := now.Sub(a.since)
	b.records.hot.Add(a.id, now.Sub(max(a.since, b.records.hotSince)))
	b.records.times.Handled.Add(took)
	end := history.Answered
	switch {
	case o.Again && a.part.ours():
		end = history.Returned
	case o.Again:
		end = history.Moved
	}
	*b.records.attempts.Next(a.fails || history.Failed(r.Kind)) = history.Attempt{
		Key: a.id, ID: it.id, Accepted: it.cohort.at, Delivered: a.since, Ended: now,
		Fence: b.fenceOf(it), Number: 1, Result: r.Kind, End: end, TimedOut: r.TimedOut, Ran: r.Ran,
	}
	if len(b.records.fences) > 0 {
		delete(b.records.fences, it.delivery)
	}
}
