package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/ringfence/router/client"
)

// store stands for a database that refuses a write with an old fence.
var store interface {
	Add(ctx context.Context, key string, fence client.Fence, amount int) error
}

var errLocked = errors.New("row is locked")

func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	handler := func(ctx context.Context, e *client.Event) error {
		var order struct{ Amount int }
		if err := json.Unmarshal(e.Payload, &order); err != nil {
			return client.Reject("not an order: " + err.Error())
		}
		err := store.Add(ctx, e.Key, e.Fence, order.Amount)
		if errors.Is(err, errLocked) {
			return client.RetryAfter(err, time.Second)
		}
		return err
	}
	if err := client.Run(ctx, "127.0.0.1:16650", handler, client.MaxInFlight(100)); err != nil {
		fmt.Println(err)
	}
}

func ExampleRetryAfter() {
	err := client.RetryAfter(errors.New("rate limited"), 30*time.Second)
	fmt.Println(err)
	// Output: rate limited
}

func ExampleEvent_LeaseUntil() {
	// Long work in steps: stop between two of them when the key is lost.
	_ = func(ctx context.Context, e *client.Event) error {
		for step := range 100 {
			if err := e.Progress(ctx); err != nil {
				return fmt.Errorf("before step %d: %w", step, err)
			}
			fmt.Println("may go on until", e.LeaseUntil())
		}
		return nil
	}
}
