package main

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

func TestHandler(t *testing.T) {
	sums := newLedger()
	router := clienttest.NewRouter(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := router.Run(ctx, handler(sums)); err != nil {
			t.Error(err)
		}
	})
	var sent int64
	deliver := func(customer, payload string) *clienttest.Delivery {
		sent++
		return router.Deliver(&client.Event{ID: client.MessageID{Entry: sent}, Key: customer, Payload: []byte(payload)})
	}

	first := deliver("alice", `{"cents": 500}`)
	deliver("alice", `{"cents": 250}`).Outcome()
	deliver("bob", `{"cents": 1}`).Outcome()
	if got := first.Outcome(); got.Kind != clienttest.Done {
		t.Errorf("an order: %v, want it done", got)
	}
	if got := first.Redeliver().Outcome(); got.Kind != clienttest.Done {
		t.Errorf("the same order again: %v, want it done", got)
	}
	for name, payload := range map[string]string{"no JSON": "gibberish", "nothing ordered": `{"cents": 0}`} {
		if got := deliver("carol", payload).Outcome(); got.Kind != clienttest.Reject {
			t.Errorf("%s: %v, want a reject", name, got)
		}
	}
	if customers, orders, cents := sums.sum(); customers != 2 || orders != 3 || cents != 751 {
		t.Errorf("%d orders of %d customers over %d cents, want 3 of 2 over 751", orders, customers, cents)
	}
	stop()
	running.Wait()
}

func TestLedgerRefusesAnEarlierDelivery(t *testing.T) {
	sums := newLedger()
	for _, step := range []struct {
		id    string
		fence client.Fence
		want  error
	}{
		{"1", client.Fence{Token: 7, Turn: 1}, nil},
		{"2", client.Fence{Token: 7, Turn: 3}, nil}, // the next worker beside the same router
		{"3", client.Fence{Token: 7, Turn: 1}, errStale},
		{"3", client.Fence{Token: 9, Turn: 2}, nil}, // the next owner
		{"4", client.Fence{Token: 7, Turn: 4}, errStale},
		{"3", client.Fence{Token: 9, Turn: 2}, nil}, // once more
	} {
		if err := sums.add("alice", step.id, step.fence, 100); !errors.Is(err, step.want) {
			t.Errorf("order %s with fence %v: %v, want %v", step.id, step.fence, err, step.want)
		}
	}
	if _, orders, cents := sums.sum(); orders != 3 || cents != 300 {
		t.Errorf("%d orders over %d cents, want 3 over 300", orders, cents)
	}
}
