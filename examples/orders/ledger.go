package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/client"
)

// ledger stands for your database. It shows the two checks that make every write safe: a fence
// refuses a handler that has lost the customer, and the id of the event makes a repetition
// harmless.
type ledger struct {
	mu        sync.Mutex
	customers map[string]*account
	orders    int
}

type account struct {
	fence client.Fence // of the last write: handlers of earlier deliveries are refused
	last  map[string]bool
	cents int64
}

// errStale refuses a write with an older fence than that of an earlier write.
var errStale = errors.New("the fence is stale: a later delivery of this customer has written")

// ordersRemembered bounds the ids that an account keeps; a database would have an
// index on them.
const ordersRemembered = 1000

func newLedger() *ledger { return &ledger{customers: map[string]*account{}} }

// add books an order, once.
func (l *ledger) add(customer, id string, fence client.Fence, cents int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.customers[customer]
	if a == nil {
		a = &account{last: map[string]bool{}}
		l.customers[strings.Clone(customer)] = a // the event's strings share memory with others
	}
	switch {
	case fence.Before(a.fence):
		return errStale
	case a.last[id]:
		return nil
	case len(a.last) >= ordersRemembered:
		clear(a.last)
	}
	a.fence = fence
	a.last[id] = true
	a.cents += cents
	l.orders++
	return nil
}

// sum returns the orders of all customers of this process.
func (l *ledger) sum() (customers, orders int, cents int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.customers {
		cents += a.cents
	}
	return len(l.customers), l.orders, cents
}

// report logs the sum now and then, until ctx ends.
func (l *ledger) report(ctx context.Context, log *slog.Logger, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			customers, orders, cents := l.sum()
			log.Info("orders booked", "customers", customers, "orders", orders, "cents", cents)
		}
	}
}
