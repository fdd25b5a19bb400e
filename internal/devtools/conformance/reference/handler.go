package reference

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// handle is the handler, and what an SDK makes of its end.
func (s *session) handle(d *delivery) (result *appv1.Result) {
	in := d.instruction
	result = &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_DONE}
	failed := func(err error) {
		result.Kind, result.Reason = appv1.ResultKind_RESULT_KIND_RETRY, err.Error()
		if len(result.GetReason()) > s.reasonMax && !s.is("long-reasons") {
			result.Reason = strings.ToValidUTF8(result.GetReason()[:s.reasonMax], "")
		}
	}
	if d.instructionMissing {
		failed(errors.New("the payload is no instruction"))
		return result
	}
	s.print("start", d)
	defer s.print("end", d)
	wait := time.Duration(in.Ms) * time.Millisecond
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
	default:
		failed(fmt.Errorf("no such instruction: %q", in.Do))
	}
	return result
}

// reasonLong makes a reason too long for a frame.
const reasonLong = 500

func (w *worker) print(what string, d *delivery) {
	fmt.Fprintf(w.Out, "%s %d %s %d\n", what, d.instruction.ID, d.GetKey(), clock.Read().Boot)
}
