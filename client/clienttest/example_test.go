package clienttest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

// A test of a handler: its outcome for an event, and its behaviour when the key is lost.
func ExampleRouter() {
	_ = func(t *testing.T) { // func TestHandler(t *testing.T)
		r := clienttest.NewRouter(t)
		started := make(chan struct{})
		r.Start(func(ctx context.Context, e *client.Event) error {
			if len(e.Payload) == 0 {
				return client.Reject(errors.New("empty"))
			}
			close(started)
			<-ctx.Done()
			return context.Cause(ctx)
		})

		if got := r.Deliver(&client.Event{Key: "user-1"}).Outcome(); got.Kind != clienttest.Reject {
			t.Errorf("an empty event: %v, want reject", got)
		}
		d := r.Deliver(&client.Event{Key: "user-2", Payload: []byte("long work")})
		<-started
		r.Lose("user-2")
		if got := d.Outcome(); got.Kind != clienttest.Cancelled {
			t.Errorf("a lost key: %v, want cancelled", got)
		}
	}
}

func TestWaitingEventsOfALostKeyAreNotStarted(t *testing.T) {
	r := clienttest.NewRouter(t)
	waits := r.Deliver(&client.Event{Key: "k"}) // there is no worker yet
	r.Lose("k")
	if got := waits.Outcome(); got.Kind != clienttest.NotStarted {
		t.Errorf("outcome = %v, want not started", got)
	}
	r.Start(func(_ context.Context, e *client.Event) error {
		if e.FencingToken != 2 || e.Attempt != 1 {
			return errors.New("want the second token and the first attempt")
		}
		return nil
	})
	if got := waits.Redeliver().Outcome(); got.Kind != clienttest.Done {
		t.Errorf("outcome = %v, want done", got)
	}
}
