package conformance

import (
	"bytes"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// The scenes of schedules. A worker that declares none is not judged by them.
var scheduleScenes = []scene{
	{rules: []string{"schedules"}, play: playSchedules},
	{rules: []string{"firing"}, play: playFiring},
	{rules: []string{"firing-timers"}, play: playFiringTimers},
}

const (
	scheduleName   = "conformance"
	scheduleKey    = "schedule/" + scheduleName
	scheduleEvery  = 3_600_000 // milliseconds
	scheduleGrace  = 3_600_000 // milliseconds; the default, which a worker may also leave out
	undeclaredName = "undeclared"
	undeclaredKey  = "schedule/" + undeclaredName

	// What the number of missed times tells the handler of a firing to do. With any other number it is done.
	missedFail   = 1
	missedAfter  = 2
	missedReject = 3

	firingAfter = 60_000            // milliseconds, of the timer that is due later
	firingTime  = 1_700_000_000_123 // milliseconds since 1970, of the first firing of a scene
	firingLate  = 777               // milliseconds between the time of a firing and when it is due, as with a jitter
)

// scheduleStream returns the first stream of a worker, and ends the scene if that has no schedules.
func (r *router) scheduleStream(rule string) *stream {
	s := r.stream(rule, 1)
	if !r.over() && len(s.hello.GetSchedules()) == 0 {
		r.change(func() {
			r.absent, r.dead = "the worker declares no schedules in its Hello", rule
		})
	}
	s.renew(long)
	return s
}

// firingOf makes the task of a firing. Each firing of a scene has a time of its own.
func firingOf(nth, missed, attempt int) task {
	at := int64(firingTime + nth*scheduleEvery)
	return task{
		do: "done", key: scheduleKey, attempt: uint32(attempt),
		timer: &appv1.Timer{Name: scheduleName, DueMs: at + firingLate, Firing: &appv1.Firing{TimeMs: at, Missed: uint32(missed)}},
	}
}

// fires delivers a firing, waits for its answer, and checks what its handler has told.
func (s *stream) fires(rule string, t task, kind appv1.ResultKind) (id uint64, result *appv1.Result) {
	r := s.r
	r.mu.Lock()
	before := len(r.fired)
	r.mu.Unlock()
	id = s.give(t)
	result = s.want(rule, id, kind)
	told := ""
	r.await(rule, fmt.Sprintf("line firing of delivery %d", id), func() bool {
		if len(r.fired) > before {
			told = r.fired[before]
		}
		_, event := r.begun[id]
		return told != "" || event
	})
	r.never(rule, id, "it is a firing, which the handler of events must not get")
	of := t.timer.GetFiring()
	want := fmt.Sprintf("%d %d %d %019d.%020d", of.GetTimeMs(), of.GetMissed(), t.attempt, tokens[t.token], t.turn)
	r.check(told == want, rule, "the handler of the firing, delivery %d, has told %q, want %q", id, told, want)
	return id, result
}

func playSchedules(r *router) {
	const rule = "schedules"
	s := r.scheduleStream(rule)
	declared := s.hello.GetSchedules()
	r.check(len(declared) == 1, rule, "Hello declares %d schedules, want 1", len(declared))
	if r.over() {
		return
	}
	got, _ := proto.Clone(declared[0]).(*appv1.Schedule)
	if got.GetMissed() == appv1.MissedPolicy_MISSED_POLICY_LATEST {
		got.Missed = appv1.MissedPolicy_MISSED_POLICY_UNSPECIFIED
	}
	if got.GetGraceMs() == scheduleGrace {
		got.GraceMs = 0
	}
	want := &appv1.Schedule{Name: scheduleName, EveryMs: scheduleEvery}
	r.check(proto.Equal(got, want), rule, "Hello declares the schedule {%v}, want {%v}", declared[0], want)
}

func playFiring(r *router) {
	const rule = "firing"
	s := r.scheduleStream(rule)
	firings := []struct {
		missed, attempt int
		token           uint32
		turn            uint64
		kind            appv1.ResultKind
	}{
		{0, 1, 0, 1, kindDone},
		{7, 3, 1, 1<<53 + 1, kindDone},
		{missedFail, 1, 1, 1<<53 + 2, kindRetry},
		{missedReject, 2, 1, math.MaxUint64 - 1, kindReject},
	}
	for nth, one := range firings {
		t := firingOf(nth, one.missed, one.attempt)
		t.token, t.turn = one.token, one.turn
		id, result := s.fires(rule, t, one.kind)
		r.check(one.kind == kindDone || result.GetReason() != "", rule, "the answer of delivery %d has no reason", id)
	}
	stranger := firingOf(len(firings), 0, 1)
	stranger.key, stranger.timer.Name = undeclaredKey, undeclaredName
	id := s.give(stranger)
	result := s.want(rule, id, kindRetry)
	r.check(result.GetReason() != "", rule, "the answer of delivery %d has no reason, and its schedule is not declared", id)
	event := s.give(task{do: "done"})
	s.want(rule, event, kindDone)
	r.finished(rule, event)
	r.never(rule, id, "it is a firing, which the handler of events must not get")
	r.mu.Lock()
	ran := len(r.fired)
	r.mu.Unlock()
	r.check(ran == len(firings), rule, "the handler of the schedule ran %d times for %d firings of it", ran, len(firings))
}

func playFiringTimers(r *router) {
	const (
		rule  = "firing-timers"
		entry = 1 << 40
	)
	s := r.scheduleStream(rule)
	for run := range 2 { // of one event, as far as the ids of its timers tell
		t := firingOf(run, missedAfter, run+1)
		t.turn, t.entry = uint64(run+1), entry
		id, _ := s.fires(rule, t, kindDone)
		byName := map[string]*lanev1.SendRequest{}
		r.mu.Lock()
		sent := r.sends
		r.sends = nil
		r.mu.Unlock()
		for _, one := range sent {
			byName[one.request.GetName()] = one.request
		}
		r.check(len(sent) == timersSet, rule, "delivery %d was answered DONE after %d Sends, and its handler had set %d timers", id, len(sent), timersSet)
		for n, want := range []*lanev1.SendRequest{
			{Name: firstName, Payload: []byte(firstBytes), AfterMs: firingAfter},
			{Name: secondName, Payload: []byte(secondBytes)},
		} {
			want.Key, want.Id = []byte(scheduleKey), fmt.Sprintf("after/1:%d:-1:-1/%d", entry, n)
			got := byName[want.GetName()]
			r.check(string(got.GetKey()) == scheduleKey, rule, "the key of the timer %q of delivery %d is %q, want %q", want.GetName(), id, got.GetKey(), scheduleKey)
			r.check(got.GetId() == want.GetId(), rule, "the id of the timer %q of delivery %d is %q, want %q", want.GetName(), id, got.GetId(), want.GetId())
			r.check(bytes.Equal(got.GetPayload(), want.GetPayload()) && got.GetAfterMs() == want.GetAfterMs() && got.GetAtMs() == 0, rule,
				"the timer %q of delivery %d was sent as {%v}, want {%v}", want.GetName(), id, got, want)
		}
	}
}
