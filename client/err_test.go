package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// A handler that asks Err after its deadline is told so, though no watch has looked: a
// process that has just thawed must not go on for another 50 ms because of that.
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
			pass = func() { *now = now.Add(time.Minute) }
			h := claimed(s)
			if h.n == 0 {
				t.Fatal("nothing starts")
			}
			s.runner.call(h)
			if before != (seen{}) {
				t.Errorf("before its deadline the handler saw %v", before)
			}
			if !errors.Is(after.err, context.Canceled) || !errors.Is(after.cause, ErrKeyLost) || !after.done {
				t.Errorf("after its deadline the handler saw %v; want it cut, as its key is lost", after)
			}
			if got := h.results[0].Kind.String(); got != "cancelled" {
				t.Errorf("its result is %v, want cancelled", got)
			}
		})
	}
}

// Err takes the lock only near a deadline: a Pong moves the instant up to which it need not.
func TestErrIsCheapFarFromTheDeadline(t *testing.T) {
	var s *stream
	var now *clock.Instant
	s, now = fiveWaiting(t, func(ctx context.Context, _ *Event) error {
		s.runner.mu.Lock() // whoever wanted it now would hang
		defer s.runner.mu.Unlock()
		return ctx.Err()
	})
	pong(s, *now, time.Minute)
	*now = now.Add(time.Minute - 1)
	h := claimed(s)
	if h.n == 0 {
		t.Fatal("nothing starts")
	}
	s.runner.call(h)
	if got := h.results[0].Kind.String(); got != "done" {
		t.Errorf("its result is %v, want done", got)
	}
}

// What was revoked has a deadline of its own, which later Pongs do not move.
func TestErrKnowsTheDeadlineOfWhatWasRevoked(t *testing.T) {
	var s *stream
	var now *clock.Instant
	s, now = fiveWaiting(t, func(ctx context.Context, _ *Event) error {
		revokeAll(s)
		pong(s, *now, time.Hour)
		*now = now.Add(time.Minute)
		return ctx.Err()
	})
	pong(s, *now, time.Minute)
	h := claimed(s)
	if h.n == 0 {
		t.Fatal("nothing starts")
	}
	s.runner.call(h)
	if got := h.results[0].Kind.String(); got != "cancelled" {
		t.Errorf("its result is %v, want cancelled", got)
	}
}

// pong lets the router say how long the stream's handlers may go on.
func pong(s *stream, now clock.Instant, remaining time.Duration) {
	s.runner.mu.Lock()
	defer s.runner.mu.Unlock()
	k := s.inbox.SendPing(now)
	_, _, _ = s.control(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Pong{Pong: &appv1.Pong{K: k, RemainingNs: remaining.Nanoseconds()}}})
}

// revokeAll lets the router take everything back.
func revokeAll(s *stream) {
	s.runner.mu.Lock()
	defer s.runner.mu.Unlock()
	s.runner.recall()
	_, _, _ = s.control(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: &appv1.Revoke{All: true}}})
}

// claimed returns a claim with all events of the stream. No other goroutine starts them.
func claimed(s *stream) *claim {
	s.runner.waking = true // as far as this goroutine knows, another one is on its way
	h := new(claim)
	s.runner.next(h, false)
	return h
}
