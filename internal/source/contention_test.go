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
			messages := make([]event.Message, contention.Batch)
			for i := range messages {
				messages[i].Event = &event.Event{Payload: make([]byte, 100)}
			}
			receipts := []Receipt{{ID: EntryID{Ledger: int64(worker)}, Has: event.AllBits(contention.Batch), Origin: int32(worker)}}
			batch, done := make([]*event.Entry, 0, 1), make([]event.Set, 0, 1)
			return func() {
				receipts[0].ID.Entry++
				receipts[0].Entry = event.NewEntry(messages...)
				batch, done = s.enter(receipts, batch[:0]), done[:0]
				for _, e := range batch {
					done = append(done, event.Set{First: e.First, Events: e.Fresh})
				}
				s.Settle(done, nil)
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
