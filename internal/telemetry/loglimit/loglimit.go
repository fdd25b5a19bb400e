// Package loglimit bounds the rate of log lines that outsiders can cause.
//
// A [Limit] lets one line through in each interval. It counts the lines that it holds
// back in ringfence_log_suppressed_total{source}, and the next line that it lets
// through carries their number as the attribute suppressed.
//
//	if log, due := limit.Line(); due {
//		log.Info("rejected", "error", err)
//	}
//
// # Concurrency
//
// Everything is safe for concurrent use. A Limit holds a mutex for a few
// instructions, and reads the lease clock once for each line.
package loglimit

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
)

// Metrics of all limits that share a registry.
type Metrics struct{ suppressed *prometheus.CounterVec }

// NewMetrics registers the metrics. Each package that limits lines calls it with the registry
// of the process: after the first call it returns the registered ones.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	suppressed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ringfence_log_suppressed_total",
		Help: "Log lines that a rate limit held back, by source.",
	}, []string{"source"})
	if err := reg.Register(suppressed); err != nil {
		var registered prometheus.AlreadyRegisteredError
		if !errors.As(err, &registered) {
			panic(err) //nolint:forbidigo // another metric has the name: a mistake in the program, as for promauto
		}
		suppressed = registered.ExistingCollector.(*prometheus.CounterVec)
	}
	return &Metrics{suppressed: suppressed}
}

// Limit lets one line of a kind through in each interval.
type Limit struct {
	log        *slog.Logger
	every      time.Duration
	burst      int
	suppressed prometheus.Counter

	mu   sync.Mutex
	gate gate
}

// New returns a limit for the lines of one kind, which go to log. source is a constant
// of the program that names the kind in the metric.
func New(log *slog.Logger, source string, every time.Duration, metrics *Metrics) *Limit {
	return NewBurst(log, source, every, 1, metrics)
}

// NewBurst is New for lines that come a few at once, as when several members start: burst
// of them pass, and then one in each interval.
func NewBurst(log *slog.Logger, source string, every time.Duration, burst int, metrics *Metrics) *Limit {
	return &Limit{log: log, every: every, burst: burst, suppressed: metrics.suppressed.WithLabelValues(source)}
}

// Line reports whether a line may be written now, and returns the logger for it. The interval
// is used up even if the caller writes no line.
func (l *Limit) Line() (log *slog.Logger, due bool) {
	l.mu.Lock()
	held, due := l.gate.pass(clock.Now(), l.every, l.burst)
	l.mu.Unlock()
	switch {
	case !due:
		l.suppressed.Inc()
		return nil, false
	case held > 0:
		return l.log.With("suppressed", held), true
	}
	return l.log, true
}

// gate is the pure part of a Limit.
type gate struct {
	began bool
	paid  clock.Instant // until when the lines that passed have used up their intervals
	held  uint64        // lines held back since the last one that passed
}

// pass reports whether a line passes at now, and how many were held back since the last.
func (g *gate) pass(now clock.Instant, every time.Duration, burst int) (held uint64, due bool) {
	if g.began && g.paid.Sub(now) > time.Duration(burst-1)*every {
		g.held++
		return 0, false
	}
	paid := now
	if g.began {
		paid = max(paid, g.paid)
	}
	held = g.held
	*g = gate{began: true, paid: paid.Add(every)}
	return held, true
}
