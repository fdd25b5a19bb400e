package controllog

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Metrics of a [Log].
type Metrics struct {
	appended      *prometheus.CounterVec
	appendSeconds prometheus.Histogram
	read          *prometheus.CounterVec
	bad           *prometheus.CounterVec
	readers       *prometheus.CounterVec
	checks        *prometheus.CounterVec
	anchors       *prometheus.CounterVec
	lines         *loglimit.Metrics
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	m := &Metrics{
		lines: loglimit.NewMetrics(reg),
		appended: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_controllog_appends_total",
			Help: "Records appended, by kind and result (ok, failed, refused: too many under way).",
		}, []string{"record", "result"}),
		appendSeconds: with.NewHistogram(prometheus.HistogramOpts{
			Name:    "ringfence_controllog_append_duration_seconds",
			Help:    "From an append to its acknowledgement or failure.",
			Buckets: []float64{.001, .002, .004, .008, .016, .032, .064, .125, .25, .5, 1, 2, 4}, // the alert's threshold is among the bounds
		}),
		read: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_controllog_records_total",
			Help: "Records read from the tail, by kind.",
		}, []string{"record"}),
		bad: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_controllog_bad_records_total",
			Help: "Records that could not be read and were skipped, by reason (version, group, malformed).",
		}, []string{"reason"}),
		readers: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_controllog_readers_total",
			Help: "Readers of the tail, by event (opened, failed).",
		}, []string{"event"}),
		checks: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_controllog_checks_total",
			Help: "Contiguity checks, by result (contiguous, torn, failed: no answer).",
		}, []string{"result"}),
		anchors: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_controllog_anchor_moves_total",
			Help: "Moves of the anchor subscription, by result (ok, failed).",
		}, []string{"result"}),
	}
	// An increase is only seen from a count that was there before it.
	m.checks.WithLabelValues("torn")
	for _, result := range []string{"failed", "refused"} {
		m.appended.WithLabelValues("beat", result)
	}
	for _, reason := range []string{"version", "group", "malformed"} {
		m.bad.WithLabelValues(reason)
	}
	return m
}
