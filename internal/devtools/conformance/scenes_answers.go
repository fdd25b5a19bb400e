package conformance

import (
	"fmt"
	"math"
	"time"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

var answerScenes = []scene{
	{rules: []string{"answers", "retry-after", "progress"}, play: playAnswers},
	{rules: []string{"fence"}, play: playFence},
	{rules: []string{"intervals"}, play: playIntervals, setup: func(r *router) { r.welcome.Capabilities = []string{intervals} }},
	{rules: []string{"receipts"}, play: playReceipts},
	{rules: []string{"answered-once", "one-handler"}, play: playOnce},
}

func playAnswers(r *router) {
	s := r.stream("answers", 1)
	s.renew(long)
	s.want("answers", s.give(task{do: "done"}), kindDone)
	s.want("answers", s.give(task{do: "fail"}), kindRetry)
	s.want("answers", s.give(task{do: "reject"}), kindReject)
	s.want("answers", s.give(task{do: "crash"}), kindRetry)
	s.want("answers", s.give(task{do: "done"}), kindDone)
	s.want("answers", s.give(task{do: "ignore_cancel"}), kindDone)

	const delay = 4321
	id := s.give(task{do: "retry_after", ms: delay})
	if r.may("retry-after", id) {
		result := s.want("retry-after", id, kindRetry)
		r.check(result.GetAfterMs() == delay, "retry-after", "after_ms is %d, and the handler asked for %d", result.GetAfterMs(), delay)
	}
	id = s.give(task{do: "progress"})
	if r.may("progress", id) {
		s.want("progress", id, kindDone)
		r.await("progress", "Progress frame", func() bool { return s.progress[id] })
	}
}

// playFence gives two deliveries of one frame other tokens, and numbers that no float holds.
func playFence(r *router) {
	const rule = "fence"
	s := r.stream(rule, 1)
	s.renew(long)
	given := []task{{do: "fence", token: 1, turn: math.MaxUint64 - 1}, {do: "fence", turn: 1<<53 + 1}, {do: "fence", token: 1, turn: 1<<53 + 2}}
	for i, id := range s.deliver(given...) {
		if !r.may(rule, id) {
			return
		}
		s.want(rule, id, kindDone)
		r.mu.Lock()
		got := r.fences[id]
		r.mu.Unlock()
		want := fmt.Sprintf("%019d.%020d", tokens[given[i].token], given[i].turn)
		r.check(got == want, rule, "the handler of delivery %d has told the fence %q, want %q", id, got, want)
	}
}

// clocksDiffer is the resolution of the boot clock of a worker that knows it by /proc/uptime alone.
const clocksDiffer = 25 * time.Millisecond

func playIntervals(r *router) {
	const ran = 300
	s := r.stream("intervals", 1)
	s.renew(long)
	for _, t := range []task{{do: "ignore_cancel", ms: ran}, {do: "fail"}, {do: "done"}} {
		id := s.give(t)
		result := s.want("intervals", id, kindOf(t))
		begun, ended := r.started("intervals", id), r.finished("intervals", id)
		from, to := int64(result.GetStartedNs()), int64(result.GetStartedNs()+result.GetTookNs())
		r.check(from > 0, "intervals", "the answer of delivery %d does not say when its handler started", id)
		early, late := time.Duration(begun-from), time.Duration(to-ended)
		r.check(early >= -clocksDiffer && late >= -clocksDiffer, "intervals", "by its answer the handler of delivery %d started %v before its first line and ended %v after its last", id, early, late)
		r.check(early < r.patience && late < r.patience, "intervals", "by its answer the handler of delivery %d started %v before its first line and ended %v after its last", id, early, late)
	}
	s.suspend()
	waiting := s.deliver(task{do: "done", partition: 7})
	s.revoke(&appv1.Revoke{Partitions: []uint32{7}})
	result := s.want("intervals", waiting[0], kindNotStarted)
	r.check(result.GetStartedNs() == 0 && result.GetTookNs() == 0, "intervals", "the answer NOT_STARTED says when the handler ran")
	s.resume()

	r.change(func() { r.welcome.Capabilities = nil })
	s.breakOff()
	s = r.stream("intervals", 2)
	s.renew(long)
	result = s.want("intervals", s.give(task{do: "done"}), kindDone)
	r.check(result.GetStartedNs() == 0, "intervals", "an answer says when its handler ran, and nobody has asked")
}

// kindOf is the kind of the answer to a task that is not cancelled.
func kindOf(t task) appv1.ResultKind {
	if t.do == "fail" {
		return kindRetry
	}
	return kindDone
}

// may waits until the worker has started a task, and reports whether its SDK supports it.
func (r *router) may(rule string, id uint64) (ok bool) {
	r.finished(rule, id)
	r.change(func() {
		if r.cannot[id] {
			r.skips[rule] = "the worker says that its SDK does not support it"
		}
		ok = !r.cannot[id]
	})
	return ok
}

func playReceipts(r *router) {
	s := r.stream("receipts", 1)
	s.renew(long)
	ids := s.deliver(task{do: "sleep", ms: 60_000}, task{do: "sleep", ms: 60_000})
	r.started("receipts", ids[0])
	s.receipted() // their handlers run
	s.want("receipts", s.give(task{do: "done"}), kindDone)
}

func playOnce(r *router) {
	s := r.stream("answered-once", 1)
	s.renew(long)
	for range 10 {
		s.want("answered-once", s.give(task{do: "sleep", ms: 50, key: "one"}), kindDone)
	}
	var tasks []task
	for range min(50, s.window()) {
		tasks = append(tasks, task{do: "done"})
	}
	for _, id := range s.deliver(tasks...) {
		s.want("answered-once", id, kindDone)
		r.finished("answered-once", id)
	}
	s.pinged(2)
}
