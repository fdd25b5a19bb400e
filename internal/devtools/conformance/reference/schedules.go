package reference

import (
	"fmt"
	"time"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

const (
	scheduleName  = "conformance"
	scheduleEvery = time.Hour
	firingAfter   = time.Minute

	// The numbers of missed times that tell the handler of a firing what to do.
	missedFail   = 1
	missedAfter  = 2
	missedReject = 3
)

func (w *worker) schedules() []*appv1.Schedule {
	one := &appv1.Schedule{Name: scheduleName, EveryMs: uint64(scheduleEvery.Milliseconds())}
	switch {
	case w.is("period-in-seconds"):
		one.EveryMs = uint64(scheduleEvery.Seconds())
	case w.is("declares-twice"):
		return []*appv1.Schedule{one, one}
	}
	return []*appv1.Schedule{one}
}

// handleFiring runs the handler of a schedule.
func (s *session) handleFiring(d *delivery) *appv1.Result {
	failed := func(reason string) *appv1.Result {
		return &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_RETRY, Reason: reason}
	}
	firing := d.GetTimer().GetFiring()
	if d.GetTimer().GetName() != scheduleName {
		if s.is("drops-undeclared") {
			return &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_DONE}
		}
		return failed("this schedule is not declared here")
	}
	at, missed, attempt := firing.GetTimeMs(), firing.GetMissed(), d.GetAttempt()
	switch {
	case s.is("firing-when-due"):
		at = d.GetTimer().GetDueMs()
	case s.is("no-missed"):
		missed = 0
	case s.is("first-attempts"):
		attempt = 1
	}
	fmt.Fprintf(s.Out, "firing %d %d %d %v\n", at, missed, attempt, d.fence)
	switch {
	case firing.GetMissed() == missedFail && !s.is("firings-never-fail"):
		return failed("told to fail")
	case firing.GetMissed() == missedAfter:
		d.setTimers(firingAfter)
		if s.is("timers-of-the-name") {
			for _, t := range d.timers {
				t.Key = []byte(scheduleName)
			}
		}
	case firing.GetMissed() == missedReject:
		if s.is("firings-never-reject") {
			return failed("told to reject")
		}
		return &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_REJECT, Reason: "told to reject"}
	}
	return &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_DONE}
}
