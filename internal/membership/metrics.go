package membership

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Metrics of a [Gossip].
type Metrics struct {
	members  prometheus.Gauge
	health   prometheus.Gauge
	onlySelf prometheus.Gauge
	evidence *prometheus.CounterVec
	joins    *prometheus.CounterVec
	bad      prometheus.Counter

	otherSettings prometheus.Counter

	library    *prometheus.CounterVec
	keyReloads *prometheus.CounterVec
	lines      *loglimit.Metrics
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	m := &Metrics{
		members: with.NewGauge(prometheus.GaugeOpts{
			Name: "ringfence_membership_members",
			Help: "Members that gossip believes alive or suspect, this one included.",
		}),
		health: with.NewGauge(prometheus.GaugeOpts{
			Name: "ringfence_membership_health_score",
			Help: "How badly this node itself keeps up with gossip; 0 is well.",
		}),
		onlySelf: with.NewGauge(prometheus.GaugeOpts{
			Name: "ringfence_membership_seeds_only_self",
			Help: "1 while the seeds name no other node.",
		}),
		evidence: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_membership_evidence_total",
			Help: "Evidence about other members, by kind (alive, suspect, dead).",
		}, []string{"kind"}),
		joins: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_membership_contacts_total",
			Help: "Attempts to contact a member, by why (seed, rejoin) and result (ok, failed, unresolved).",
		}, []string{"reason", "result"}),
		bad: with.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_membership_bad_members_total",
			Help: "Gossip nodes that could not be understood.",
		}),
		otherSettings: with.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_membership_other_settings_total",
			Help: "Exchanges with gossip nodes whose settings are not those of this group.",
		}),
		library: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_membership_library_warnings_total",
			Help: "Warnings of the gossip library, by kind (decrypt, refused, conflict, overflow, malformed, stream, probe, other).",
		}, []string{"kind"}),
		lines: loglimit.NewMetrics(reg),
		keyReloads: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_membership_key_reloads_total",
			Help: "Changes of the file with the gossip keys, by result (ok, failed).",
		}, []string{"result"}),
	}
	m.keyReloads.WithLabelValues("failed") // seen from the first time on
	for _, k := range lineKinds {
		m.library.WithLabelValues(k.kind)
	}
	return m
}
