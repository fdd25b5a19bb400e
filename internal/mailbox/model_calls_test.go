package mailbox

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// This file contains the calls of the reference and of the model.

// refCall is a call.
type refCall struct {
	event   event.Event
	to      []address // none: nobody waits any more
	running event.DeliveryID
	begun   bool // it waits, and may have run before
	watched bool // its deadline takes it back if it runs
	granted event.Fence
	moved   bool    // it runs, and was resumed before it was granted
	left    address // it was granted, and this sender has cancelled it while it ran
}

type refReply struct {
	id      event.MessageID
	payload string
}

// plain returns a verdict that == compares with its reply.
func plain(v verdict) verdict {
	if r := v.Reply; r != nil {
		v.Reason += fmt.Sprintf("|%v %q %s", r.Outcome, r.Payload, r.Code)
		v.Reply = nil
	}
	if g := v.Grant; g != nil {
		v.Reason += fmt.Sprintf("|granted %v for %v", g.Fence, g.Remaining)
		v.Grant = nil
	}
	return v
}

func asSet(ids []event.DeliveryID) []event.DeliveryID {
	return slices.Compact(slices.Sorted(slices.Values(ids)))
}

// notRun is the verdict on a call that does not run.
func notRun(d event.Detail) verdict { return verdict{event.Answered, d} }

func notRunBecause(code, why string) verdict {
	return notRun(event.Detail{Reason: why, Reply: &event.Reply{Outcome: event.CallNotRun, Code: code}})
}

func (r *reference) countCalls(match func(*refCall) bool) (n int) {
	for _, c := range r.calls {
		if match(c) {
			n++
		}
	}
	return n
}

func (r *reference) waitingCalls(key event.Key) (calls []*refCall) {
	for _, c := range r.calls {
		if c.event.Key == key && c.running == 0 {
			calls = append(calls, c)
		}
	}
	return calls
}

// checkShown compares what Inspect tells of the calls and reservations of a key with the reference.
func (m *model) checkShown(key event.Key, s KeyState) {
	waiting := m.ref.waitingCalls(key)
	if s.Calls != len(waiting) || len(s.Waiting) != min(len(waiting), WaitingShownMax) {
		m.Fatalf("of key %q %d calls wait and %d are listed, want %d", key, s.Calls, len(s.Waiting), len(waiting))
	}
	for i, got := range s.Waiting {
		c := waiting[i]
		if got.Method != c.event.Call.Method || got.Deadline != c.event.Call.Deadline || got.Callers != len(c.to) || !slices.ContainsFunc(c.to, func(to address) bool { return to.sender == got.Via }) {
			m.Fatalf("of key %q waits %+v, want %+v for %v", key, got, c.event.Call, c.to)
		}
	}
	for _, c := range m.ref.calls {
		if c.event.Key == key && c.running != 0 && (!s.Call || s.Method != c.event.Call.Method || s.Deadline != c.event.Call.Deadline || s.Fence != c.granted) {
			m.Fatalf("of key %q runs %q until %d with fence %v, want %q until %d with %v", key, s.Method, s.Deadline, s.Fence, c.event.Call.Method, c.event.Call.Deadline, c.granted)
		}
	}
}

func (r *reference) findCall(id event.MessageID) *refCall {
	i := slices.IndexFunc(r.calls, func(c *refCall) bool { return c.event.ID == id })
	if i < 0 {
		return nil
	}
	return r.calls[i]
}

func (r *reference) runningCall(d event.DeliveryID) *refCall {
	i := slices.IndexFunc(r.calls, func(c *refCall) bool { return c.running == d })
	if d == 0 || i < 0 {
		return nil
	}
	return r.calls[i]
}

// eventMay reports whether an event of a key that does not run could run.
func (r *reference) eventMay(now clock.Instant, key event.Key) bool {
	head := r.head(key)
	return head != nil && !head.heldUntil.After(now)
}

func (c *refCall) isReservation() bool { return c.event.Call.Reservation }

// keepers reports whether a delivery is one of the keeper.
func keepers(d *event.Delivery) bool { return d.Call() != nil && d.Call().Reservation }

// firstVisit returns the first call of a key whose time is not up and that is wanted, nil if there is none or something runs.
func (r *reference) firstVisit(now clock.Instant, key event.Key, wanted func(*refCall) bool) *refCall {
	if r.runningOf(key) > 0 {
		return nil
	}
	for _, c := range r.waitingCalls(key) {
		if c.event.Call.Deadline.After(now) && wanted(c) {
			return c
		}
	}
	return nil
}

// nextCall returns the call that runs next, nil if that is an event, or none. While no worker is up, that is a reservation.
func (r *reference) nextCall(now clock.Instant, key event.Key) *refCall {
	if len(r.workers) == 0 {
		return r.firstVisit(now, key, (*refCall).isReservation)
	}
	if r.runningOf(key) > 0 || r.eventMay(now, key) && r.inTurn[key] >= 8 {
		return nil
	}
	for _, c := range r.waitingCalls(key) {
		if c.event.Call.Deadline.After(now) {
			return c
		}
	}
	return nil
}

func (r *reference) sayTo(to address, v verdict) []addressed {
	return r.say(&refEvent{to: []address{to}}, plain(v))
}

func (r *reference) sayAll(c *refCall, v verdict) []addressed {
	return r.say(&refEvent{to: c.to}, plain(v))
}

// endCall ends a call that does not run. No caller is told that it has not run if it may have.
func (r *reference) endCall(c *refCall, v verdict) []addressed {
	if c.begun && v.Reply != nil && v.Reply.Outcome == event.CallNotRun {
		v = verdict{event.Answered, *answerMayHaveRun}
	}
	r.calls = slices.DeleteFunc(r.calls, func(x *refCall) bool { return x == c })
	r.rest(c.event.Key)
	return r.sayAll(c, v)
}

// rest forgets the turns of a key of which nothing is here.
func (r *reference) rest(key event.Key) {
	if r.depth(key)+r.runningOf(key)+len(r.waitingCalls(key)) == 0 {
		delete(r.inTurn, key)
	}
}

func (r *reference) acceptCall(now clock.Instant, from Sender, senderEpoch event.Position, e *event.Event) []addressed {
	to, id := address{from, e.Handle}, ring.HashOf(string(e.Key))
	overloaded := verdict{event.Overloaded, event.Detail{Delay: modelConfig.OverloadedDelay}}
	if here := r.findCall(e.ID); here != nil && here.isReservation() {
		return r.comeBack(here, to, e)
	}
	if here := r.findCall(e.ID); here != nil {
		if slices.Contains(e.Call.Path, id) {
			return r.sayTo(to, notRunBecause(event.CodeCycle, answerCycle.Reason))
		}
		here.to = slices.DeleteFunc(here.to, func(to address) bool { return r.gone[to.sender] })
		if len(here.to) >= modelConfig.JoinsMax {
			r.crowded++
			return r.sayTo(to, overloaded)
		}
		here.to = append(here.to, to)
		if here.event.Call.Deadline < e.Call.Deadline {
			longer := *here.event.Call
			longer.Deadline = e.Call.Deadline
			here.event.Call, here.watched = &longer, true
		}
		if here.begun {
			return r.sayTo(to, verdict{event.Attempted, *answerCut})
		}
		return nil
	}
	if r.remembers(e.ID) {
		for _, reply := range r.replies {
			if reply.id == e.ID {
				return r.sayTo(to, verdict{event.Answered, event.Detail{Reply: &event.Reply{Outcome: event.CallReplied, Payload: []byte(reply.payload)}}})
			}
		}
		return r.sayTo(to, verdict{Kind: event.Done})
	}
	tooMuch := r.bytes() > 0 && r.bytes()+e.Bytes()+placeBytes > modelConfig.BytesMax
	switch {
	case !r.ours(e.Partition) && r.epoch.Before(senderEpoch):
		return r.sayTo(to, verdict{event.NotYet, event.Detail{Delay: modelConfig.NotYetDelay}})
	case !r.ours(e.Partition):
		return r.sayTo(to, verdict{event.NotOwner, event.Detail{Epoch: r.epoch}})
	case slices.Contains(e.Call.Path, id):
		return r.sayTo(to, notRunBecause(event.CodeCycle, answerCycle.Reason))
	case e.Call.Resume:
		return r.sayTo(to, notRunBecause(event.CodeLost, answerOver.Reason))
	case !e.Call.Deadline.After(now):
		return r.sayTo(to, notRunBecause(event.CodeTimeout, answerTooLate.Reason))
	case r.parks[e.Key].State != event.NotParked:
		return r.sayTo(to, notRunBecause(event.CodeParked, answerParked.Reason))
	case tooMuch || len(r.calls) >= modelConfig.CallsMax || len(r.waitingCalls(e.Key)) >= modelConfig.KeyCallsMax:
		r.crowded++
		return r.sayTo(to, overloaded)
	}
	r.calls = append(r.calls, &refCall{event: *e, to: []address{to}, watched: true})
	return nil
}

// notGranted returns a reservation that has begun, and whose holder does not know it; nil: there is none.
func (r *reference) notGranted() *event.Event {
	for _, c := range r.calls {
		if c.event.Call.Reservation && c.running != 0 && c.granted == (event.Fence{}) {
			return &c.event
		}
	}
	return nil
}

// comeBack lets a holder go on from another place.
func (r *reference) comeBack(here *refCall, to address, e *event.Event) []addressed {
	said := r.sayAll(here, notRunBecause(event.CodeLost, answerOver.Reason))
	here.to = []address{to}
	if here.granted != (event.Fence{}) {
		return append(said, r.sayTo(to, verdict{event.Granted, event.Detail{Grant: &event.Grant{Fence: here.granted}}})...)
	}
	here.moved = here.running != 0
	if here.event.Call.Deadline < e.Call.Deadline {
		longer := *here.event.Call
		longer.Deadline = e.Call.Deadline
		here.event.Call = &longer
	}
	return said
}

// grant says that a reservation has begun.
func (r *reference) grant(d event.DeliveryID, g event.Grant) []addressed {
	c := r.runningCall(d)
	if c == nil {
		return nil
	}
	if c.moved { // its holder has asked after the permission was given
		g.Remaining = 0
	}
	c.granted = g.Fence
	return r.sayAll(c, verdict{event.Granted, event.Detail{Grant: &g}})
}

func (r *reference) finishCall(now clock.Instant, c *refCall, result event.Result) (said []addressed, ended bool) {
	call, p := c.event.Call, c.event.Partition
	o := outcome.OfCall(call.Once() || call.Reservation, call.Deadline.After(now) && len(c.to) > 0, &result)
	if c.left != (address{}) && len(c.to) == 0 && result.Kind != event.ResultDone {
		c.to = []address{c.left} // the Cancel has freed nothing
	}
	c.running, c.granted, c.moved, c.left = 0, event.Fence{}, false, address{}
	ended = r.gates[p].Gate != ownership.Open
	if o.Again {
		if result.Kind == event.ResultCancelled || result.Kind == event.ResultLost {
			c.begun = true
			said = r.sayAll(c, verdict{event.Attempted, *answerCut})
		}
		switch {
		case !r.ours(p):
			return append(said, r.endCall(c, verdict{event.NotOwner, event.Detail{Epoch: r.epoch}})...), ended
		case r.parks[c.event.Key].State != event.NotParked:
			return append(said, r.endCall(c, notRun(*answerParked))...), ended
		}
		r.calls = slices.Insert(slices.DeleteFunc(r.calls, func(x *refCall) bool { return x == c }), 0, c)
		r.inTurn[c.event.Key] = max(0, r.inTurn[c.event.Key]-1)
		c.watched = true
		return said, ended
	}
	if o.Reply.Outcome == event.CallReplied && !call.Once() && !call.Reservation {
		r.window = append(r.window, refDone{id: c.event.ID, p: p, at: now, late: !r.ours(p)})
		r.takeHandover(p)
		r.forget()
		r.replies = append(r.replies, refReply{c.event.ID, string(o.Reply.Payload)})
		if i := slices.IndexFunc(r.replies, func(x refReply) bool { return x.id == c.event.ID }); i < len(r.replies)-1 {
			r.replies[i].payload = string(o.Reply.Payload)
			r.replies = r.replies[:len(r.replies)-1]
		}
		for r.repliesBytes() > modelConfig.RepliesBytesMax {
			r.replies = r.replies[1:]
		}
	}
	return r.endCall(c, notRun(event.Detail{Reason: o.Reason, Reply: &o.Reply})), ended
}

func (r *reference) repliesBytes() (n int) {
	for _, reply := range r.replies {
		n += replyBytes + len(reply.payload)
	}
	return n
}

// expireCalls ends the waiting calls whose time is up, and takes back those that run.
func (r *reference) expireCalls(now clock.Instant) (said []addressed) {
	for _, c := range slices.Clone(r.calls) {
		switch {
		case c.event.Call.Deadline.After(now):
		case c.running == 0:
			said = append(said, r.endCall(c, notRunBecause(event.CodeTimeout, answerTooLate.Reason))...)
		case c.isReservation(): // whose time is that of its wait
		case c.watched:
			c.watched = false
			r.takeBack = append(r.takeBack, c.running)
		}
	}
	return said
}

// cancelCalls lets a sender wait no more.
func (r *reference) cancelCalls(from Sender, handles []event.Handle) {
	for _, h := range handles {
		for _, c := range slices.Clone(r.calls) {
			i := slices.Index(c.to, address{from, h})
			if i < 0 {
				continue
			}
			c.to = slices.Delete(slices.Clone(c.to), i, i+1)
			switch {
			case len(c.to) > 0:
			case c.running != 0:
				r.takeBack = append(r.takeBack, c.running)
				if c.granted != (event.Fence{}) {
					c.left = address{from, h}
				}
			default:
				r.endCall(c, verdict{})
			}
		}
	}
}

func (r *reference) takeCallOver(d event.Finished, c *refCall) []addressed {
	if c.running != 0 {
		return nil
	}
	r.window = append(r.window, refDone{id: d.ID, p: c.event.Partition, at: d.At})
	r.forget()
	return r.endCall(c, verdict{Kind: event.Done})
}

// call makes a call, or one again that was made before, or several of a key.
func (m *model) call() {
	from := pick(m, m.senders, "from")
	senderEpoch := event.Position{Ledger: 1, Entry: rapid.Int64Range(0, 3).Draw(m.T, "ahead") + m.ref.epoch.Entry - 1}
	key := pick(m, m.keys, "key")
	if m.chance(60, "hot") {
		key = m.keys[0]
	}
	var calls []*event.Event
	var want []addressed
	for range pick(m, []int{1, 1, 1, 3, 5}, "calls") {
		m.nextEntry++
		m.nextHandle++
		c := &event.Event{Handle: m.nextHandle, Key: key, Partition: ring.PartitionOf(string(key)), Payload: make([]byte, rapid.IntRange(0, 100).Draw(m.T, "size"))}
		call := event.Call{Method: "m", Deadline: m.now.Add(pick(m, []time.Duration{0, 100 * time.Millisecond, time.Second, 5 * time.Second, time.Minute}, "timeout"))}
		if m.chance(5, "cycle") {
			call.Path = []ring.KeyHash{1, ring.HashOf(string(key))}
		}
		switch {
		case len(m.knownCalls) > 0 && m.chance(50, "again"):
			before := m.knownCalls[max(0, len(m.knownCalls)-1-rapid.IntRange(0, 5).Draw(m.T, "back"))]
			if one := m.ref.notGranted(); one != nil && m.chance(20, "before its grant") {
				before = one
			}
			if before.Call.Reservation {
				call.Method, call.Reservation, call.Resume = "", true, m.chance(40, "resume")
			}
			c.Key, c.Partition, c.ID, c.Payload, call.ID = before.Key, before.Partition, before.ID, before.Payload, before.Call.ID
		case m.chance(60, "id"):
			call.ID = fmt.Sprint(m.nextEntry)
			if m.chance(50, "reservation") {
				c.Payload, call.Method, call.Reservation, call.Resume = nil, "", true, m.chance(10, "resume")
			}
		}
		c.ID, c.Call = event.CallMessageID(c.Key, call.ID, uint64(m.nextEntry)), &call
		if call.ID != "" {
			m.knownCalls = append(m.knownCalls, c)
		}
		calls = append(calls, c)
		m.open[address{from, c.Handle}] = true
		here := m.ref.findCall(c.ID)
		said := m.ref.acceptCall(m.now, from, senderEpoch, c)
		switch {
		case here != nil && call.Reservation:
			m.noteComeBack(here)
		case here == nil:
			m.noteCalls(said)
			if len(said) > 0 && said[0].Kind == event.Answered && m.ref.remembers(c.ID) {
				m.calls["reply again"]++
			}
		case here.begun:
			m.calls["joined one that began"]++
		default:
			m.calls["joined"]++
		}
		want = append(want, said...)
	}
	m.boxes.Accept(m.now, from, senderEpoch, event.RefsTo(calls...), &m.out)
	m.expect("Accept", want)
}

// noteComeBack counts a holder's return.
func (m *model) noteComeBack(here *refCall) {
	switch {
	case here.granted != (event.Fence{}):
		m.calls["resumed"]++
	case here.moved:
		m.calls["resumed before the grant"]++
	default:
		m.calls["asked from elsewhere"]++
	}
}

// grant says that reservations have begun which run.
func (m *model) grant() {
	for _, d := range m.deliveries {
		if keepers(&d) && m.chance(70, "grant") {
			m.grantOne(&d)
		}
	}
	if len(m.over) > 0 {
		m.grantID(pick(m, m.over, "over"), event.Grant{Fence: event.Fence{Token: 1}})
	}
}

func (m *model) grantOne(d *event.Delivery) {
	if c := m.ref.runningCall(d.ID); c.granted == (event.Fence{}) {
		m.calls["granted"]++
		m.grantID(d.ID, event.Grant{Fence: d.Fence(), Remaining: time.Duration(d.Turn)})
	}
}

func (m *model) grantID(id event.DeliveryID, g event.Grant) {
	want := m.ref.grant(id, g)
	m.boxes.Grant(id, g, &m.out)
	m.expect("Grant", want)
}

// noteCalls counts what callers are told.
func (m *model) noteCalls(said []addressed) {
	for _, v := range said {
		switch v.Kind {
		case event.Done:
			m.calls["done before"]++
		case event.NotOwner:
			m.calls["not owner"]++
		case event.Overloaded:
			m.calls["overloaded"]++
		case event.Answered:
			m.calls[ended(v.Reason)]++
		default: // Attempted, NotYet
		}
	}
}

// ended returns the outcome in a plain verdict, and of a call that has not run its code.
func ended(reason string) string {
	switch reason {
	case plain(verdict{event.Answered, *answerMayHaveRun}).Reason:
		return "unknown, after a cut"
	}
	tail := reason[1+lastBar(reason):]
	var what, payload, code string
	_, _ = fmt.Sscanf(tail, "%s %q %s", &what, &payload, &code)
	if what == event.CallNotRun.String() {
		return code
	}
	return what
}

func lastBar(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '|' {
			return i
		}
	}
	return -1
}

// cancel lets senders wait no more for calls that are here, and for some that never were.
func (m *model) cancel() {
	from := pick(m, m.senders, "from")
	handles := []event.Handle{m.nextHandle + 1000}
	for _, c := range m.ref.calls {
		for _, to := range c.to {
			if to.sender == from && m.chance(50, "cancel") {
				handles = append(handles, to.handle)
				delete(m.open, c.left)
				if c.granted == (event.Fence{}) || c.running == 0 { // else it may be told of another end
					delete(m.open, to)
				}
				if c.running != 0 {
					m.calls["cancelled while it runs"]++
				} else {
					m.calls["cancelled while it waits"]++
				}
			}
		}
	}
	m.ref.cancelCalls(from, handles)
	m.boxes.Cancel(m.now, from, handles, &m.out)
	m.expect("Cancel", nil)
}

// rush lets many calls run in a row, while events wait.
func (m *model) rush() {
	if !m.chance(10, "rush") {
		return
	}
	m.accept()
	for range 12 {
		m.call()
		m.call()
		m.takeAll()
		m.finishDone()
	}
}

// serve lets calls run, and ends some of them in any way.
func (m *model) serve() {
	m.call()
	m.takeAll()
	var results []event.Result
	m.deliveries = slices.DeleteFunc(m.deliveries, func(d event.Delivery) bool {
		if d.Call() == nil || !m.chance(60, "ends") {
			return false
		}
		r := event.Result{Delivery: d.ID, Reason: "no", Kind: pick(m, []event.ResultKind{
			event.ResultDone, event.ResultRetry, event.ResultReject, event.ResultNotStarted, event.ResultCrashed,
		}, "kind")}
		m.over = append(m.over, d.ID)
		results = append(results, m.callResult(r))
		return true
	})
	m.finishAll(results)
}

// pass lets time pass without a Tick.
func (m *model) pass() {
	m.now = m.now.Add(time.Duration(rapid.Int64Range(0, int64(300*time.Millisecond)).Draw(m.T, "time")))
	m.passed = true
}

// startedCall checks that the delivery of a call is the one that the reference would allow.
func (m *model) startedCall(w event.WorkerID, d event.Delivery) {
	key := d.Ref.Key()
	keeper := w == event.Keeper
	c := m.ref.firstVisit(m.now, key, func(c *refCall) bool { return c.isReservation() == keeper })
	if !keeper && m.ref.eventMay(m.now, key) && m.ref.inTurn[key] >= 8 {
		c = nil
	}
	first := m.ref.firstVisit(m.now, key, func(*refCall) bool { return true })
	switch {
	case keeper != keepers(&d):
		m.Fatalf("worker %d gets call %v, reservation: %t", w, d.MessageID(), keepers(&d))
	case c != nil && c != first && !m.passed && len(m.ref.workers) > 0: // otherwise the key may have been filed when another visit's time was not up
		m.Fatalf("delivery of call %v before call %v", d.MessageID(), first.event.ID)
	case c == nil:
		m.Fatalf("delivery of call %v, and the key has none to run: %d in a row, head %+v, calls %+v", d.MessageID(), m.ref.inTurn[key], m.ref.head(key), m.ref.waitingCalls(key))
	case c.event.ID != d.MessageID():
		m.Fatalf("delivery of call %v, want %v, which is first in its key", d.MessageID(), c.event.ID)
	case !m.ref.lets(key):
		m.Fatalf("delivery of a call of key %q with gate %+v, on hold: %v", key, m.ref.gates[d.Partition], m.ref.onHold[key])
	case d.Key != ring.HashOf(string(key)) || d.Partition != c.event.Partition || d.Token != int64(m.ref.gates[d.Partition].Token):
		m.Fatalf("delivery %+v, want partition %d and token %d", d, c.event.Partition, m.ref.gates[d.Partition].Token)
	case d.Turn == 0 || !m.fences[key].Before(d.Fence()):
		m.Fatalf("delivery of a call of key %q with fence %v after %v", key, d.Fence(), m.fences[key])
	case d.Call().Deadline != c.event.Call.Deadline || d.Attempt != 1:
		m.Fatalf("delivery of call %v with the deadline %v and attempt %d, want %v", d.MessageID(), d.Call().Deadline, d.Attempt, c.event.Call.Deadline)
	}
	m.checkGeneration(&d)
	if before, ok := m.stuckTo[key]; ok && !keeper && before != w {
		m.Fatalf("key moved from worker %d to %d though none came or went", before, w)
	}
	if head := m.ref.head(key); head != nil && head.heldUntil.After(m.now) {
		m.calls["before a retry"]++
	}
	m.fences[key] = d.Fence()
	if !keeper {
		m.stuckTo[key] = w
	}
	c.running = d.ID
	m.ref.inTurn[key] = min(8, m.ref.inTurn[key]+1)
	m.deliveries = append(m.deliveries, d)
}

// checkGeneration: the generation grows when the key's worker may not have seen its last turn, and only then.
func (m *model) checkGeneration(d *event.Delivery) {
	if keepers(d) {
		m.changes[d.Partition]++
	}
	if want := uint64(m.changes[d.Partition] + m.workersChanged); d.Generation != want {
		m.Fatalf("delivery %v of generation %d, want %d", d.MessageID(), d.Generation, want)
	}
}

// callResult draws what else the result of a call has.
func (m *model) callResult(r event.Result) event.Result {
	if m.chance(50, "cut") {
		r.Kind = pick(m, []event.ResultKind{event.ResultCancelled, event.ResultLost, event.ResultNotStarted}, "how")
	}
	switch {
	case r.Kind == event.ResultDone:
		r.Reply = &event.CallReply{Payload: []byte(fmt.Sprintf("%07d", r.Delivery%1e7))}
	case r.Kind == event.ResultNotStarted && m.chance(50, "no handler"):
		r.Reply = &event.CallReply{Code: event.CodeNoHandler}
	case r.Kind == event.ResultRetry:
		r.Reply, r.TimedOut = &event.CallReply{Code: "odd"}, m.chance(20, "timed out")
	}
	return r
}

// checkTelling: each final verdict on a reservation is named until it is on its way, and the cancelled ones that run are known as such.
func (m *model) checkTelling(call string) {
	want := map[address]int{}
	for _, c := range m.ref.calls {
		if c.left != (address{}) {
			want[c.left]++
		}
	}
	for _, t := range m.out.Telling {
		if _, telling := m.boxes.Renewable(t.To, t.Call); !telling {
			m.Fatalf("%s: the verdict for %+v is not known to be on its way", call, t)
		}
	}
	m.boxes.Told(m.out.Telling)
	if !maps.Equal(m.boxes.visits.telling, want) {
		m.Fatalf("%s: verdicts for %v are on their way, want %v", call, m.boxes.visits.telling, want)
	}
}
