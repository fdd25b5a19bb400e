package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// loop is the one event loop: real time, pending events, and randomness.
type loop struct {
	rng  *rand.Rand
	now  time.Duration // real time since the start
	seq  uint64
	heap []todo

	hosts []*host

	failure string
	tracing bool
	trace   []string // the newest lines, when tracing
}

// todo is something that happens at an instant of real time; of two the one that was
// asked for first.
type todo struct {
	at  time.Duration
	seq uint64
	to  *process // the process concerned; nil: the world
	do  func()
}

func (a todo) before(b todo) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func newLoop(seed uint64) loop { return loop{rng: rand.New(rand.NewPCG(seed, 0x51b))} }

// after lets do happen in d.
func (l *loop) after(d time.Duration, do func()) { l.schedule(d, nil, do) }

func (l *loop) schedule(d time.Duration, to *process, do func()) {
	l.seq++
	l.heap = append(l.heap, todo{l.now + max(d, 0), l.seq, to, do})
	for i := len(l.heap) - 1; i > 0; {
		parent := (i - 1) / 4
		if !l.heap[i].before(l.heap[parent]) {
			return
		}
		l.heap[i], l.heap[parent] = l.heap[parent], l.heap[i]
		i = parent
	}
}

// pop takes the next todo out of a heap that is not empty. Four children make the
// heap half as deep as two do.
func (l *loop) pop() todo {
	next, last := l.heap[0], len(l.heap)-1
	l.heap[0] = l.heap[last]
	l.heap[last] = todo{}
	l.heap = l.heap[:last]
	for i := 0; ; {
		least := i
		for c := 4*i + 1; c <= 4*i+4 && c < last; c++ {
			if l.heap[c].before(l.heap[least]) {
				least = c
			}
		}
		if least == i {
			return next
		}
		l.heap[i], l.heap[least] = l.heap[least], l.heap[i]
		i = least
	}
}

// runUntil lets everything happen that is due until t, or until something failed.
func (l *loop) runUntil(t time.Duration) {
	for len(l.heap) > 0 && l.heap[0].at <= t && l.failure == "" {
		next := l.pop()
		l.now = next.at
		if next.to == nil {
			next.do()
		} else {
			next.to.act(next.do)
		}
	}
	if l.failure == "" {
		l.now = t
	}
}

func (l *loop) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(l.rng.Int64N(int64(hi-lo)+1))
}

// hop is the time that something takes within a process or a machine: mostly next to
// nothing, now and then a few milliseconds, so that goroutines overtake each other.
func (l *loop) hop() time.Duration {
	switch x := l.rng.IntN(1000); {
	case x < 950:
		return time.Duration(x) * 200
	case x < 995:
		return time.Duration(x) * time.Microsecond
	}
	return l.between(time.Millisecond, 20*time.Millisecond)
}

func (l *loop) chance(p float64) bool { return p > 0 && l.rng.Float64() < p }

// unless fails like fail, unless it is excused. Then it counts.
func (w *world) unless(excused bool, what, format string, args ...any) {
	if excused {
		w.count(what)
		return
	}
	w.fail(format, args...)
}

// fail ends the run: the first violation counts.
func (l *loop) fail(format string, args ...any) {
	if l.failure == "" {
		l.failure = fmt.Sprintf("at %v: %s", l.now, fmt.Sprintf(format, args...))
		l.tracef("VIOLATION %s", l.failure)
	}
}

// traceMax is the number of kept trace lines: the last ones before the end.
const traceMax = 4000

func (l *loop) tracef(format string, args ...any) {
	if !l.tracing {
		return
	}
	if len(l.trace) >= 2*traceMax {
		l.trace = l.trace[:copy(l.trace, l.trace[traceMax:])]
	}
	l.trace = append(l.trace, fmt.Sprintf("%14.6f  ", l.now.Seconds())+fmt.Sprintf(format, args...))
}

// host is a machine with a clock of its own.
type host struct {
	loop   *loop
	drift  drift         // of its hardware counter
	offset time.Duration // its clock at the start
	asleep time.Duration // how much the counter would have counted in suspends that are over
	fell   time.Duration // its clock when it fell asleep, while it sleeps
	sleeps int           // suspends that are not over
	ntp    ntp
	steady clock.Steady
}

func (l *loop) newHost() *host {
	h := &host{loop: l, drift: newDrift(rand.New(rand.NewPCG(l.rng.Uint64(), 26))), offset: l.between(time.Hour, 100*time.Hour)}
	l.hosts = append(l.hosts, h)
	return h
}

// counter is the value of the hardware counter if it counted through suspends.
func (h *host) counter() time.Duration { return h.drift.at(h.loop.now) }

// slept is the part of it that fell into suspends.
func (h *host) slept() time.Duration {
	if h.sleeps == 0 {
		return h.asleep
	}
	return h.asleep + h.counter() - h.fell
}

// sleep suspends the host for d. Its processes must be stopped, too.
func (h *host) sleep(d time.Duration) {
	if h.sleeps++; h.sleeps == 1 {
		h.fell = h.counter()
	}
	h.loop.after(d, h.wake)
}

func (h *host) wake() {
	if h.sleeps == 1 {
		h.asleep = h.slept()
	}
	h.sleeps = max(0, h.sleeps-1)
}

// monotonic is the clock that stops in a suspend.
func (h *host) monotonic() clock.Instant { return clock.Instant(h.offset + h.counter() - h.slept()) }

// until is the real time until the clock shows i and a bit more, or less than that where it
// cannot be known. Callers check again after it.
func (h *host) until(now, i clock.Instant) time.Duration {
	if i == clock.Forever {
		return 1 << 62
	}
	return max(0, h.drift.takes(h.loop.now, i.Sub(now))+2)
}

// process can be stopped, continued, and killed. While it is stopped, its events wait; when it
// is dead, they are dropped.
type process struct {
	loop    *loop
	dead    bool
	stopped time.Duration // until then
	waiting []func()
	running bool   // the waiting are being made up for
	settle  func() // the process's work after each event
}

// act lets the process do something: now, or when it continues.
func (p *process) act(do func()) {
	switch {
	case p.dead:
	case p.isStopped() || len(p.waiting) > 0 && !p.running:
		p.waiting = append(p.waiting, do)
	default:
		p.run(do)
	}
}

func (p *process) run(do func()) {
	do()
	if p.settle != nil && !p.dead {
		p.settle()
	}
}

// later lets do happen to the process in d.
func (p *process) later(d time.Duration, do func()) { p.loop.schedule(d, p, do) }

// look lets the goroutine of the process that watches deadlines look when one is due, or a little later.
func (p *process) look(due time.Duration, look func()) {
	due += p.loop.between(0, checkEvery)
	at := p.loop.now + due
	p.later(due, func() {
		if p.loop.now > at && p.loop.chance(0.7) { // just thawed: other goroutines may be first
			p.later(p.loop.between(0, checkEvery), look)
			return
		}
		look()
	})
}

func (p *process) isStopped() bool { return p.loop.now < p.stopped }

// stop stops the process for d.
func (p *process) stop(d time.Duration) {
	p.stopped = max(p.stopped, p.loop.now+d)
	p.loop.after(d, p.resume)
}

func (p *process) resume() {
	if p.isStopped() || p.running {
		return
	}
	p.running = true
	for len(p.waiting) > 0 && !p.dead && !p.isStopped() {
		do := p.waiting[0]
		p.waiting = p.waiting[1:]
		p.run(do)
	}
	p.running = false
}

func (p *process) kill() {
	p.dead = true
	p.waiting = nil
}
