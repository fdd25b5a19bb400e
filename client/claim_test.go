package client

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/client/internal/hook"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// fiveWaiting returns a stream of which five events wait, and its clock.
func fiveWaiting(t *testing.T, handler Handler) (*stream, *clock.Instant) {
	now := new(clock.Instant)
	ctx := hook.With(t.Context(), hook.Hooks{Now: func() clock.Instant { return *now }})
	r := newRunner(ctx, endpoint{}, handler, defaults())
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

// dealt returns a claim of five events, the first of which has ended.
func dealt(t *testing.T) (*stream, *claim, *clock.Instant) {
	s, now := fiveWaiting(t, func(context.Context, *Event) error { return nil })
	r := s.runner
	r.waking = true // as far as this goroutine knows, another one is on its way
	h := new(claim)
	if !r.next(h, false) || h.n != 5 || s.inbox.Started() != 5 {
		t.Fatalf("the claim has %d events, want all five", h.n)
	}
	r.call(h)
	return s, h, now
}

// answers lists the results that the inbox has, as id and kind.
func answers(s *stream) (out []string) {
	for _, result := range s.inbox.Results {
		out = append(out, fmt.Sprint(uint64(result.Delivery), " ", result.Kind))
	}
	return out
}

func check(t *testing.T, s *stream, started int, want ...string) {
	t.Helper()
	if got := answers(s); fmt.Sprint(got) != fmt.Sprint(want) || s.inbox.Started() != started || s.runner.running != started {
		t.Errorf("answers %v, %d started, %d running; want %v and %d", got, s.inbox.Started(), s.runner.running, want, started)
	}
}

// Nobody comes by but the goroutines of the pool.
func TestClaimIsTakenFromAHandlerThatBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s, _ := fiveWaiting(t, func(_ context.Context, e *Event) error {
			if e.run.item.ID%2 == 0 {
				<-release
			}
			return nil
		})
		r := s.runner
		r.mu.Lock()
		r.wakeOne()
		r.mu.Unlock()
		synctest.Wait()
		check(t, s, 2, "1 done", "3 done", "5 done")
		close(release)
		r.retire()
		r.handlers.Wait()
		if len(s.inbox.Results) != 5 || s.inbox.Started() != 0 {
			t.Errorf("answers %v, %d started; want five and none", answers(s), s.inbox.Started())
		}
	})
}

func TestClaimIsRecalled(t *testing.T) {
	s, h, _ := dealt(t)
	if !h.advance(&s.runner.hooks) {
		t.Fatal("the second event did not start")
	}
	s.runner.recall()
	check(t, s, 1, "1 done")
	s.runner.recall() // finds nothing
	check(t, s, 1, "1 done")
	s.runner.call(h)
	if h.advance(&s.runner.hooks) {
		t.Error("an event started that had been recalled")
	}
	if !s.runner.next(h, false) || h.n != 3 || h.events[0].run.item.ID != event.DeliveryID(3) {
		t.Errorf("the next claim has %d events and begins with %+v, want the three that were recalled", h.n, h.events[0])
	}
	check(t, s, 3, "1 done", "2 done")
}

// What the router says is for all that has not started, wherever it is.
func TestClaimObeysTheRouter(t *testing.T) {
	tests := map[string]struct {
		frame *appv1.WorkResponse
		want  []string
	}{
		"suspend": {&appv1.WorkResponse{Frame: &appv1.WorkResponse_Suspend{}}, nil},
		"revoke": {
			&appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: &appv1.Revoke{All: true}}},
			[]string{"2 not_started", "3 not_started", "4 not_started", "5 not_started"},
		},
		"revoke of one": {
			&appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: &appv1.Revoke{DeliveryIds: []uint64{4}}}},
			[]string{"4 not_started"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, h, now := dealt(t)
			if err := s.handle(&appwire.FromRouter{Other: test.frame}); err != nil {
				t.Fatal(err)
			}
			check(t, s, 1, test.want...)
			if h.advance(&s.runner.hooks) {
				t.Error("an event started")
			}
			s.runner.release(h)
			check(t, s, 0, append(test.want, "1 done")...)
			if e := s.inbox.Take(*now); name != "revoke of one" && e != nil {
				t.Errorf("event %d may start", e.run.item.ID)
			}
		})
	}
}

func TestClaimEnds(t *testing.T) {
	for name, later := range map[string]time.Duration{
		"at the deadline":        time.Minute,
		"when it takes too long": claimFor + 1,
	} {
		t.Run(name, func(t *testing.T) {
			s, h, now := dealt(t)
			*now = now.Add(later)
			if h.advance(&s.runner.hooks) {
				t.Error("another event started")
			}
			s.runner.release(h)
			check(t, s, 0, "1 done")
			if e := s.inbox.Take(0); e == nil || e.run.item.ID != 2 {
				t.Errorf("%v waits in front, want the second event", e)
			}
		})
	}
}
