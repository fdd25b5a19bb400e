package clienttest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

// callee starts a worker with a few handlers of calls, and returns a lane to it.
func callee(t *testing.T) (*clienttest.Router, *client.Lane, chan string) {
	t.Helper()
	r, events := clienttest.NewRouter(t), make(chan string, 10)
	var l *client.Lane
	r.Start(func(_ context.Context, e *client.Event) error {
		events <- string(e.Payload)
		return nil
	}, client.WithCall("echo", func(_ context.Context, c *client.Call) ([]byte, error) {
		return append([]byte(c.Key+": "), c.Payload...), nil
	}),
		client.WithCall("fail", func(context.Context, *client.Call) ([]byte, error) {
			return nil, client.FailCall("no_funds", errors.New("broke"))
		}),
		client.WithCall("wait", func(ctx context.Context, _ *client.Call) ([]byte, error) {
			events <- "begun"
			<-ctx.Done()
			events <- context.Cause(ctx).Error()
			return nil, ctx.Err()
		}),
		client.WithCall("again", func(ctx context.Context, c *client.Call) ([]byte, error) {
			return l.Invoke(ctx, string(c.Payload), "echo", nil)
		}))
	l = r.Lane()
	return r, l, events
}

func TestCalls(t *testing.T) { synctest.Test(t, testCalls) }

func testCalls(t *testing.T) {
	_, l, events := callee(t)
	reply, err := l.Invoke(t.Context(), "user-1", "echo", []byte("hello"), client.WithCallID("1"))
	if err != nil || string(reply) != "user-1: hello" {
		t.Errorf("%q, %v", reply, err)
	}
	if reply, err := l.Invoke(t.Context(), "user-1", "again", []byte("user-2")); err != nil || string(reply) != "user-2: " {
		t.Errorf("a call of another key: %q, %v", reply, err)
	}
	for name, test := range map[string]struct {
		method, payload string
		kind            error
		code            string
	}{
		"a failure":  {"fail", "", client.ErrCallFailed, "no_funds"},
		"no handler": {"nothing", "", client.ErrNotRun, client.CodeNoHandler},
		"a cycle":    {"again", "user-1", client.ErrCallFailed, ""},
		"no time":    {"wait", "", client.ErrUnknown, ""},
	} {
		_, err := l.Invoke(t.Context(), "user-1", test.method, []byte(test.payload), client.WithCallTimeout(100*time.Millisecond))
		var failure *client.CallError
		if !errors.As(err, &failure) || !errors.Is(err, test.kind) || failure.Code != test.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if begun, ended := <-events, <-events; begun != "begun" || ended != client.ErrCallerGone.Error() {
		t.Errorf("the handler whose caller is no longer waiting: %s, %s", begun, ended)
	}
}

// TestReservations: the events and calls of a reserved key wait for the release, and further reservations for their turn.
func TestReservations(t *testing.T) { synctest.Test(t, testReservations) }

func testReservations(t *testing.T) {
	r, l, events := callee(t)
	held, err := l.Reserve(t.Context(), "user-1")
	if err != nil {
		t.Fatal(err)
	}
	delivery := r.Deliver(&client.Event{Key: "user-1", Payload: []byte("behind it")})
	var failure *client.CallError
	if _, err := l.Reserve(t.Context(), "user-1"); !errors.As(err, &failure) || failure.Code != client.CodeTimeout {
		t.Errorf("a second one: %v", err)
	}
	if _, err := l.Invoke(t.Context(), "user-1", "echo", nil, client.WithCallTimeout(50*time.Millisecond)); !errors.Is(err, client.ErrNotRun) {
		t.Errorf("a call: %v", err)
	}
	if len(events) > 0 || held.Context().Err() != nil {
		t.Errorf("%d events were handled, and the reservation ended with %v", len(events), held.Context().Err())
	}
	held.Release()
	if got := delivery.Outcome(); got.Kind != clienttest.Done || <-events != "behind it" {
		t.Errorf("behind the reservation: %v", got)
	}
	next, err := l.Reserve(t.Context(), "user-1", client.WithWait(time.Second))
	if err != nil || !held.Fence().Before(next.Fence()) {
		t.Fatalf("after the release: %v, %v", next, err)
	}
	defer next.Release()
}

// TestReservationsAreLost: a holder learns that its key has moved, or that the lease is over, and comes back over a broken connection.
func TestReservationsAreLost(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(r *clienttest.Router)
		lost bool
	}{
		"moved":        {func(r *clienttest.Router) { r.Lose("user-1") }, true},
		"expired":      {(*clienttest.Router).Expire, true},
		"disconnected": {(*clienttest.Router).Disconnect, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, l, _ := callee(t)
				held, err := l.Reserve(t.Context(), "user-1")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				test.do(r)
				time.Sleep(2 * time.Second)
				if cause := context.Cause(held.Context()); errors.Is(cause, client.ErrKeyLost) != test.lost || (cause != nil) != test.lost {
					t.Errorf("the cause is %v", cause)
				}
				held.Release()
				next, err := l.Reserve(t.Context(), "user-1", client.WithWait(10*time.Second))
				if err != nil {
					t.Fatalf("the next one: %v", err)
				}
				next.Release()
			})
		})
	}
}

// TestCallsThatTakeTooLong: the cause in the handler is its timeout, and not that the caller has gone, who is told that the call may have run.
func TestCallsThatTakeTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, causes := clienttest.NewRouter(t, clienttest.WithHandlerTimeout(time.Second)), make(chan error, 1)
		r.Start(func(context.Context, *client.Event) error { return nil }, client.WithCall("wait", func(ctx context.Context, _ *client.Call) ([]byte, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		}))
		_, err := r.Lane().Invoke(t.Context(), "user-1", "wait", nil, client.WithCallTimeout(time.Minute))
		if cause := <-causes; !errors.Is(cause, client.ErrHandlerTimeout) || errors.Is(cause, client.ErrCallerGone) {
			t.Errorf("the cause is %v", cause)
		}
		var failure *client.CallError
		if !errors.As(err, &failure) || !errors.Is(err, client.ErrUnknown) || failure.Text != "the handler took longer than its timeout" {
			t.Errorf("the caller is told %v", err)
		}
	})
}
