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
	refused *prometheus.CounterVec
	seconds prometheus.Histogram
	sends   *prometheus.CounterVec
}

// The reasons why this node refuses its callers, as the metric names them: a limit is reached, or no call can be made of the request.
const (
	limitCalls        = "calls"
	limitBytes        = "bytes"
	limitReservations = "reservations"
	badRequest        = "request"
	leavingGroup      = "leaving"
)

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		calls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_calls_total",
			Help: "Calls that were made at this node, by outcome (replied, failed, not_run, unknown, done_before).",
		}, []string{"outcome"}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_calls_refused_total",
			Help: "Calls and reservations that this node has refused its callers, by reason (calls, bytes and reservations: a limit was reached; request: it breaks the rules; leaving: this node leaves its group).",
		}, []string{"reason"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "ringfence_call_seconds",
			Help:    "Time from a call to its answer, at the node where it was made.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
	}
	m.sends = f.NewCounterVec(prometheus.CounterOpts{
		Name: "ringfence_sends_total",
		Help: "Events of Send, timers included, that were requested at this node, by result: published, refused (not published, and the sender got the reason), unknown (the broker has not answered, or the sender has not waited).",
	}, []string{"result"})
	for _, result := range []string{sendPublished, sendRefused, sendUnknown} {
		m.sends.WithLabelValues(result)
	}
	for o := event.CallReplied; o <= event.CallDoneBefore; o++ {
		m.calls.WithLabelValues(o.String())
	}
	for _, reason := range []string{limitCalls, limitBytes, limitReservations, badRequest, leavingGroup} {
		m.refused.WithLabelValues(reason)
	}
	return m
}

// WatchWaiting registers the gauge of the calls that wait.
func (m *Metrics) WatchWaiting(reg prometheus.Registerer, l *Lane) {
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_calls_waiting",
		Help: "Calls that were made at this node and have no answer yet, and reservations of its callers that have not ended.",
	}, func() float64 { return float64(l.Stats().Calls) })
}

func (m *Metrics) answered(o event.CallOutcome, took time.Duration) {
	m.calls.WithLabelValues(o.String()).Inc()
	m.seconds.Observe(took.Seconds())
}
