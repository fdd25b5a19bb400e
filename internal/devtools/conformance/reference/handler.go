package reference

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// handle is the handler, and what an SDK makes of its end.
func (s *session) handle(d *delivery) (result *appv1.Result) {
	if d.GetCall() != nil && !s.is("calls-are-events") {
		return s.handleCall(d)
	}
	if d.GetTimer().GetFiring() != nil && !s.is("firings-are-events") {
		return s.handleFiring(d)
	}
	in := d.instruction
	result = &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_DONE}
	failed := func(err error) {
		result.Kind, result.Reason = appv1.ResultKind_RESULT_KIND_RETRY, err.Error()
		if len(result.GetReason()) > s.reasonMax && !s.is("long-reasons") {
			result.Reason = strings.ToValidUTF8(result.GetReason()[:s.reasonMax], "")
		}
	}
	if d.instructionMissing {
		failed(errors.New("the payload is not an instruction"))
		return result
	}
	s.print("start", d)
	defer s.print("end", d)
	if t := d.GetTimer(); t != nil && !s.is("no-timer") {
		fmt.Fprintf(s.Out, "timer %d %d %s\n", in.ID, t.GetDueMs(), t.GetName())
	}
	wait := time.Duration(in.Ms) * time.Millisecond
	if in.Do == "state" {
		s.state(d)
		in.Do = cmp.Or(in.Then, "done")
	}
	switch in.Do {
	case "done":
	case "fail":
		failed(errors.New("told to fail" + strings.Repeat(" é", reasonLong)))
	case "crash":
		if !s.is("crash-is-done") {
			failed(errors.New("told to crash"))
		}
	case "reject":
		result.Kind = appv1.ResultKind_RESULT_KIND_REJECT
	case "retry_after":
		failed(errors.New("told to wait"))
		if !s.is("no-after") {
			result.AfterMs = uint64(in.Ms)
		}
	case "sleep":
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-d.lost:
			failed(errors.New("the key is lost"))
		}
	case "ignore_cancel":
		time.Sleep(wait)
	case "progress":
		if !s.is("no-progress") {
			s.mu.Lock()
			s.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Progress{Progress: &appv1.Progress{DeliveryIds: []uint64{d.GetDeliveryId()}}}})
			s.mu.Unlock()
		}
	case "fence":
		fmt.Fprintf(s.Out, "fence %d %v\n", in.ID, d.fence)
	case "after":
		d.setTimers(wait)
	case "after_fail":
		d.setTimers(wait)
		failed(errors.New("told to fail"))
	default:
		failed(fmt.Errorf("no such instruction: %q", in.Do))
	}
	return result
}

const (
	replyMax    = 1 << 20
	replyHalf   = replyMax / 2
	codeTold    = "told"
	codeUnknown = "no_handler"
	codeLarge   = "too_large"
)

// handleCall runs the handler of a call's method.
func (s *session) handleCall(d *delivery) *appv1.Result {
	failed := func(code, reason string) *appv1.Result {
		if s.is("no-code") {
			code = ""
		}
		return &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_RETRY, Reason: reason, Code: code}
	}
	method := d.GetCall().GetMethod()
	if method != "echo" && method != "obey" && !s.is("any-method") {
		if s.is("unknown-method-fails") {
			return failed(codeUnknown, "there is no handler of this method")
		}
		return &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_NOT_STARTED, Code: codeUnknown}
	}
	s.print("start", d)
	defer s.print("end", d)
	var reply []byte
	switch in := d.instruction; {
	case method == "echo":
		reply = d.GetPayload()
	case in.Do == "done":
	case in.Do == "after":
		d.setTimers(time.Duration(in.Ms) * time.Millisecond)
	case in.Do == "reply":
		reply = bytes.Repeat([]byte{'x'}, in.Bytes)
	case in.Do == "fail":
		return failed(codeTold, "told to fail")
	case in.Do == "crash":
		if s.is("crash-has-code") {
			return failed("crashed", "told to crash")
		}
		return failed("", "told to crash")
	case in.Do == "sleep":
		timer := time.NewTimer(time.Duration(in.Ms) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-d.lost:
			return failed("", "the caller is no longer waiting")
		}
	default:
		return failed("", fmt.Sprintf("no such instruction: %q", in.Do))
	}
	most := replyMax
	if s.is("half-a-reply") {
		most = replyHalf
	}
	if len(reply) > most && !s.is("replies-of-any-size") {
		return failed(codeLarge, "the reply is too large")
	}
	if s.is("no-reply") {
		reply = nil
	}
	return &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_DONE, Reply: reply}
}

// reasonLong makes a reason too long for a frame.
const reasonLong = 500

func (w *worker) print(what string, d *delivery) {
	fmt.Fprintf(w.Out, "%s %d %s %d\n", what, d.instruction.ID, d.GetKey(), clock.Read().Boot)
}
