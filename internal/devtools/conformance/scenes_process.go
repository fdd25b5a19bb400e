package conformance

import "time"

var processScenes = []scene{
	{rules: []string{"frozen"}, play: playFrozen},
	{rules: []string{"drain", "drain-receipt"}, play: playDrain},
}

// playFrozen stops the process until after its deadline, with a delivery for it to read when it
// continues.
func playFrozen(r *router) {
	s := r.stream("frozen", 1)
	id, until := s.runBriefly("frozen", task{do: "sleep", ms: 60_000})
	r.freeze()
	waits := s.give(task{do: "done"})
	r.sleepUntil(until + int64(50*time.Millisecond))
	r.signal(sigCont)
	s.receipted()
	s.pinged(3)
	s.lost("frozen", id)
	at := s.renew(long)
	start := r.started("frozen", waits)
	r.check(start < until || start >= at-int64(bootStep), "frozen", "delivery %d started %v after the deadline, which had passed while the process was stopped, and no Pong had followed", waits, time.Duration(start-until))
	s.want("frozen", waits, kindDone)
}

func playDrain(r *router) {
	s := r.stream("drain", 1)
	s.renew(long)
	ran := s.give(task{do: "sleep", ms: 2500})
	r.started("drain", ran)
	s.suspend()
	waits := s.give(task{do: "done"})
	s.receipted()
	r.change(func() { r.leaving, s.holdFor, s.linger = true, ran, 300*time.Millisecond })
	r.signal(sigTerm)
	r.await("drain", "Drain frame after SIGTERM", func() bool { return s.drained })
	s.want("drain", waits, kindNotStarted)
	still := false
	r.change(func() { _, answered := s.answers[ran]; still = !answered })
	if still { // else the worker has nothing left, and may half-close before it reads more
		s.want("drain", s.give(task{do: "done"}), kindNotStarted)
	}
	s.want("drain", ran, kindDone)
	r.mu.Lock()
	pings := len(s.pings) + 2
	r.mu.Unlock()
	r.await("drain-receipt", "Ping while it drains", func() bool { return s.halfClosed || len(s.pings) >= pings })
	r.change(func() {
		if s.holds && s.halfClosed && r.dead == "" {
			r.violated("drain-receipt", "it half-closed before the receipt of its last Results frame")
		}
	})
	s.receiptAll()
	halfClosed := false
	r.await("drain", "half-close after the last receipt", func() bool { halfClosed = s.halfClosed; return s.gone })
	r.check(halfClosed, "drain", "the stream was reset instead of half-closed")
	r.await("drain", "end of the process", func() bool { return r.exited })
	r.mu.Lock()
	code := r.exit
	r.mu.Unlock()
	r.check(code == 0, "drain", "the exit code is %d, want 0", code)
}
