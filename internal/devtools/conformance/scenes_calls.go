package conformance

import (
	"bytes"
	"slices"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// The scenes of calls. A worker that does not declare the capability gets no calls.
var callScenes = []scene{
	{rules: []string{"call-reply", "call-method"}, play: playCalls},
	{rules: []string{"call-failure"}, play: playCallFailures},
	{rules: []string{"call-revoked"}, play: playCallRevoked},
	{rules: []string{"call-large"}, play: playCallLarge},
}

const (
	calls = "calls" // the capability of a worker

	// The methods that a worker registers, and one that it does not.
	methodEcho    = "echo"
	methodObey    = "obey"
	methodUnknown = "No-such.method_1"

	// The code that a handler is told to fail with, and the codes of the protocol.
	codeTold      = "told"
	codeNoHandler = "no_handler"
	codeTooLarge  = "too_large"

	replyMax = 1 << 20 // bytes
)

// callStream returns the first stream of a worker, and ends the scene if that takes no calls.
func (r *router) callStream(rule string) *stream {
	s := r.stream(rule, 1)
	if !r.over() && !slices.Contains(s.hello.GetCapabilities(), calls) {
		r.change(func() {
			r.absent, r.dead = "the worker does not take calls: its Hello lacks the capability calls", rule
		})
	}
	s.renew(long)
	return s
}

// replied waits for the answer of a call and checks its reply.
func (s *stream) replied(rule string, id uint64, reply []byte) {
	got := s.want(rule, id, kindDone).GetReply()
	s.r.check(bytes.Equal(got, reply), rule, "the reply of delivery %d has %d bytes that are not the %d bytes that its handler returned", id, len(got), len(reply))
}

func playCalls(r *router) {
	const rule = "call-reply"
	s := r.callStream(rule)
	echo := task{method: methodEcho, do: "done", pad: 1000}
	ids := s.deliver(slices.Repeat([]task{echo}, min(3, s.window()))...)
	for _, id := range ids {
		s.replied(rule, id, echo.payload(id))
	}
	s.replied(rule, s.give(task{method: methodObey, do: "done"}), nil)
	s.replied(rule, s.give(task{do: "done"}), nil) // an event

	id := s.give(task{method: methodUnknown, do: "done"})
	result := s.want("call-method", id, kindNotStarted)
	r.check(result.GetCode() == codeNoHandler, "call-method", "the code of delivery %d is %q, want %q", id, result.GetCode(), codeNoHandler)
	r.never("call-method", id, "the worker has no handler of its method")
	id = s.give(echo)
	s.replied(rule, id, echo.payload(id))
}

func playCallFailures(r *router) {
	const rule = "call-failure"
	s := r.callStream(rule)
	for do, code := range map[string]string{"fail": codeTold, "crash": ""} {
		id := s.give(task{method: methodObey, do: do})
		result := s.want(rule, id, kindRetry)
		r.check(result.GetReason() != "", rule, "the answer of delivery %d has no reason", id)
		r.check(result.GetCode() == code, rule, "the code of delivery %d is %q, want %q", id, result.GetCode(), code)
		r.check(len(result.GetReply()) == 0, rule, "the answer of delivery %d has a reply, and its handler failed", id)
	}
	s.want(rule, s.give(task{method: methodObey, do: "done"}), kindDone)
}

func playCallRevoked(r *router) {
	const rule = "call-revoked"
	s := r.callStream(rule)
	ran := s.give(task{method: methodObey, do: "sleep", ms: 60_000})
	r.started(rule, ran)
	s.suspend()
	waits := s.give(task{method: methodObey, do: "done"})
	s.receipted()
	s.revoke(&appv1.Revoke{DeliveryIds: []uint64{ran, waits}, Reason: "the caller is no longer waiting"})
	s.lost(rule, ran)
	r.finished(rule, ran)
	s.resume()
	result := s.want(rule, waits, kindNotStarted)
	r.check(result.GetCode() == "", rule, "the code of delivery %d is %q, want none: it was revoked", waits, result.GetCode())
	s.want(rule, s.give(task{method: methodObey, do: "done"}), kindDone)
	r.never(rule, waits, "it was revoked before")
}

// largeReply is such that three of them are more than a frame may have, and two are not.
const largeReply = 900 << 10

func playCallLarge(r *router) {
	const rule = "call-large"
	s := r.callStream(rule)
	s.replied(rule, s.give(replyOf(replyMax)), bytes.Repeat([]byte{'x'}, replyMax))
	id := s.give(replyOf(replyMax + 1))
	result := s.want(rule, id, kindRetry)
	r.check(result.GetCode() == codeTooLarge, rule, "the code of delivery %d is %q, want %q", id, result.GetCode(), codeTooLarge)
	r.check(len(result.GetReply()) == 0, rule, "the answer of delivery %d has a reply of %d bytes", id, len(result.GetReply()))

	// Replies gather while a Results frame has no receipt.
	r.change(func() { s.holdFor = r.next + 1 })
	s.want(rule, s.give(task{method: methodObey, do: "done"}), kindDone)
	ids := s.deliver(slices.Repeat([]task{replyOf(largeReply)}, min(4, s.window()))...)
	for _, id := range ids {
		r.finished(rule, id)
	}
	s.pinged(2)
	s.receiptAll()
	for _, id := range ids {
		s.replied(rule, id, bytes.Repeat([]byte{'x'}, largeReply))
	}
}

func replyOf(n int) task { return task{method: methodObey, do: "reply", reply: n} }
