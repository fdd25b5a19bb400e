package pipeline

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// wakes notes when workers were woken.
type wakes struct {
	Workers
	now func() clock.Instant
	mu  sync.Mutex
	at  []clock.Instant
}

func (w *wakes) Wake(...event.WorkerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = append(w.at, w.now())
}

// taken returns the instants recorded since the last call.
func (w *wakes) taken() []clock.Instant {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.at
	w.at = nil
	return at
}

// A retry starts when it is due, without another call that would notice it.
func TestRetriesWakeWhoSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var asked atomic.Int64
		now := func() clock.Instant { return clock.Instant(time.Hour).Add(time.Since(begin)) }
		boxes := mailbox.NewMailboxes(mailbox.DefaultConfig(), outcome.DefaultConfig(), "here", now)
		woken := &wakes{now: now}
		p := newPipeline(t, Parts{Now: func() clock.Instant { asked.Add(1); return now() }}, Stages{Boxes: boxes, Peers: deaf{}, App: woken})
		e := &event.Event{Handle: 1, Key: "ann", Partition: ring.PartitionOf("ann"), ID: event.MessageID{Ledger: 7, Batch: -1}}
		p.with(func(out *mailbox.Output) {
			boxes.WorkerUp(1, out)
			boxes.SetGates([]ownership.GateChange{{Partition: e.Partition, Gate: ownership.Open, Token: 1}}, event.Position{}, out)
		})

		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(time.Minute)
		if got, most := asked.Load(), int64(10*60); got > most {
			t.Errorf("the clock was read %d times in an idle minute, want at most %d", got, most)
		}
		p.accept(3, event.Position{}, event.RefsTo(e))
		time.Sleep(time.Millisecond) // it has looked when the next work is due
		lease := ownership.Lease{Until: clock.Forever - 1}
		given := boxes.Take(lease, 1, 1, nil)
		if len(given) != 1 {
			t.Fatalf("%d deliveries, want 1", len(given))
		}
		woken.taken()
		p.Finish([]event.Result{{Delivery: given[0].ID, Kind: event.ResultRetry, After: 40 * time.Millisecond}})
		due := now().Add(40 * time.Millisecond)
		time.Sleep(time.Second)
		if at := woken.taken(); len(at) != 1 || at[0].Before(due) || at[0].Sub(due) > 10*time.Millisecond {
			t.Errorf("the worker was woken at %v, want once, at %v or up to 10 ms later", at, due)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
