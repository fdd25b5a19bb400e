package clienttest_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

// TestState: a state is kept while one worker has all turns of the key, as at a router.
func TestState(t *testing.T) { synctest.Test(t, testState) }

func testState(t *testing.T) {
	type cart struct{}
	var loads atomic.Int64
	r := clienttest.NewRouter(t)
	r.Start(func(ctx context.Context, _ *client.Event) error {
		_, err := client.State(ctx, func(context.Context) (*cart, error) { loads.Add(1); return new(cart), nil })
		return err
	})
	for _, c := range []struct {
		after string
		do    func()
		loads bool
	}{
		{"the start", func() {}, true},
		{"a turn", func() {}, false},
		{"a turn of another key", func() { r.Deliver(&client.Event{Key: "other"}).Outcome() }, false},
		{"the key has moved", func() { r.Lose("k") }, true},
		{"a turn", func() {}, false},
		{"the lease has run out", r.Expire, true},
		{"a turn", func() {}, false},
		{"the stream has broken", r.Disconnect, true},
		{"a turn", func() {}, false},
		{"a reservation", func() {
			held, err := r.Lane().Reserve(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			held.Release()
		}, true},
		{"a turn", func() {}, false},
	} {
		c.do()
		synctest.Wait() // the router has noticed
		before := loads.Load()
		if o := r.Deliver(&client.Event{Key: "k"}).Outcome(); o.Kind != clienttest.Done {
			t.Fatalf("after %s: %v", c.after, o)
		}
		if got := loads.Load() > before; got != c.loads {
			t.Errorf("after %s: the handler loads its state: %t, want %t", c.after, got, c.loads)
		}
	}
}
