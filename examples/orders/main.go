// Command orders is an example application: it adds up the orders of each customer. If two
// orders of one customer were handled at once, both would read the old sum, and one order would
// be lost. Ringfence prevents this; the application is just a handler.
//
// An order looks like {"cents":500}, as step 5 of docs/quickstart.md publishes it. The events that `router dev` generates have no
// cents, so they become dead letters.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/ringfence/router/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(ctx, log); err != nil {
		log.Error("orders", "error", err)
		os.Exit(1)
	}
}

// run handles orders until ctx ends. The router beside it is found by the variable
// RINGFENCE_APP_ENDPOINT, or at its usual port.
func run(ctx context.Context, log *slog.Logger) error {
	sums := newLedger()
	ctx, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer stop()
	background.Go(func() { sums.report(ctx, log, 10*time.Second) })
	return client.Run(ctx, "", handler(sums), client.WithLogger(log))
}

// order is the payload of an event. The customer is its key.
type order struct {
	Cents int64 `json:"cents"`
}

// handler returns the function that the router calls for one order of a customer at
// a time.
func handler(sums *ledger) client.Handler {
	return client.JSON(func(_ context.Context, e *client.Event, o order) error {
		if o.Cents <= 0 {
			return client.Reject(fmt.Errorf("an order of %d cents", o.Cents)) // trying again would not help
		}
		err := sums.add(e.Key, e.ID.String(), e.Fence, o.Cents)
		if errors.Is(err, errStale) {
			return fmt.Errorf("customer is somebody else's by now: %w", err) // the event goes to the new owner
		}
		return err
	})
}
