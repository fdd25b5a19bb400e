package client

import (
	"context"
	"errors"
	"testing"
	"time"

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
	s.runner.mu.Lock()
	defer s.runner.mu.Unlock()
	_, _, _ = s.control(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: &appv1.Revoke{All: true}}})
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
