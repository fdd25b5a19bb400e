package node

import (
	"context"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/base/clock"
)

const (
	// steeringEvery is the interval at which the rate of the system clock is measured.
	steeringEvery = 10 * time.Second

	// SteeringMax is the deviation of the system clock's rate from the hardware counter's, as a
	// fraction, beyond which the log and the alert report it. It is the clock drift that the
	// ownership protocol allows: beyond it a lease on the system clock would not be safe, and a
	// counter that NTP must correct by so much permanently is not safe either.
	SteeringMax = 0.01
)

// steering measures the difference between the rates of the NTP-steered system clock and the
// hardware counter. Leases do not run on the system clock where the counter can be read; the
// measurement is the second line of defense, and reveals a wrong counter.
type steering struct {
	ratio atomic.Uint64 // the bits of a float64
	last  clock.Reading
	off   bool // the log has said that the rate is off
}

func newSteering(reg prometheus.Registerer, now clock.Reading) *steering {
	s := &steering{last: now}
	f := promauto.With(reg)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_clock_rate_error_ratio",
		Help: "Rate of the system clock relative to the hardware counter, less 1, in the last 10 s, as NTP steers it; negative: slower.",
	}, s.value)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_clock_slewable",
		Help: "1 if NTP can change the rate of the clock that leases run on, because this system has no other.",
	}, func() float64 {
		if clock.Slewable() {
			return 1
		}
		return 0
	})
	return s
}

func (s *steering) value() float64 { return math.Float64frombits(s.ratio.Load()) }

// look takes a reading, and reports whether the rate has got off or back since the one before.
func (s *steering) look(now clock.Reading) (changed bool) {
	ratio, ok := clock.Steering(s.last, now)
	if !ok {
		return false
	}
	s.last = now
	s.ratio.Store(math.Float64bits(ratio))
	off := math.Abs(ratio) > SteeringMax
	changed, s.off = off != s.off, off
	return changed
}

// watch looks until ctx ends.
func (s *steering) watch(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(steeringEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		switch changed := s.look(clock.Careful()); {
		case changed && s.off:
			log.Warn("the system clock is slewed", "ratio", s.value(), "leases_follow", clock.Slewable())
		case changed:
			log.Info("the system clock is no longer slewed", "ratio", s.value())
		}
	}
}
