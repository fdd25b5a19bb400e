package conformance

import "time"

var deadlineScenes = []scene{
	{rules: []string{"first-pong"}, play: playFirstPong},
	{rules: []string{"deadline-from-ping"}, play: playHeldPong},
	{rules: []string{"deadline-moves"}, play: playMoves},
	{rules: []string{"deadline-cancels"}, play: playCancels},
	{rules: []string{"late-pong"}, play: playLatePong},
	{rules: []string{"ignored-cancel", "answers"}, play: playIgnoredCancel},
}

// bootStep is the error of a worker's reading of the boot clock: some languages have /proc/uptime alone, whose steps are that long, and on
// a busy machine cannot tell where in a step they are.
const bootStep = 10 * time.Millisecond

// notBefore waits for the start of a delivery and checks that it was after an instant, as exactly as workers know it.
func (r *router) notBefore(rule string, id uint64, instant int64, why string) {
	at := r.started(rule, id)
	r.check(at >= instant-int64(bootStep), rule, "delivery %d started %v too early: %s", id, time.Duration(instant-at), why)
}

func playFirstPong(r *router) {
	s := r.stream("first-pong", 1)
	id := s.give(task{do: "done"})
	s.receipted()
	k := s.pinged(1)
	s.answer(k+1000, long) // no such Ping
	s.answer(0, long)
	s.answer(k, 0)
	s.answer(s.pinged(1), -time.Second)
	s.pinged(3)
	at := s.renew(long)
	r.notBefore("first-pong", id, at, "no Pong had answered a Ping with a positive remaining_ns")
	s.want("first-pong", id, kindDone)
}

// held is the remaining_ns of a Pong that is held back for longer. A worker remembers 8 Pings, of
// 100 ms each.
const held = 300 * time.Millisecond

func playHeldPong(r *router) {
	s := r.stream("deadline-from-ping", 1)
	id := s.give(task{do: "done"})
	s.receipted()
	for range 3 {
		k := s.pinged(1)
		r.sleepUntil(bootTime() + int64(held)) // more than held since Ping k was received
		s.answer(k, held)
	}
	s.pinged(2)
	at := s.renew(long)
	r.notBefore("deadline-from-ping", id, at, "each earlier Pong took longer than its remaining_ns, counted from the sending of its Ping")
	s.want("deadline-from-ping", id, kindDone)
}

// generous is a lease that a worker on a busy machine mostly renews in time, and in one of moveTries.
const (
	generous  = 3 * time.Second
	moveTries = 3
)

func playMoves(r *router) {
	s := r.stream("deadline-moves", 1)
	s.renew(generous)
	for try := 1; !s.outlasts("deadline-moves", s.give(task{do: "sleep", ms: 4500}), try); try++ {
	}
}

// A handler ends within cancelMax of its deadline in one of cancelTries, unless the worker looks at its clock too seldom: on a busy machine some are late.
const (
	cancelMax   = time.Second
	cancelTries = 4
)

func playCancels(r *router) {
	s := r.stream("deadline-cancels", 1)
	for try := 1; ; try++ {
		id, until := s.runBriefly("deadline-cancels", task{do: "sleep", ms: 60_000})
		s.lost("deadline-cancels", id)
		end := r.finished("deadline-cancels", id)
		if r.over() || end < until+int64(cancelMax) {
			return
		}
		if try == cancelTries {
			r.check(false, "deadline-cancels", "%d handlers of %d ended more than %v after their deadlines, the last one %v after it", try, try, cancelMax, time.Duration(end-until))
			return
		}
	}
}

// playLatePong stops the process until after its deadline, with a Pong for it to read when it
// continues.
func playLatePong(r *router) {
	s := r.stream("late-pong", 1)
	id, until := s.runBriefly("late-pong", task{do: "sleep", ms: 60_000})
	r.freeze()
	r.sleepUntil(until + int64(50*time.Millisecond))
	r.mu.Lock()
	k := uint64(len(s.pings))
	r.mu.Unlock()
	s.answer(k, long)
	r.signal(sigCont)
	s.lost("late-pong", id)
	r.finished("late-pong", id)
	s.renew(long)
	s.want("late-pong", s.give(task{do: "done"}), kindDone)
}

// ignoresFor is how long a handler ignores its cancellation.
const ignoresFor = 6 * time.Second

func playIgnoredCancel(r *router) {
	s := r.stream("ignored-cancel", 1)
	id, until := s.runBriefly("ignored-cancel", task{do: ignoreCancel, ms: int(ignoresFor.Milliseconds()), key: "one"})
	r.sleepUntil(until + int64(held))
	second := s.give(task{do: "done", key: "one"})
	s.renew(long)
	start := r.started("ignored-cancel", second)
	r.sleepUntil(r.started("ignored-cancel", id) + int64(ignoresFor)) // which may be longer than the kit's patience
	end := r.finished("ignored-cancel", id)
	r.check(start < end, "ignored-cancel", "the next delivery of the key waited until the handler had ended")
	s.want("ignored-cancel", second, kindDone)
	want := kindDone // it has succeeded, although it was cancelled
	r.change(func() {
		if r.cannot[id] { // where a cancellation cuts the handler off, as the end of a request does, nobody learns that
			want = kindCancelled
		}
	})
	s.want("answers", id, want)
}
