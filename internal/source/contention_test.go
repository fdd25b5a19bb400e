package source

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/testing/contention"
)

// BenchmarkContention takes events into the ledger and settles them, an entry at a time, on all cores. A router has one goroutine that takes
// events in; verdicts come from all goroutines that read streams of peers and workers.
func BenchmarkContention(b *testing.B) {
	b.Run("source ledger", func(b *testing.B) {
		cfg := DefaultConfig()
		cfg.Topics, cfg.Subscription = []string{"t"}, "s"
		s := newSource(cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), nil)
		contention.Run(b, func(worker int) func() {
			receipts, batch, done := make([]Receipt, contention.Batch), make([]Message, 0, contention.Batch), make([]event.Verdict, contention.Batch)
			for i := range receipts {
				receipts[i] = Receipt{
					Message: &Message{Event: &event.Event{Payload: make([]byte, 100)}}, Total: contention.Batch, Index: int32(i), Origin: int32(worker),
					Entry: EntryID{Ledger: int64(worker)},
				}
			}
			return func() {
				for i := range receipts {
					receipts[i].Entry.Entry++
				}
				batch = s.enter(receipts, batch[:0])
				for i := range batch {
					done[i] = event.Verdict{Handle: batch[i].Event.Handle, Kind: event.Done}
				}
				s.Settle(done)
				s.mu.Lock() // as the acker
				s.acks = s.acks[:0]
				s.mu.Unlock()
			}
		})
		if stats := s.ledger.Stats(); stats.Unsettled != 0 {
			b.Errorf("%d events are not settled", stats.Unsettled)
		}
	})
}
