package entries

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Metrics holds the metrics of a process's clients.
type Metrics struct {
	connections    prometheus.Gauge
	reconnects     *prometheus.CounterVec
	broken         *prometheus.CounterVec
	chunkBytes     prometheus.Gauge
	chunksGivenUp  prometheus.Counter
	permits        prometheus.Gauge
	unacked        prometheus.Gauge
	unackedWaits   prometheus.Counter
	acks           prometheus.Counter
	acksUnsent     prometheus.Counter
	receiptsFailed prometheus.Counter
	setBack        prometheus.Counter
	lines          *loglimit.Metrics
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return with.NewGauge(prometheus.GaugeOpts{Name: "ringfence_reader_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return with.NewCounter(prometheus.CounterOpts{Name: "ringfence_reader_" + name, Help: help})
	}
	by := func(label, name, help string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: "ringfence_reader_" + name, Help: help}, []string{label})
	}
	m := &Metrics{
		lines: loglimit.NewMetrics(reg),

		connections: gauge("connections", "Open connections to brokers."),
		reconnects: by("reason", "reconnects_total", "Repeated subscriptions, by reason: "+
			"connection (it ended), closed (the broker closed "+
			"the consumer, as it does to move a topic), migrated (the topic is in another cluster)."),
		broken:     by("reason", "broken_entries_total", "Entries that could not be read and were handed on as bytes, by reason."),
		chunkBytes: gauge("chunk_bytes", "Size of the held chunks of incomplete messages."),
		chunksGivenUp: counter("chunks_given_up_total", "Chunks that went back to the broker, because their message "+
			"was not complete in time or there was no room."),
		permits: gauge("permits", "Events that brokers may still send before earlier events are taken, over all topic partitions."),
		unacked: gauge("unacked", "Unacked events over all topic partitions, whole entries counted as brokers do, those in the queue included."),
		unackedWaits: counter("unacked_waits_total", "How often a topic partition was not read any further, since "+
			"more unacked events might make the broker stop this member or the whole subscription."),
		acks:           counter("acks_total", "Acks sent, of an entry or of some of its events."),
		acksUnsent:     counter("acks_unsent_total", "Acks that were never sent, because a consumer ended while it had no broker."),
		receiptsFailed: counter("receipts_failed_total", "Acks that a broker refused, or did not confirm in time."),
		setBack: counter("set_back_total", "Times that the position of a subscription moved back on a topic partition: it was deleted "+
			"and made again, or set back, or its broker ended before it had stored the position."),
	}
	for _, reason := range wire.Reasons { // an increase is only seen from a count that was there before it
		m.broken.WithLabelValues(reason.String())
	}
	return m
}

// Reasons of a repeated subscription.
const (
	reasonConnection = "connection"
	reasonClosed     = "closed"
	reasonMigrated   = "migrated"
)
