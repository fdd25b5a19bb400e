package conformance

import (
	"slices"
	"strconv"
	"time"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// The scenes of state. A worker that does not declare it is not judged by them.
var stateScenes = []scene{
	{rules: []string{"state"}, play: playState},
	{rules: []string{"state-dropped"}, play: playStateDropped},
	{rules: []string{"state-dropped"}, play: playStateOfAStream},
	{rules: []string{"state-lost"}, play: playStateLost},
}

// stateful is the capability of a worker that keeps state.
const stateful = "state"

// stateStream returns the first stream of a worker, and ends the scene if that keeps no state.
func (r *router) stateStream(rule string) *stream {
	s := r.stream(rule, 1)
	if !r.over() && !slices.Contains(s.hello.GetCapabilities(), stateful) {
		r.change(func() {
			r.absent, r.dead = "the worker does not declare the capability state in its Hello", rule
		})
	}
	return s
}

// turnOf is a turn of a key that asks for its state. All of one key in a scene have one partition.
func turnOf(key string, generation uint64) task {
	return task{do: stateful, key: key, partition: 1, generation: generation}
}

// found waits for the end of a handler, and checks whose state it has got.
func (r *router) found(rule string, id, first uint64) {
	r.finished(rule, id) // these lines come before that of its end
	r.mu.Lock()
	loaded, told := r.loaded[id], r.states[id]
	r.mu.Unlock()
	if first == id {
		r.check(loaded && told == strconv.FormatUint(id, 10), rule, "the turn of delivery %d has to load its state: the state has begun with delivery %q, and the line loaded was written: %t", id, told, loaded)
		return
	}
	r.check(!loaded, rule, "the turn of delivery %d has loaded its state, and the turn before it had left that of delivery %d", id, first)
	r.check(told == strconv.FormatUint(first, 10), rule, "the state of the turn of delivery %d has begun with delivery %q, want %d", id, told, first)
}

// loads delivers a turn, and checks that it loads its state.
func (s *stream) loads(rule string, t task) (id uint64) {
	id = s.give(t)
	s.want(rule, id, kindDone)
	s.r.found(rule, id, id)
	return id
}

// keeps delivers a turn, and checks that it gets the state that a delivery has loaded.
func (s *stream) keeps(rule string, t task, first uint64) {
	id := s.give(t)
	s.want(rule, id, kindDone)
	s.r.found(rule, id, first)
}

func playState(r *router) {
	const rule, key = "state", "one"
	s := r.stateStream(rule)
	s.renew(long)
	one := turnOf(key, 1)
	first := s.loads(rule, one)
	s.keeps(rule, one, first)
	s.keeps(rule, one, first)

	other := s.loads(rule, turnOf("other", 1))
	s.keeps(rule, one, first)
	s.keeps(rule, turnOf("other", 1), other)

	two := turnOf(key, 2)
	first = s.loads(rule, two)
	s.keeps(rule, two, first)
	two.token = 1
	first = s.loads(rule, two)
	s.keeps(rule, two, first)

	zero := turnOf("zero", 0)
	s.loads(rule, zero)
	s.loads(rule, zero)
}

// busyFor is how long a handler runs so that it has not ended when the next frame comes.
const busyFor = 300 * time.Millisecond

func playStateDropped(r *router) {
	const rule, key = "state-dropped", "one"
	s := r.stateStream(rule)
	s.renew(long)
	turn := turnOf(key, 1)
	first := s.loads(rule, turn)

	fails := turn
	fails.then = "fail"
	failed := s.give(fails)
	s.want(rule, failed, kindRetry)
	r.found(rule, failed, first)
	first = s.loads(rule, turn)

	sleeps := turn
	sleeps.then, sleeps.ms = "sleep", 60_000
	cut := s.give(sleeps)
	r.stated(rule, cut)
	s.revoke(&appv1.Revoke{DeliveryIds: []uint64{cut}})
	s.lost(rule, cut)
	r.found(rule, cut, first)
	s.loads(rule, turn)

	unasked := []task{{do: "done"}, {do: "fail"}}
	if slices.Contains(s.hello.GetCapabilities(), calls) {
		unasked = append(unasked, task{do: "done", method: methodObey})
	}
	for _, t := range unasked {
		t.key, t.partition, t.generation = key, turn.partition, turn.generation
		s.awaitAnswer(rule, s.give(t), kindDone)
		s.loads(rule, turn)
	}

	for _, revoke := range []*appv1.Revoke{{Partitions: []uint32{turn.partition}}, {All: true}} {
		s.revoke(revoke)
		first = s.loads(rule, turn)

		sleeps.ms = int(busyFor.Milliseconds())
		runs := s.give(sleeps)
		r.stated(rule, runs)
		s.revoke(revoke)
		s.want(rule, runs, kindDone) // its deadline is a minute away
		r.found(rule, runs, first)
		s.loads(rule, turn)
	}
}

// stated waits until a handler has its state.
func (r *router) stated(rule string, id uint64) {
	r.await(rule, "line state of delivery "+strconv.FormatUint(id, 10), func() bool { _, ok := r.states[id]; return ok })
}

func playStateOfAStream(r *router) {
	const rule = "state-dropped"
	s := r.stateStream(rule)
	s.renew(long)
	idle, busy := turnOf("idle", 1), turnOf("busy", 1)
	s.loads(rule, idle)
	first := s.loads(rule, busy)
	sleeps := busy
	sleeps.then, sleeps.ms = "sleep", int(busyFor.Milliseconds())
	runs := s.give(sleeps)
	r.stated(rule, runs)
	r.change(func() { r.lease = long })
	s.breakOff()
	next := r.stream(rule, 2)
	next.renew(long) // the stream may be older than the lease
	next.loads(rule, idle)
	r.found(rule, runs, first)
	next.loads(rule, busy)
}

func playStateLost(r *router) {
	const rule = "state-lost"
	s := r.stateStream(rule)
	goesOn, alone := turnOf("one", 1), turnOf("alone", 1)
	goesOn.then, goesOn.ms = ignoreCancel, int(ignoresFor.Milliseconds())
	alone.then, alone.ms = goesOn.then, goesOn.ms
	unasked := task{do: ignoreCancel, ms: goesOn.ms, key: "unasked", partition: 1, generation: 1}
	s.renew(brief)
	s.loads(rule, turnOf("unasked", 1))
	ids, until := s.runAllBriefly(rule, goesOn, alone, unasked)
	r.sleepUntil(until + int64(held))
	later := turnOf("one", 1)
	later.then, later.ms = "sleep", goesOn.ms // longer than that of the handler that has begun before
	second := s.give(later)
	third := s.give(turnOf("unasked", 1))
	s.renew(long)
	s.want(rule, third, kindDone)
	r.found(rule, third, third) // the handler before it may have written
	fourth := s.give(turnOf("unasked", 1))
	s.want(rule, fourth, kindDone)

	r.sleepUntil(r.started(rule, ids[0]) + int64(ignoresFor)) // which may be longer than the kit's patience
	inTime := false                                           // on a busy machine a handler may end before its deadline: then it has succeeded
	for _, id := range ids {
		s.awaitAnswer(rule, id, kindCancelled)
		inTime = inTime || r.finished(rule, id) <= until+int64(bootStep)
	}
	r.sleepUntil(r.started(rule, second) + int64(ignoresFor))
	s.want(rule, second, kindDone)
	if inTime {
		return
	}
	if r.finished(rule, ids[2]) > r.finished(rule, fourth) {
		r.found(rule, fourth, fourth) // that handler may have written after the third had loaded
	}
	r.found(rule, second, second)
	first := s.loads(rule, turnOf("one", 1)) // the handler before the second may have written after that had read
	s.keeps(rule, turnOf("one", 1), first)
	s.loads(rule, turnOf("alone", 1))
}
