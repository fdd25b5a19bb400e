package claim

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of a [Keeper].
type Metrics struct {
	factory promauto.Factory
	records *prometheus.CounterVec
	appends *prometheus.CounterVec
	readers *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	m := &Metrics{
		factory: with,
		records: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_claim_records_total",
			Help: "Records read from claims topics, by effect (claimed, confirmed, refused: another group holds it, released, malformed, version).",
		}, []string{"result"}),
		appends: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_claim_appends_total",
			Help: "Claims that this router has written, by result (ok, failed).",
		}, []string{"result"}),
		readers: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_claim_readers_total",
			Help: "Readers of claims topics, by event (opened, lost).",
		}, []string{"event"}),
	}
	// An increase is only seen from a count that was there before it.
	for _, result := range []Result{Refused, Released, Malformed, Later} {
		m.records.WithLabelValues(string(result))
	}
	m.appends.WithLabelValues("failed")
	m.readers.WithLabelValues("lost")
	return m
}

// watch exports whether the claims are held.
func (m *Metrics) watch(k *Keeper) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_claim_held",
		Help: "1 when this group holds its subscriptions and its control topic in the claims topics; 0 before, while the router does nothing.",
	}, func() float64 {
		if k.Check() == nil {
			return 1
		}
		return 0
	})
}
