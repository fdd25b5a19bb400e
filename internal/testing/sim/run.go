package sim

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/ownership"
)

// Result is the result of one run.
type Result struct {
	Seed      uint64
	Simulated time.Duration
	Moves     int            // gates that opened
	Faults    int            // faults that were let loose
	Overlaps  int            // handlers that overlapped because they defied their deadline
	Stats     map[string]int // counts by kind of event
	Failure   string         // the first violation; "" when there was none
	Trace     []string       // the newest lines, when asked for
}

// Run simulates a cluster for a time, from a seed.
func Run(seed uint64, length time.Duration, traced bool) Result {
	return runScene(seed, length, traced, nil)
}

// Journalled simulates a cluster without faults of the log, and writes its ownership machines'
// steps to a journal, in their order.
func Journalled(seed uint64, length time.Duration, to io.Writer) Result {
	return runScene(seed, length, false, func(w *world) {
		w.journal, w.p.mixed, w.p.duplicate = to, false, 0
		clear(w.p.weights[:])
		for _, k := range []kind{killRouter, killBoth, leaveGroup, joinGroup, pauseRouter, pauseBoth, stallTail, stallAfterBeat, cutLog, rollLog, injectGenesis} {
			w.p.weights[k] = usual[k]
		}
	})
}

// scene changes the parameters of a run, before it begins and before each stretch of trouble.
type scene func(w *world)

func runScene(seed uint64, length time.Duration, traced bool, change scene) Result {
	w := newWorld(seed, params{partitions: 6})
	w.tracing = traced
	w.draw()
	n := 2 + w.rng.IntN(8)
	w.shape = change
	if change == nil && seed%5 == 2 {
		schedules(w)
	}
	if change != nil {
		change(w)
		n = 2 + w.rng.IntN(3)
	}
	for i := range n {
		p := w.newPod(fmt.Sprintf("n%d", i))
		w.after(w.between(0, 3*time.Second), p.up)
	}
	w.publishing = true
	w.after(0, w.publishOn)
	w.after(0, w.callOn)
	for range 3 {
		w.reservers = append(w.reservers, w.newReserver())
	}
	w.after(0, w.reserveOn)
	if change == nil {
		switch seed % 8 {
		case 2, 6:
			withActs(w)
		case 3, 7:
			withDifficultWorkers(w)
		case 4: // together: most bugs are where two of them meet
			w.spills = w.chance(0.5)
			withActs(w)
			withDifficultWorkers(w)
		}
	}
	w.after(time.Second, w.watch)
	w.runUntil(w.now + 12*time.Second)
	for w.now < length && w.failure == "" {
		w.cycle()
	}
	for _, h := range w.hosts {
		w.stats["clock_turned"] += h.drift.turns
	}
	if w.failure == undecidable {
		w.failure = ""
	}
	return Result{
		Seed: seed, Simulated: w.now, Moves: w.moves, Faults: w.faultsEver, Overlaps: w.overlap,
		Stats: w.stats, Failure: w.failure, Trace: w.trace,
	}
}

// draw draws the parameters of the next stretch of a run.
func (w *world) draw() {
	p := &w.p
	p.timing = ownership.DefaultTiming()
	switch w.rng.IntN(4) {
	case 0:
		p.timing = ownership.CalmTiming()
	case 1:
		p.timing = ownership.FastTiming()
	}
	p.timing.DrainTimeout, p.timing.RemovedMax = 5*time.Second, 8*time.Second
	p.drainMax = 25 * time.Second
	p.mixed, p.skew, p.olderReleases = w.chance(0.2), w.chance(0.2), w.chance(0.15)
	w.drawTrouble()
}

// drawTrouble draws the kinds of trouble of the next stretch: some, not all.
func (w *world) drawTrouble() {
	p := &w.p
	p.slow, p.long = []float64{0, 0.1, 0.3, 0.5}[w.rng.IntN(4)], 0.1
	p.appendMin, p.appendMax = time.Millisecond, 10*time.Millisecond
	p.readMin, p.readMax = 500*time.Microsecond, 8*time.Millisecond
	if w.chance(0.2) {
		p.appendMax, p.readMax = 150*time.Millisecond, 100*time.Millisecond
	}
	p.late, p.duplicate, p.lostAck, p.checkFails, p.preempt = 0, 0, 0, 0, 0
	if w.chance(0.4) {
		p.late = 0.01 * float64(1+w.rng.IntN(5))
	}
	if w.chance(0.4) {
		p.duplicate, p.lostAck = 0.02, 0.02
	}
	if w.chance(0.4) {
		p.checkFails = 0.3
	}
	if w.chance(0.4) {
		p.preempt = 0.02
	}
	p.publishEvery = []time.Duration{400 * time.Millisecond, time.Second, 3 * time.Second}[w.rng.IntN(3)]
	p.pace = w.between(300*time.Millisecond, 6*time.Second)
	sum := 0
	for k := range p.weights {
		p.weights[k] = 0
		if w.chance(0.5) {
			p.weights[k] = usual[k]
			sum += usual[k]
		}
	}
	if sum == 0 {
		p.weights = usual
	}
}

// cycle is a stretch with faults, then one in which the cluster must come to rest,
// then one in which nothing may happen.
func (w *world) cycle() {
	w.drawTrouble()
	if w.shape != nil {
		w.shape(w)
	}
	w.publishing, w.troubles = true, true
	if w.acts != nil {
		w.acts.on = true
	}
	w.tracef("TROUBLE %v", w.p)
	for end := w.now + w.between(20*time.Second, 90*time.Second); w.now < end && w.failure == ""; {
		if w.script != nil {
			w.faultsEver++
			w.script(w)
		} else {
			w.fault()
		}
		w.runUntil(w.now + w.between(0, 2*w.p.pace))
	}
	w.watchServed = false
	w.rest()
	w.quiet()
}

// watch looks once a second whether everything is served, where that is asked for.
func (w *world) watch() {
	if w.watchServed {
		w.checkServed()
	} else {
		w.servedAt = nil
	}
	for _, m := range w.live {
		if m.keeper != nil && m.ended == nil && m.gates != nil && !m.process.isStopped() && !m.driver.isStopped() && len(m.process.waiting) == 0 {
			m.keeper.checkParked()
		}
	}
	w.after(time.Second, w.watch)
}

// restMax bounds the time until a cluster comes to rest. The events of a key run one after the other, so that a hot one may take longer: then
// restStill bounds the time in which no event is settled.
const (
	restMax   = 2 * time.Minute
	restStill = 20 * time.Second
)

// restLooks is the number of checks, a second apart, that must find the cluster at rest: a
// member that has just returned is well before others have heard of it.
const restLooks = 3

// rest ends all faults and waits until the cluster has come to rest.
func (w *world) rest() {
	w.heal()
	w.runUntil(w.now + 2*time.Second)
	w.publishing, w.troubles = false, false
	if w.agenda != nil {
		w.agenda.until = w.agenda.now()
	}
	looks := 0 // in a row that found nothing
	least, _ := w.broker.open()
	for end := w.now + restMax; w.failure == ""; {
		w.acts.rest()
		w.runUntil(w.now + time.Second)
		if n, _ := w.broker.open(); n < least {
			least, end = n, max(end, w.now+restStill)
		}
		for _, p := range w.pods {
			p.up()
		}
		why := w.unrest()
		if why == "" {
			looks++
		} else {
			looks = 0
		}
		if looks == restLooks {
			if w.agenda != nil {
				w.agenda.until = time.Time{}
			}
			return
		}
		if w.now > end {
			w.fail("no rest: %s", why)
		}
	}
}

// quiet is a time without faults: events flow, and nothing else may happen.
func (w *world) quiet() {
	w.lostAllowed, w.exitAllowed, w.spurious = false, false, false
	for _, m := range w.live {
		m.touched = min(m.touched, w.now-personal)
	}
	w.forks = false
	before := maps.Clone(w.stats)
	w.publishing = true
	w.runUntil(w.now + w.between(5*time.Second, 20*time.Second))
	never := []string{"lost", "exit", "exit_settings", "genesis", "note_prefix_differs", "note_removed", "note_epoch"}
	if !w.p.olderReleases {
		never = append(never, "call_not_run_unreachable")
	}
	if w.p.appendMax <= 10*time.Millisecond { // a slow broker and a short lease do not go together
		never = append(never, "note_lease_lapsed", "cancelled", "reservation_lost")
		if !w.difficult { // timeouts of handlers cut calls
			never = append(never, "call_cut")
		}
	}
	for _, k := range never {
		if w.failure == "" && w.stats[k] > before[k] {
			w.fail("%s though nothing was wrong", k)
		}
	}
}

// String lists the counts.
func (r Result) String() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(r.Stats)) {
		fmt.Fprintf(&b, "%s=%d ", k, r.Stats[k])
	}
	return b.String()
}
