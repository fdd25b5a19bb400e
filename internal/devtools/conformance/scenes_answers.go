package conformance

var answerScenes = []scene{
	{rules: []string{"answers", "retry-after", "progress"}, play: playAnswers},
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
