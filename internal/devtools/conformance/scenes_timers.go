package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// The scenes of timers. A worker that says that its SDK has none is not judged by them.
var timerScenes = []scene{
	{rules: []string{"timers"}, play: playTimers},
	{rules: []string{"timers-ids"}, play: playTimersIDs},
	{rules: []string{"timers-failed"}, play: playTimersFailed},
	{rules: []string{"timers-unsent"}, play: playTimersUnsent},
	{rules: []string{"timers-unsent"}, play: playTimersLate},
	{rules: []string{"timer"}, play: playTimer},
}

// The instructions to set timers, and what they set.
const (
	setAfter     = "after"
	setAfterFail = "after_fail"

	timersSet   = 2
	firstName   = "first"
	firstAfter  = 4321 // milliseconds
	firstBytes  = "1"
	secondName  = "second"
	secondBytes = "2"
)

// sending is one Send of the worker.
type sending struct {
	request *lanev1.SendRequest
	token   string
}

// laneService is the half of the router that publishes.
type laneService struct {
	lanev1.UnimplementedLaneServiceServer

	r *router
}

// Send implements the service.
func (l *laneService) Send(ctx context.Context, request *lanev1.SendRequest) (*lanev1.SendResponse, error) {
	r := l.r
	s := &sending{request: request}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		s.token = strings.Join(md.Get("authorization"), ",")
	}
	code := codes.OK
	r.change(func() {
		if r.sendOf != nil {
			code = r.sendOf(len(r.sendsOf(string(request.GetKey()))))
		}
		r.sends = append(r.sends, s)
	})
	for {
		r.mu.Lock()
		changed, held := r.changed, r.sendHeld && !r.closed
		r.mu.Unlock()
		if !held {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	if code != codes.OK {
		return nil, status.Error(code, "the scene does not publish it")
	}
	return &lanev1.SendResponse{MessageId: "2305843009213693952:1:-1:-1", DueMs: 1}, nil
}

// sendsOf returns the Sends of a key. The lock is held.
func (r *router) sendsOf(key string) (found []*sending) {
	for _, s := range r.sends {
		if string(s.request.GetKey()) == key {
			found = append(found, s)
		}
	}
	return found
}

// sent returns the Sends that a delivery has caused so far.
func (r *router) sent(id uint64) []*sending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sendsOf(r.tasks[id].key)
}

// setsTimers waits until a handler that was to set timers has ended. If the SDK of the worker has none, it ends the scene.
func (r *router) setsTimers(rule string, id uint64) {
	r.finished(rule, id)
	r.change(func() {
		if r.cannot[id] && r.dead == "" {
			r.absent, r.dead = "the worker says that its SDK has no timers", rule
		}
	})
}

// timersOf returns the Sends of a delivery, by name. It checks that there are as many as its handler has set timers.
func (r *router) timersOf(rule string, id uint64) map[string]*lanev1.SendRequest {
	byName := map[string]*lanev1.SendRequest{}
	sent := r.sent(id)
	r.check(len(sent) == timersSet, rule, "delivery %d was answered DONE after %d Sends, and its handler had set %d timers", id, len(sent), timersSet)
	for _, s := range sent {
		byName[s.request.GetName()] = s.request
	}
	return byName
}

func playTimers(r *router) {
	const rule = "timers"
	s := r.stream(rule, 1)
	s.renew(long)
	tasks := []task{{do: setAfter, ms: firstAfter}}
	if slices.Contains(s.hello.GetCapabilities(), calls) {
		tasks = append(tasks, task{method: methodObey, do: setAfter, ms: firstAfter})
	}
	for _, t := range tasks {
		r.change(func() { r.sendHeld = true })
		id := s.give(t)
		r.setsTimers(rule, id)
		r.await(rule, fmt.Sprintf("Send of the timers of delivery %d", id), func() bool { return len(r.sendsOf(r.tasks[id].key)) > 0 })
		s.pinged(3)
		early := false
		r.change(func() { early, r.sendHeld = s.answers[id] != nil, false })
		r.check(!early, rule, "delivery %d was answered, and the Sends of its timers had no answer yet", id)
		s.want(rule, id, kindDone)
		timers := r.timersOf(rule, id)
		first, second := timers[firstName], timers[secondName]
		r.check(string(first.GetPayload()) == firstBytes && first.GetAfterMs() == firstAfter && first.GetAtMs() == 0, rule,
			"the timer %q of delivery %d was sent as {%v}, want after_ms %d and the payload %q", firstName, id, first, firstAfter, firstBytes)
		r.check(string(second.GetPayload()) == secondBytes && second.GetAfterMs() == 0 && second.GetAtMs() == 0, rule,
			"the timer %q of delivery %d was sent as {%v}, want one that is due at once, and the payload %q", secondName, id, second, secondBytes)
		for _, one := range r.sent(id) {
			r.check(one.token == s.token, rule, "the header authorization of a Send is %q, want %q, as of the stream", one.token, s.token)
		}
	}
	plain := s.give(task{do: "done"})
	s.want(rule, plain, kindDone)
	r.check(len(r.sent(plain)) == 0, rule, "the handler of delivery %d has set no timer, and one was sent", plain)
}

func playTimersIDs(r *router) {
	const rule = "timers-ids"
	s := r.stream(rule, 1)
	s.renew(long)
	const entry = 1 << 40
	var ids []uint64
	for _, key := range []string{"the-run", "the-next-run"} { // Sends are told apart by their keys; to the worker it is one event
		id := s.give(task{do: setAfter, ms: firstAfter, entry: entry, key: key})
		r.setsTimers(rule, id)
		s.want(rule, id, kindDone)
		ids = append(ids, id)
	}
	for _, id := range ids {
		timers := r.timersOf(rule, id)
		for n, name := range []string{firstName, secondName} {
			want := fmt.Sprintf("after/1:%d:-1:-1/%d", entry, n)
			r.check(timers[name].GetId() == want, rule, "the id of the timer %q of delivery %d is %q, want %q", name, id, timers[name].GetId(), want)
		}
	}
}

func playTimersFailed(r *router) {
	const rule = "timers-failed"
	s := r.stream(rule, 1)
	s.renew(long)
	id := s.give(task{do: setAfterFail, ms: firstAfter})
	r.setsTimers(rule, id)
	s.want(rule, id, kindRetry)
	s.pinged(2)
	r.check(len(r.sent(id)) == 0, rule, "the handler of delivery %d has failed, and its timers were sent", id)
}

func playTimersUnsent(r *router) {
	const rule = "timers-unsent"
	s := r.stream(rule, 1)
	s.renew(long)
	tasks := []task{{do: setAfter, ms: firstAfter}}
	if slices.Contains(s.hello.GetCapabilities(), calls) {
		tasks = append(tasks, task{method: methodObey, do: setAfter, ms: firstAfter})
	}
	for _, code := range []codes.Code{codes.FailedPrecondition, codes.Unavailable} {
		r.change(func() { r.sendOf = func(int) codes.Code { return code } })
		for _, t := range tasks {
			id := s.give(t)
			r.setsTimers(rule, id)
			result := s.want(rule, id, kindRetry)
			r.check(result.GetReason() != "", rule, "the answer of delivery %d has no reason", id)
			r.check(len(result.GetReply()) == 0, rule, "the answer of delivery %d has a reply, and its timers are not set", id)
		}
	}
	const refused = 5
	r.change(func() {
		r.sendOf = func(nth int) codes.Code {
			if nth < refused {
				return codes.ResourceExhausted
			}
			return codes.OK
		}
	})
	id := s.give(tasks[0])
	s.want(rule, id, kindDone)
	r.check(len(r.sent(id)) == refused+timersSet, rule, "%d Sends for delivery %d, of which %d were refused: want %d", len(r.sent(id)), id, refused, refused+timersSet)
}

// playTimersLate lets the lease end while the router does not answer a Send.
func playTimersLate(r *router) {
	const rule = "timers-unsent"
	s := r.stream(rule, 1)
	r.change(func() { r.sendHeld = true })
	id, _ := s.runBriefly(rule, task{do: setAfter, ms: firstAfter})
	r.setsTimers(rule, id)
	s.lost(rule, id)
}

func playTimer(r *router) {
	const rule = "timer"
	s := r.stream(rule, 1)
	s.renew(long)
	probe := s.give(task{do: setAfterFail})
	r.setsTimers(rule, probe) // without timers in its SDK there is nothing to see
	id := s.give(task{do: "done", timer: &appv1.Timer{Name: "remind-me", DueMs: 1_700_000_000_123}})
	s.want(rule, id, kindDone)
	r.finished(rule, id)
	plain := s.give(task{do: "done"})
	s.want(rule, plain, kindDone)
	r.finished(rule, plain)
	r.mu.Lock()
	got, other := r.timed[id], r.timed[plain]
	r.mu.Unlock()
	r.check(got == "1700000000123 remind-me", rule, "of its timer the handler of delivery %d has told %q, want %q", id, got, "1700000000123 remind-me")
	r.check(other == "", rule, "delivery %d is no timer, and its handler has told of one: %q", plain, other)
}
