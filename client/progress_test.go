package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

// TestProgressOfOthers: of two handlers one tells of progress with each row of a long loop, the other one once in a
// third of handler.timeout. Neither times out.
func TestProgressOfOthers(t *testing.T) { synctest.Test(t, testProgressOfOthers) }

func testProgressOfOthers(t *testing.T) {
	const inFlight = 2
	const timeout = 600 * time.Millisecond
	r := clienttest.NewRouter(t, clienttest.WithHandlerTimeout(timeout))
	var reports int
	end := make(chan struct{})
	r.Start(func(ctx context.Context, e *client.Event) error {
		if e.Key == "rows" {
			for {
				if err := e.Progress(ctx); err != nil {
					return err
				}
				select {
				case <-end:
					return nil
				case <-time.After(time.Millisecond): // of the bubble, whose time would stand still
				}
			}
		}
		for range 12 {
			time.Sleep(timeout / 3)
			if err := e.Progress(ctx); err != nil {
				return err
			}
			reports++
		}
		return nil
	}, client.WithMaxInFlight(inFlight))
	rows := r.Deliver(&client.Event{Key: "rows"})
	seldom := r.Deliver(&client.Event{Key: "seldom"})
	got := seldom.Outcome()
	close(end)
	rows.Outcome()
	if got.Kind != clienttest.Done {
		t.Errorf("the handler that reports every %v, with a timeout of %v: %v after %d reports", timeout/3, timeout, got, reports)
	}
}

// TestProgressOfCalls: the handler of a call has the same timeout, and restarts it in the same way.
func TestProgressOfCalls(t *testing.T) { synctest.Test(t, testProgressOfCalls) }

func testProgressOfCalls(t *testing.T) {
	const timeout = 600 * time.Millisecond
	r := clienttest.NewRouter(t, clienttest.WithHandlerTimeout(timeout))
	r.Start(func(context.Context, *client.Event) error { return nil }, client.WithCall("do", func(ctx context.Context, c *client.Call) ([]byte, error) {
		for range 6 {
			time.Sleep(timeout / 3)
			if err := c.Progress(ctx); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}))
	if _, err := r.Lane().Invoke(t.Context(), "k", "do", nil, client.WithCallTimeout(time.Minute)); err != nil {
		t.Error(err)
	}
}
