package clienttest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOutcomes(t *testing.T) {
	tests := map[string]struct {
		handler client.Handler
		want    clienttest.Outcome
	}{
		"done": {
			handler: func(context.Context, *client.Event) error { return nil },
			want:    clienttest.Outcome{Kind: clienttest.Done},
		},
		"an error is a retry": {
			handler: func(context.Context, *client.Event) error { return errors.New("no database") },
			want:    clienttest.Outcome{Kind: clienttest.Retry, Reason: "no database"},
		},
		"a retry with its own delay": {
			handler: func(context.Context, *client.Event) error {
				return client.RetryAfter(errors.New("busy"), 90*time.Second)
			},
			want: clienttest.Outcome{Kind: clienttest.Retry, After: 90 * time.Second, Reason: "busy"},
		},
		"reject": {
			handler: func(context.Context, *client.Event) error { return client.Reject(errors.New("not JSON")) },
			want:    clienttest.Outcome{Kind: clienttest.Reject, Reason: "not JSON"},
		},
		"a panic is a retry": {
			handler: func(context.Context, *client.Event) error { panic("nil map") },
			want:    clienttest.Outcome{Kind: clienttest.Retry, Reason: "panic: nil map"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := clienttest.NewRouter(t)
			r.Start(test.handler)
			d := r.Deliver(&client.Event{Key: "k"})
			if got := d.Outcome(); got != test.want {
				t.Errorf("outcome = %v, want %v", got, test.want)
			}
			if got := d.Redeliver().Outcome(); got != test.want {
				t.Errorf("second outcome = %v, want %v", got, test.want)
			}
		})
	}
}

// Each delivery of a key has a greater fence than the one before: a retry, a delivery after
// the key was lost, and the next event. A fence that the test chooses is kept.
func TestFencesGrow(t *testing.T) {
	r := clienttest.NewRouter(t)
	seen := make(chan *client.Event, 1)
	r.Start(func(_ context.Context, e *client.Event) error {
		seen <- e
		return errors.New("again")
	})
	var before client.Fence
	after := func(what string, d *clienttest.Delivery) {
		t.Helper()
		d.Outcome()
		e := <-seen
		if !before.Before(e.Fence) || e.FencingToken != e.Fence.Token {
			t.Errorf("%s: fence %v and token %d after %v", what, e.Fence, e.FencingToken, before)
		}
		before = e.Fence
	}
	d := r.Deliver(&client.Event{Key: "k"})
	after("the first event", d)
	if before.Token == 0 || before.Turn == 0 {
		t.Errorf("the first fence is %v, want no 0 in it", before)
	}
	after("a retry", d.Redeliver())
	r.Lose("k")
	after("after the key was lost", d.Redeliver())
	after("the next event", r.Deliver(&client.Event{Key: "k"}))
	chosen := client.Fence{Token: 99, Turn: 7}
	d = r.Deliver(&client.Event{Key: "k", Fence: chosen})
	after("a fence of the test's", d)
	if before != chosen {
		t.Errorf("fence = %v, want the chosen %v", before, chosen)
	}
	after("a token of the test's", r.Deliver(&client.Event{Key: "k", FencingToken: 100}))
}

// refusing is a testing.TB that records its failure.
type refusing struct {
	testing.TB
	mu   sync.Mutex
	said string
}

func (r *refusing) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said += fmt.Sprintf(format, args...)
}

func (*refusing) FailNow() { runtime.Goexit() }

// Start must not wait for a stream that never comes.
func TestStartFailsWhenRunRefuses(t *testing.T) {
	failing := &refusing{TB: t}
	returned := false
	var starting sync.WaitGroup
	starting.Go(func() {
		r := clienttest.NewRouter(failing)
		r.Start(func(context.Context, *client.Event) error { return nil }, client.WithMaxInFlight(0))
		returned = true
	})
	starting.Wait()
	if returned || !strings.Contains(failing.said, "MaxInFlight") {
		t.Errorf("returned = %v, failed with %q; want the test to end with Run's error about MaxInFlight", returned, failing.said)
	}
}
