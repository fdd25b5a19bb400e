package lane

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/base/event"
)

// Metrics are the counters of this package.
type Metrics struct {
	calls   *prometheus.CounterVec
	seconds prometheus.Histogram
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		calls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_calls_total",
			Help: "Calls that were made at this node, by outcome (replied, failed, not_run, unknown, done_before).",
		}, []string{"outcome"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "ringfence_call_seconds",
			Help:    "Time from a call to its answer, at the node where it was made.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
	}
	for o := event.CallReplied; o <= event.CallDoneBefore; o++ {
		m.calls.WithLabelValues(o.String())
	}
	return m
}

// WatchWaiting registers the gauge of the calls that wait.
func (m *Metrics) WatchWaiting(reg prometheus.Registerer, l *Lane) {
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_calls_waiting",
		Help: "Calls that were made at this node and have no answer yet.",
	}, func() float64 { return float64(l.Waiting()) })
}

func (m *Metrics) answered(o event.CallOutcome, took time.Duration) {
	m.calls.WithLabelValues(o.String()).Inc()
	m.seconds.Observe(took.Seconds())
}
