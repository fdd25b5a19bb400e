package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// This file contains the callers, as internal/app/lane makes their calls, and the judge of their answers. It knows the handlers of a call by
// the call's message id, and the callers by what they were told.

const (
	callMethod       = "work" // the one that applications have a handler of
	callRepliesBytes = 2 << 10
)

// callID is a call with all its repeats.
type callID struct {
	message event.MessageID
	key     event.Key
	call    event.Call
	callers []*calling

	started  []*handling
	replies  map[string]bool // with which handlers have ended
	told     map[string]bool // that callers have got
	failures int             // with which handlers have ended
}

// calling is one call, as its caller sees it.
type calling struct {
	of      *callID
	home    *member
	handle  event.Handle
	made    time.Duration
	timeout time.Duration
	repeats int
	outcome event.CallOutcome // 0: none yet
	gaveUp  bool
}

func (c *calling) String() string {
	return fmt.Sprintf("call %v of %s (id %q, made at %v at %s, timeout %v, %d handlers)", c.of.message, string(c.of.key), c.of.call.ID, c.made, c.home, c.timeout, len(c.of.started))
}

// callOn makes calls as long as the run wants them.
func (w *world) callOn() {
	if w.publishing && len(w.live) > 0 {
		m := w.live[w.rng.IntN(len(w.live))]
		of := w.drawCall()
		m.process.act(func() { m.call(of, 2) })
	}
	w.after(w.between(0, 2*w.p.publishEvery), w.callOn)
}

// drawCall draws a call that nobody has made yet.
func (w *world) drawCall() *callID {
	n := len(w.calls) + 1
	of := &callID{key: w.keys[w.rng.IntN(len(w.keys))], replies: map[string]bool{}, told: map[string]bool{}}
	if w.chance(0.3) {
		of.key = w.keys[0]
	}
	of.call.Method = callMethod
	if w.chance(0.02) {
		of.call.Method = "other"
	}
	if w.chance(0.5) {
		of.call.ID = strconv.Itoa(n)
	}
	switch w.rng.IntN(30) {
	case 0: // its handler would wait for itself
		of.call.Path = []ring.KeyHash{1, ring.HashOf(string(of.key))}
	case 1:
		of.call.Path = []ring.KeyHash{1}
	}
	of.message = event.CallMessageID(of.key, of.call.ID, uint64(n))
	w.calls[of.message] = of
	return of
}

func (w *world) drawTimeout() time.Duration {
	switch w.rng.IntN(4) {
	case 0:
		return w.between(50*time.Millisecond, 300*time.Millisecond)
	case 1:
		return w.between(3*time.Second, 20*time.Second)
	}
	return w.between(300*time.Millisecond, 3*time.Second)
}

// call makes a call, as lane.Lane does. Its caller repeats it up to so many times if it has an id.
func (m *member) call(of *callID, repeats int) {
	if m.old {
		return
	}
	w := m.w
	m.lastCall++
	c := &calling{of: of, home: m, handle: event.NewCallHandle(m.lastCall), made: w.now, timeout: w.drawTimeout(), repeats: repeats}
	if len(of.callers) > 0 {
		w.count("call_repeated")
	}
	of.callers = append(of.callers, c)
	m.calls[c.handle] = c
	w.count("call")
	if w.tracing {
		w.tracef("%s: makes %v", m, c)
	}
	begun, call := m.clock(), of.call
	call.Deadline = begun.Add(c.timeout)
	if !call.Once() && w.chance(0.2) { // a repeat while it is under way
		w.repeatLater(c)
	}
	m.pipeline.Call(&event.Event{Handle: c.handle, ID: of.message, Key: of.key, Partition: ring.PartitionOf(string(of.key)), Call: &call})
	wait, why := c.timeout+lane.OwnerGrace, "call_timed_out"
	if w.chance(0.12) {
		wait, why = w.between(0, c.timeout), "call_given_up"
	}
	m.giveUpAt(c, begun.Add(wait), why)
}

// giveUpAt lets a caller give up.
func (m *member) giveUpAt(c *calling, at clock.Instant, why string) {
	m.process.later(m.host.until(m.clock(), at), func() {
		switch {
		case c.outcome != 0:
			return
		case m.clock().Before(at):
			m.giveUpAt(c, at, why)
			return
		}
		m.w.count(why)
		c.gaveUp = true
		m.pipeline.GiveUp(c.handle)
		if c.outcome == 0 {
			m.w.fail("%s gives %v up, and gets no outcome", m, c)
		}
	})
}

// repeatLater lets a caller make a call again, perhaps at another node.
func (w *world) repeatLater(c *calling) {
	if c.repeats == 0 || c.of.call.Once() {
		return
	}
	repeats := c.repeats - 1
	c.repeats = 0
	w.after(w.between(0, 2*c.timeout), func() {
		m := c.home
		if (m.process.dead || w.chance(0.5)) && len(w.live) > 0 {
			m = w.live[w.rng.IntN(len(w.live))]
		}
		if w.publishing {
			m.process.act(func() { m.call(c.of, repeats) })
		}
	})
}

// answered takes the verdicts on calls that were made at m.
func (m *member) answered(verdicts []event.Verdict) {
	for i := range verdicts {
		if s := m.reserved[verdicts[i].Handle]; s != nil {
			m.heard(s, &verdicts[i])
			continue
		}
		c := m.calls[verdicts[i].Handle]
		if c == nil {
			m.w.fail("%s: a call gets %v, and has no caller who waits", m, verdicts[i].Kind)
			return
		}
		delete(m.calls, c.handle)
		a := lane.AnswerOf(&verdicts[i])
		c.outcome = a.Outcome
		m.w.checkAnswer(c, &a)
		if m.w.chance(0.5) {
			m.w.repeatLater(c)
		}
	}
}

// loseCalls ends the calls of a node that has died: their callers are told nothing.
func (m *member) loseCalls() {
	for _, h := range slices.Sorted(maps.Keys(m.calls)) {
		c := m.calls[h]
		m.w.count("call_home_died")
		m.w.repeatLater(c)
	}
	clear(m.calls)
}

// timeLeft writes the time that is left into the place of the deadline of a call, as frames have it.
func (m *member) timeLeft(e *event.Event) *event.Event {
	call := *e.Call
	left := max(0, e.Call.Deadline.Sub(m.clock())).Truncate(time.Millisecond)
	call.Deadline = clock.Instant(left)
	e.Call = &call
	return e
}

// drawReply draws the result of the handler of a call.
func (w *world) drawReply(h *handling) event.Result {
	if w.chance(0.05) {
		return event.Result{Kind: event.ResultRetry, Reason: "it failed", Reply: &event.CallReply{Code: "odd"}}
	}
	return event.Result{Kind: event.ResultDone, Reply: &event.CallReply{Payload: []byte(strconv.Itoa(h.order))}}
}

// ---- the judge ----

// checkSent: no call is relayed, or sent to a member that would take it for an event.
func (w *world) checkSent(l *link, e *event.Event, relay bool) {
	if relay {
		w.fail("%s sends call %v to %s, to be relayed", l.from, e.ID, l.to)
	}
	if l.to.old {
		w.fail("%s sends call %v to %s, whose release takes none", l.from, e.ID, l.to)
	}
}

// began: an owner starts no call whose time is up.
func (m *member) began(now clock.Instant, deliveries []event.Delivery) {
	for i := range deliveries {
		d := &deliveries[i]
		if m.keeper != nil {
			m.keeper.checkBegun(d)
		}
		if call := d.Call(); call != nil && !call.Deadline.After(now) {
			m.w.fail("%s starts call %v, whose time was up %v ago", m, d.MessageID(), now.Sub(call.Deadline))
		}
		if call := d.Call(); call != nil && call.Reservation {
			m.checkGiven(d)
		}
	}
}

// lateMax bounds how late after the timeout of its callers a handler may begin when nothing is wrong: each hop counts the time left from
// its own receipt, and a worker learns a little later that nobody waits.
const lateMax = 2 * time.Second

// checkCallStart: a call without an id runs once, and no call runs after all its callers were told that it never
// will, or after its callers stopped waiting.
func (w *world) checkCallStart(h *handling) {
	of := w.calls[h.id]
	if of == nil || of.key != h.key {
		w.fail("%v is a call that nobody has made", h)
		return
	}
	w.count("call_started")
	if n := len(of.started); n > 0 {
		w.count("call_started_again")
		if of.started[n-1].conn.member != h.conn.member {
			w.count("call_at_two_owners")
		}
		if of.call.Once() {
			w.fail("%v runs again, and its call has no id; before: %v", h, of.started[n-1])
		}
	}
	of.started = append(of.started, h)
	w.checkNotRun(of)
	sound := w.sound(h.conn.member) && h.conn.app.process.stopped+personal < w.now
	latest := time.Duration(0)
	for _, c := range of.callers {
		latest = max(latest, c.made+c.timeout+c.timeout/50)
		sound = sound && w.sound(c.home)
	}
	if w.now > latest {
		w.count("call_started_late")
	}
	if sound && w.now > latest+lateMax {
		w.fail("%v starts %v after its last caller's timeout", h, w.now-latest)
	}
}

// checkNotRun: a call that its callers know not to run has not begun.
func (w *world) checkNotRun(of *callID) {
	for _, c := range of.callers {
		if c.outcome != event.CallNotRun {
			return
		}
	}
	if len(of.started) > 0 {
		w.fail("%v has run: its callers were told that it has not, and never will: %v", of.started[0], of.callers[len(of.callers)-1])
	}
}

// checkCallEnd notes what the handler of a call has returned.
func (w *world) checkCallEnd(h *handling, r *event.Result) {
	of := w.calls[h.id]
	switch r.Kind {
	case event.ResultDone:
		of.replies[string(r.Reply.Payload)] = true
	case event.ResultRetry:
		of.failures++
	default: // cancelled
	}
}

// checkAnswer judges what a caller is told.
func (w *world) checkAnswer(c *calling, a *lane.Answer) {
	of, what := c.of, "call_"+a.Outcome.String()
	if a.Outcome == event.CallNotRun {
		what += "_" + a.Code
	}
	w.count(what)
	if w.tracing {
		w.tracef("%s: %v: %s %q %s", c.home, a.Outcome, a.Code, a.Payload, c)
	}
	switch a.Outcome {
	case event.CallReplied:
		reply := string(a.Payload)
		if !of.replies[reply] {
			w.fail("%v is answered with %q, which no handler of it has returned", c, reply)
		}
		if of.told[reply] {
			w.count("call_reply_shared")
		}
		of.told[reply] = true
	case event.CallFailed:
		if of.failures == 0 || a.Code != "odd" {
			w.fail("%v is said to have failed with the code %q, and %d handlers of it have", c, a.Code, of.failures)
		}
	case event.CallDoneBefore:
		if of.call.Once() || len(of.replies) == 0 {
			w.fail("%v is said to have been done before", c)
		}
	case event.CallNotRun:
		w.checkNotRun(of)
	case event.CallUnknown:
		if len(of.started) == 0 {
			w.count("call_unknown_and_not_run")
		}
		if !c.gaveUp && w.now < c.made+c.timeout-c.timeout/50 {
			w.count("call_cut")
		}
	default:
		w.fail("%v gets no outcome: %v", c, a)
	}
}
