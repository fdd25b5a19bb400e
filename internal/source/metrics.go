package source

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/broker/entries"
)

// Metrics holds the metrics of a process's sources, one of which runs at a time.
type Metrics struct {
	unsettled      prometheus.Gauge
	unsettledBytes prometheus.Gauge
	openEntries    prometheus.Gauge
	pinnedEntries  prometheus.Gauge
	pinnedEvents   prometheus.Gauge
	spilling       prometheus.Gauge
	allowance      prometheus.Gauge
	allowanceRatio prometheus.Gauge
	oldest         prometheus.Gauge
	received       *prometheus.CounterVec
	acked          prometheus.Counter
	retried        prometheus.Counter
	spilled        prometheus.Counter
	deadLettered   prometheus.Counter
	parked         prometheus.Counter
	parkedLate     prometheus.Counter
	abandoned      prometheus.Counter
	ignored        prometheus.Counter
	copyFailures   prometheus.Counter
	copiesRefused  *prometheus.CounterVec
	ackFailures    prometheus.Counter
	lettersRefused *prometheus.CounterVec

	timersSent      *prometheus.CounterVec
	timerHops       prometheus.Counter
	timersHeld      prometheus.Gauge
	timersPending   prometheus.Gauge
	timersUndelayed prometheus.Counter

	ackHoles          prometheus.Gauge
	topicPartitions   prometheus.Gauge
	discoveryFailures prometheus.Counter

	reader *entries.Metrics
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return with.NewGauge(prometheus.GaugeOpts{Name: "ringfence_source_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return with.NewCounter(prometheus.CounterOpts{Name: "ringfence_source_" + name, Help: help})
	}
	m := &Metrics{
		reader: entries.NewMetrics(reg),

		unsettled:      gauge("unsettled", "Events that were received and are not settled yet."),
		unsettledBytes: gauge("unsettled_bytes", "Weight of the open entries."),
		openEntries:    gauge("open_entries", "Entries with an unsettled event."),
		pinnedEntries:  gauge("pinned_entries", "Open entries of which some events are settled."),
		pinnedEvents:   gauge("pinned_events", "Settled events that the broker counts as unacked, because other events of their entry are open."),
		allowance:      gauge("allowance_used", "Unacked events as the broker counts them, without those that were fetched ahead."),
		spilling:       gauge("spilling", "Unsettled events that are being copied to the retry topic, because they have been open for long and pin other events or fill the node."),
		allowanceRatio: gauge("allowance_used_ratio", "Largest part of the broker's allowance of unacked events that this node uses of any topic partition, without what was fetched ahead."),
		oldest:         gauge("oldest_unsettled_seconds", "Age of the oldest open entry, 0 when there is none."),
		received: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_source_received_total",
			Help: "Events received, by kind: fresh ones were handed on, joined ones are open already, repeated ones were settled here, unreadable ones (encrypted, or broken) go to the dead letter topic.",
		}, []string{"kind"}),
		copiesRefused: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_source_copies_refused_total",
			Help: "Messages in the retry and timer topics that do not count as copies and are handled as events of their own, by reason: no_id (they lack the id of their original), unsigned (no key of the group has signed them), altered (they were changed after they were sealed), untimely (they name an event that a router published, and have no key or a time beyond its bounds).",
		}, []string{"reason"}),
		lettersRefused: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_source_parked_refused_total",
			Help: "Messages in the parking topic that are no letters of this group, each time that the topic was read for an unpark, by reason: no_id, unsigned, altered (as with copies of the retry topic), not_written (no router can have written it), unreadable (broken, or larger than pulsar.payload_bytes_max). They stay, and are not handled.",
		}, []string{"reason"}),
		timersSent: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_timers_sent_total",
			Help: "Events that this router published for its applications (timers, firings of schedules, events of Send), by result: confirmed by the broker, or failed, which may be published all the same.",
		}, []string{"result"}),
		timerHops:       with.NewCounter(prometheus.CounterOpts{Name: "ringfence_timer_hops_total", Help: "Timers that were not due when their copy came, since the broker delays each copy by an hour at most: another copy was published."}),
		timersHeld:      with.NewGauge(prometheus.GaugeOpts{Name: "ringfence_timers_held", Help: "Timers that this router holds until they are due, in a few seconds."}),
		timersPending:   with.NewGauge(prometheus.GaugeOpts{Name: "ringfence_timers_pending", Help: "Timers of the whole group that wait at the broker, on the topic partition with most of them. Beyond 10,000 a broker that restarts delivers timers again that were handled; 0 without pulsar.admin_url."}),
		timersUndelayed: with.NewCounter(prometheus.CounterOpts{Name: "ringfence_timers_undelayed_total", Help: "Copies of timers that the broker has delivered at once instead of after their delay."}),

		acked:             counter("acked_total", "Events that were acked with the verdict Done."),
		retried:           counter("retried_total", "Events that ended as a copy in the retry topic."),
		spilled:           counter("spilled_total", "Events that ended as a copy in the retry topic without a verdict, because they had been open for long and pinned other events or filled the node."),
		deadLettered:      counter("dead_lettered_total", "Events that ended as a copy in the dead letter topic."),
		parked:            counter("parked_total", "Events that ended as a copy in the parking topic, because an operator has parked their key."),
		parkedLate:        counter("parked_late_total", "Events that came into the parking topic when the unpark of their key had ended, or its park had expired: they wait there for another unpark."),
		abandoned:         counter("abandoned_total", "Events that were unsettled when their subscription was closed: the broker delivers them again, and they join the running ones."),
		ignored:           counter("ignored_verdicts_total", "Verdicts for events that were settled already."),
		copyFailures:      counter("copy_failures_total", "Copies that the broker did not take; each is sent again."),
		ackHoles:          gauge("ack_holes", "Ranges of acked entries between unacked ones that the broker has of our subscription, on the topic partition with most of them; 0 without pulsar.admin_url."),
		topicPartitions:   gauge("topic_partitions", "Topic partitions that are read, those of the retry and timer topics included; a topic without partitions counts as one."),
		discoveryFailures: counter("discovery_failures_total", "Attempts to look for new topic partitions, or to read one, that failed; they are made again."),
		ackFailures:       counter("ack_failures_total", "Acks that the reader refused; the broker delivers these entries again."),
	}
	for _, reason := range []string{copyNoID, copyUnsigned, copyAltered, copyUntimely} { // an increase is only seen from a count that was there before it
		m.copiesRefused.WithLabelValues(reason)
	}
	for _, kind := range []string{"fresh", "joined", "repeated", "unreadable"} {
		m.received.WithLabelValues(kind)
	}
	return m
}
