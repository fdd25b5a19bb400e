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

func TestLedgerRefusesTheOldOwner(t *testing.T) {
	sums := newLedger()
	for _, step := range []struct {
		id    string
		token int64
		want  error
	}{
		{"1", 7, nil},
		{"2", 9, nil}, // the next owner
		{"3", 7, errStale},
		{"2", 9, nil}, // once more
	} {
		if err := sums.add("alice", step.id, step.token, 100); !errors.Is(err, step.want) {
			t.Errorf("order %s under token %d: %v, want %v", step.id, step.token, err, step.want)
		}
	}
	if _, orders, cents := sums.sum(); orders != 2 || cents != 200 {
		t.Errorf("%d orders over %d cents, want 2 over 200", orders, cents)
	}
}
