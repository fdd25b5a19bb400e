package source

import (
	"context"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// publishGauges is a goroutine that updates the gauges once a second.
func (s *Source) publishGauges(ctx context.Context) {
	heavy := false
	s.gauges()
	every(ctx, time.Second, func() (again bool) {
		s.gauges()
		if mean, is := s.heavier(); is && !heavy {
			heavy = true // said once, and not every second
			s.log.Warn("events are larger than the memory bound assumes", "bytes_mean", mean, "event_bytes_typical", s.cfg.EventBytesTypical)
		}
		return true
	})
}

// heavier returns the mean weight of fresh events since the last call, and whether it
// exceeds EventBytesTypical. It waits for enough events.
func (s *Source) heavier() (mean int, is bool) {
	const enough = 100
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fresh.events < enough {
		return 0, false
	}
	mean = s.fresh.bytes / s.fresh.events
	s.fresh.events, s.fresh.bytes = 0, 0
	return mean, mean > s.cfg.EventBytesTypical
}

func (s *Source) gauges() {
	s.mu.Lock()
	stats, mostUnacked, allowance := s.ledger.Stats(), s.ledger.MostUnacked(), s.cfg.allowance(s.members)
	s.mu.Unlock()
	age := time.Duration(0)
	if now := clock.Now(); stats.Oldest.Before(now) {
		age = now.Sub(stats.Oldest)
	}
	s.metrics.unsettled.Set(float64(stats.Unsettled))
	s.metrics.unsettledBytes.Set(float64(stats.Bytes))
	s.metrics.openEntries.Set(float64(stats.Entries))
	s.metrics.pinnedEntries.Set(float64(stats.PinnedEntries))
	s.metrics.pinnedEvents.Set(float64(stats.Pinned))
	s.metrics.spilling.Set(float64(stats.Spilling))
	s.metrics.allowance.Set(float64(stats.Allowance))
	s.metrics.allowanceRatio.Set(float64(mostUnacked) / float64(max(1, allowance)))
	s.metrics.oldest.Set(age.Seconds())
}
