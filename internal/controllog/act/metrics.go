package act

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Metrics of a [Keeper].
type Metrics struct {
	factory promauto.Factory
	lines   *loglimit.Metrics
	records *prometheus.CounterVec
	appends *prometheus.CounterVec
	readers *prometheus.CounterVec
	refused prometheus.Counter

	endsLost prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	m := &Metrics{
		factory: with,
		lines:   loglimit.NewMetrics(reg),
		records: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_act_records_total",
			Help: "Records read from the acts topic, by effect (held, renewed, released, not_held, skipping, parking, unparking, already, ended, no_skip, full: too many keys are held or parked or events skipped, marked, malformed, version).",
		}, []string{"result"}),
		appends: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_act_appends_total",
			Help: "Records that this router has written to the acts topic, by result (ok, failed).",
		}, []string{"result"}),
		readers: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_act_readers_total",
			Help: "Readers of the acts topic, by event (opened, lost).",
		}, []string{"event"}),
		refused: with.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_act_refused_total",
			Help: "Holds, skips and parks that this router has refused because acts.held_max keys are held, acts.skips_max events skipped, or acts.parked_max keys parked.",
		}),
		endsLost: with.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_act_ends_lost_total",
			Help: "Ends of skips that are not recorded, because too many ends wait for an unreadable acts topic (1,024).",
		}),
	}
	// An increase is only seen from a count that was there before it.
	for _, result := range []Result{Held, Released, Full, Malformed, Later} {
		m.records.WithLabelValues(string(result))
	}
	m.appends.WithLabelValues("failed")
	m.readers.WithLabelValues("lost")
	return m
}

// watch exports the state of a Keeper.
func (m *Metrics) watch(k *Keeper) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_act_held_keys",
		Help: "Keys of the group that operators hold, as this router has read; at most acts.held_max.",
	}, func() float64 { return float64(k.HeldKeys()) })
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_act_skips",
		Help: "Skips of events that are in effect in the group, as this router has read; at most acts.skips_max.",
	}, func() float64 { return float64(k.Skips()) })
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_act_parked_keys",
		Help: "Keys of the group that are parked, or whose letters come back from the parking topic, as this router has read; at most acts.parked_max.",
	}, func() float64 { active, _ := k.Parks(); return float64(active) })
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_act_lapsed_parks",
		Help: "Keys of the group whose newest park or unpark expired before its end was recorded: their letters may remain in the parking topic.",
	}, func() float64 { _, lapsed := k.Parks(); return float64(lapsed) })
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_act_topic_readable",
		Help: "1 while this router reads the acts topic; 0 while acts that are made now do not reach it.",
	}, func() float64 {
		if k.Check() == nil {
			return 1
		}
		return 0
	})
}
