package forward

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// A call is held like an event, by a handle of its own kind, and travels on the same streams, but:
//
//   - after a refusal it does not wait for events or other calls, since its owner has a separate queue for calls;
//   - it is never relayed, nor sent to a peer of a release without calls, which would run it as an event;
//   - a call without an id of its caller is not sent again after its stream broke: it may have run;
//   - a full owner ends it: its caller decides whether to wait;
//   - an owner that cannot be reached ends it, unless its holder has a promise that outlives the owner, see [Table.goesOn].

// Cancel names a call whose caller no longer waits.
type Cancel struct {
	Peer    Peer // the owner that has it, [Local] or a peer
	Handle  event.Handle
	Confirm bool // ask the owner after the Cancel whether it has handled it: see [Cancel.Renewal]
}

// GiveUp ends a call after its caller has given up. It is settled as not run if no owner can have begun it, otherwise as unknown, and its
// owner is told. An unknown handle is ignored.
//
// A reservation whose holder may have a promise that outlives the owner is settled when an owner has confirmed the
// release, or has answered otherwise, or when no such promise is left.
func (t *Table) GiveUp(now clock.Instant, handle event.Handle, out *Moves) {
	h, ok := t.lookUp(handle)
	if !ok || !h.isCall() {
		return
	}
	if t.goesOn(h) {
		t.keepRelease(now, h, out)
		return
	}
	if sent := h.sentTo(); sent != nil {
		t.ensureExtra(h).mayRun = true
		out.Cancel = append(out.Cancel, Cancel{Peer: sent.lane.peer, Handle: handle})
	}
	t.settle(h, t.notAnswered(h, event.CodeTimeout, "its time was up"), out)
}

// notAnswered returns the verdict on a call that no owner has, or will answer.
func (t *Table) notAnswered(h held, code, why string) event.Verdict {
	if t.mayHaveRun(h) {
		return event.Unknown(h.handle(), why)
	}
	return event.NotRun(h.handle(), code, why)
}

// mayHaveRun reports whether an owner that no longer has a call may have begun it. A reservation runs nothing at an owner:
// its holder knows whether it was granted.
func (t *Table) mayHaveRun(h held) bool {
	x := t.extraOf(h)
	return x != nil && x.mayRun && !h.isReservation()
}

// corrected returns the verdict on a call as its caller may get it. An owner answers NOT_RUN for itself alone: if an earlier owner may have
// run the call, the outcome is unknown.
func (t *Table) corrected(h held, v event.Verdict) event.Verdict {
	if !t.mayHaveRun(h) {
		return v
	}
	d := v.DetailOrZero()
	if v.Kind == event.Rejected || v.Kind == event.Answered && d.Reply != nil && d.Reply.Outcome == event.CallNotRun {
		return event.Unknown(v.Handle, "an earlier owner of the key may have run it; the present one says: "+d.Reason)
	}
	return v
}

// refuseCall ends a call whose owner accepts no calls now. A reservation that continues beyond the death of its owner
// waits until an owner takes it, or its holder gives it up: the holder knows the end of its promise.
func (t *Table) refuseCall(h held, why string, out *Moves) {
	if t.goesOn(h) {
		t.lift(h)
		h.enqueue(t.nobody)
		return
	}
	t.settle(h, t.notAnswered(h, event.CodeUnreachable, why), out)
}

// goesOn reports whether the holder of a reservation may still have a promise, whatever becomes of the owner that gave it.
func (t *Table) goesOn(h held) bool {
	ref := t.ref(h)
	call := ref.Call()
	return call.Resume && call.TTL > 0
}

// refuseCalls ends the calls that are queued for a lane.
func (t *Table) refuseCalls(l *lane, why string, out *Moves) {
	for _, h := range l.queue.all() {
		if h.isCall() {
			t.refuseCall(h, why, out)
		}
	}
}

// mayRepeat settles a call that must not run twice if an owner that no longer has it may have begun it. It reports whether
// the call may be sent again.
func (t *Table) mayRepeat(h held, out *Moves) bool {
	x := t.extraOf(h)
	if x == nil || !x.mayRun || !h.entry.Call(h.index).Once() {
		return true
	}
	t.settle(h, event.Unknown(h.handle(), "an earlier owner of the key may have run it"), out)
	return false
}

// overloaded returns the verdict on a call whose owner has no room.
func overloaded(h event.Handle, delay time.Duration) event.Verdict {
	v := event.NotRun(h, event.CodeOverloaded, "too many calls wait, of this key or of its owner")
	v.Detail.Delay = delay
	return v
}

// Renew asks the owner of a reservation to renew it.
type Renew struct {
	Peer Peer // the owner that has it, [Local] or a peer
	event.Renewal
}

// Renew asks the owner of a reservation for new permission. A reservation that is at no owner is not renewed, and gets no answer.
func (t *Table) Renew(r event.Renewal, out *Moves) {
	h, ok := t.lookUp(r.Handle)
	if !ok || !h.isCall() {
		return
	}
	if sent := h.sentTo(); sent != nil {
		out.Renew = append(out.Renew, Renew{sent.lane.peer, r})
	}
}

// Forget ends a reservation at this node alone: its owner gets no message, and ends it when its permission has passed, unless its holder
// resumes it through another node. A released reservation that is not settled yet has no holder from now on.
func (t *Table) Forget(handle event.Handle) {
	h, ok := t.lookUp(handle)
	switch {
	case !ok || !h.isCall():
	case t.isReleased(h):
		t.leaveAlone(t.extraOf(h).release)
	default:
		t.end(h)
	}
}

// grant notes that a reservation has begun: if it is sent again, it may only be resumed, since its holder may still consider the key its own.
func (t *Table) grant(h held, v *event.Verdict, out *Moves) {
	ev, call := *h.entry.Event(h.index), *h.entry.Call(h.index)
	call.Resume = true
	ev.Call = &call
	x := t.ensureExtra(h)
	x.newer, x.granted = &ev, true
	if x.release != nil {
		t.tellRelease(h, out)
		return
	}
	out.Granted = append(out.Granted, *v)
}
