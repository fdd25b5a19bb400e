package app

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/codes"

	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Metrics are the counters of this package.
type Metrics struct {
	workers    prometheus.Gauge
	unchecked  *prometheus.GaugeVec
	deliveries prometheus.Counter
	frames     prometheus.Counter
	results    *prometheus.CounterVec
	ignored    *prometheus.CounterVec
	revoked    prometheus.Counter
	timedOut   prometheus.Counter
	suspects   prometheus.Gauge
	silent     prometheus.Counter

	reservations prometheus.Gauge
	covered      prometheus.Gauge
	covers       *prometheus.CounterVec
	refused      *prometheus.CounterVec
	lines        *loglimit.Metrics
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		lines: loglimit.NewMetrics(reg),
		workers: f.NewGauge(prometheus.GaugeOpts{
			Name: "ringfence_app_workers",
			Help: "Workers that are connected and take deliveries.",
		}),
		unchecked: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ringfence_app_unchecked_workers",
			Help: "1 for each connected worker whose SDK does not declare that it passes router conformance.",
		}, []string{"worker", "sdk"}),
		deliveries: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_app_deliveries_total",
			Help: "Events handed to workers.",
		}),
		frames: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_app_frames_total",
			Help: "Frames of deliveries sent to workers.",
		}),
		results: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_app_results_total",
			Help: "How deliveries ended (done, retry, reject, not_started, cancelled, lost, crashed, put_off).",
		}, []string{"kind"}),
		ignored: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_app_results_ignored_total",
			Help: "Results without effect, by reason: unknown (no such delivery, or answered before), late (it was over).",
		}, []string{"reason"}),
		revoked: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_app_deliveries_revoked_total",
			Help: "Deliveries that were taken back from workers because their partition moved, or because an operator skips their event.",
		}),
		timedOut: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_app_deliveries_timed_out_total",
			Help: "Deliveries that were taken back from workers because they took longer than the handler timeout.",
		}),
		suspects: f.NewGauge(prometheus.GaugeOpts{
			Name: "ringfence_app_suspects",
			Help: "Deliveries of events that a worker had when it crashed: few of them run at a time.",
		}),
		reservations: f.NewGauge(prometheus.GaugeOpts{
			Name: "ringfence_app_reservations",
			Help: "Reservations of keys that this member owns and that are held.",
		}),
		covered: f.NewGauge(prometheus.GaugeOpts{
			Name: "ringfence_app_reservations_covered",
			Help: "Reservations of keys that this member owns and that are covered: the control log has them, and they outlive their owner.",
		}),
		covers: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_app_reservation_covers_total",
			Help: "What became of reservations with a ttl at this owner (covered, refused, handed_over: the key has moved, and the holder continues).",
		}, []string{"result"}),
		silent: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_app_silent_workers_total",
			Help: "Workers whose stream was cut because they had sent no Ping, or taken nothing in, for too long.",
		}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_app_streams_refused_total",
			Help: "Streams that were ended by an error of the worker, by status code.",
		}, []string{"code"}),
	}
	// An increase is only seen from a count that was there before it.
	for _, code := range []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Internal} {
		m.refused.WithLabelValues(code.String())
	}
	m.ignored.WithLabelValues("late")
	return m
}

// LateResults returns how many results came for deliveries that were over: their
// handlers outlived their permission.
func (m *Metrics) LateResults() prometheus.Counter { return m.ignored.WithLabelValues("late") }
