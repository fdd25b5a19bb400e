package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// Err reports a passed deadline before the watch does: a handler in a process that has just
// thawed must not continue for another 50 ms.
func TestErrAsksTheClock(t *testing.T) {
	type seen struct {
		err, cause error
		done       bool
	}
	for name, looks := range map[string]bool{"nobody has looked at the context": false, "a standard context stands behind it": true} {
		t.Run(name, func(t *testing.T) {
			var before, after seen
			var pass func()
			look := func(ctx context.Context) (saw seen) {
				saw.err = ctx.Err()
				if looks || saw.err != nil {
					select {
					case <-ctx.Done():
						saw.done = true
					default:
					}
					saw.cause = context.Cause(ctx)
				}
				return saw
			}
			s, now := fiveWaiting(t, func(ctx context.Context, _ *Event) error {
				before = look(ctx)
				pass()
				after = look(ctx)
				return ctx.Err()
			})
			pass = func() { now.pass(time.Minute) }
			e := take(s)
			if e == nil {
				t.Fatal("nothing starts")
			}
			var result event.Result
			s.runner.call(e, &result)
			if before != (seen{}) {
				t.Errorf("before its deadline the handler saw %v", before)
			}
			if !errors.Is(after.err, context.Canceled) || !errors.Is(after.cause, ErrKeyLost) || !after.done {
				t.Errorf("after its deadline the handler saw %v; want ErrKeyLost", after)
			}
			if got := result.Kind.String(); got != "cancelled" {
				t.Errorf("its result is %v, want cancelled", got)
			}
		})
	}
}

// Err takes the lock only near a deadline; a Pong postpones that instant.
func TestErrIsCheapFarFromTheDeadline(t *testing.T) {
	var s *stream
	var now *testClock
	s, now = fiveWaiting(t, func(ctx context.Context, _ *Event) error {
		s.runner.mu.Lock() // Err would hang if it took the lock
		defer s.runner.mu.Unlock()
		return ctx.Err()
	})
	pong(s, now.now, time.Minute)
	now.pass(time.Minute - 1)
	e := take(s)
	if e == nil {
		t.Fatal("nothing starts")
	}
	var result event.Result
	s.runner.call(e, &result)
	if got := result.Kind.String(); got != "done" {
		t.Errorf("its result is %v, want done", got)
	}
}

// A revoked delivery has a deadline of its own, which later Pongs do not extend.
func TestErrKnowsTheDeadlineOfARevokedDelivery(t *testing.T) {
	var s *stream
	var now *testClock
	s, now = fiveWaiting(t, func(ctx context.Context, _ *Event) error {
		revokeAll(s)
		pong(s, now.now, time.Hour)
		now.pass(time.Minute)
		return ctx.Err()
	})
	pong(s, now.now, time.Minute)
	e := take(s)
	if e == nil {
		t.Fatal("nothing starts")
	}
	var result event.Result
	s.runner.call(e, &result)
	if got := result.Kind.String(); got != "cancelled" {
		t.Errorf("its result is %v, want cancelled", got)
	}
}

// pong makes the router extend the deadlines of the stream's handlers.
func pong(s *stream, now clock.Instant, remaining time.Duration) {
	s.runner.mu.Lock()
	defer s.runner.mu.Unlock()
	k := s.inbox.SendPing(now)
	_, _, _ = s.control(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Pong{Pong: &appv1.Pong{K: k, RemainingNs: remaining.Nanoseconds()}}})
}

// revokeAll makes the router take back all partitions.
func revokeAll(s *stream) {
	control(s, &appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: &appv1.Revoke{All: true}}})
}

// control makes the router send a frame.
func control(s *stream, frame *appv1.WorkResponse) {
	s.runner.mu.Lock()
	defer s.runner.mu.Unlock()
	_, _, _ = s.control(frame)
}

// While the router suspends the worker, nothing starts, though its deadline lies ahead.
func TestSuspendedWorkerStartsNothing(t *testing.T) {
	s, _ := fiveWaiting(t, func(context.Context, *Event) error { return nil })
	control(s, &appv1.WorkResponse{Frame: &appv1.WorkResponse_Suspend{Suspend: &appv1.Suspend{}}})
	if take(s) != nil {
		t.Error("an event started on a suspended worker")
	}
	control(s, &appv1.WorkResponse{Frame: &appv1.WorkResponse_Resume{Resume: &appv1.Resume{}}})
	if take(s) == nil {
		t.Error("nothing starts after the Resume")
	}
}

// A goroutine that has waited for work reads the clock again before it starts any: the deadline may have passed meanwhile.
func TestNothingStartsAfterAWaitAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, now := fiveWaiting(t, func(context.Context, *Event) error { return nil })
		r := s.runner
		r.mu.Lock()
		s.inbox.Suspend()
		r.mu.Unlock()
		started := make(chan *Event)
		go func() {
			e, _ := r.next(nil, nil, 0)
			started <- e
		}()
		synctest.Wait() // it is parked
		r.mu.Lock()
		r.maxInFlight = 0 // no other goroutine starts
		now.pass(time.Minute)
		s.inbox.Resume()
		r.wakeOne()
		r.mu.Unlock()
		synctest.Wait()
		r.retire()
		if e := <-started; e != nil {
			t.Errorf("event %d started at its deadline", e.run.item.ID)
		}
	})
}

// deaf is a stream to a router that takes every frame.
type deaf struct {
	grpc.BidiStreamingClient[appv1.WorkRequest, appv1.WorkResponse]
}

func (deaf) SendMsg(any) error { return nil }

// A worker that drains starts none of the deliveries that wait, nor those that come later: it gives them back.
func TestDrainingWorkerStartsNothing(t *testing.T) {
	s, _ := fiveWaiting(t, func(context.Context, *Event) error { return nil })
	s.wire = deaf{}
	if err := s.drain(); err != nil {
		t.Fatal(err)
	}
	late := new(Event)
	s.fill(late, &appwire.Delivery{ID: 6})
	s.inbox.Give(&late.run.item)
	if take(s) != nil {
		t.Error("an event started on a worker that drains")
	}
	if n := len(s.inbox.Results); n != 6 {
		t.Errorf("%d events are given back, want 6", n)
	}
	for _, r := range s.inbox.Results {
		if r.Kind != event.ResultNotStarted {
			t.Errorf("event %d is given back as %v", r.Delivery, r.Kind)
		}
	}
}

// take returns the next event to start, nil if there is none. No other goroutine starts one.
func take(s *stream) *Event {
	s.runner.maxInFlight = 0
	s.runner.retire()
	e, _ := s.runner.next(nil, nil, 0)
	return e
}

// fiveWaiting returns a stream with five waiting events, and its clock.
func fiveWaiting(t *testing.T, handler Handler) (*stream, *testClock) {
	now := new(testClock)
	o := defaults()
	WithLeaseClock(now)(&o)
	r := newRunner(t.Context(), endpoint{}, handler, o)
	t.Cleanup(func() { r.startGrace(); r.endGrace() })
	s := &stream{runner: r, wake: make(chan struct{}, 1)}
	r.begin(s)
	s.inbox.Pong(0, s.inbox.SendPing(0), time.Minute, nil, nil)
	for id := range uint64(5) {
		e := new(Event)
		s.fill(e, &appwire.Delivery{ID: 1 + id})
		s.inbox.Give(&e.run.item)
	}
	return s, now
}

// testClock is a clock that a test sets.
type testClock struct{ now clock.Instant }

func (c *testClock) Now() clock.Instant   { return c.now }
func (*testClock) Renewed(clock.Instant)  {}
func (*testClock) Ended()                 {}
func (c *testClock) pass(d time.Duration) { c.now = c.now.Add(d) }
