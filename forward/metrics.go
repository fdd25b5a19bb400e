package forward

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Metrics holds the metrics of this package. A Pool and a Server share one.
type Metrics struct {
	sentLocal, sentPeer, sentRelay prometheus.Counter
	receivedPeer, receivedRelay    prometheus.Counter
	verdicts                       [event.Granted + 1]prometheus.Counter // by kind; 0 is not used
	framesOut, framesIn            prometheus.Counter
	frameEvents                    prometheus.Histogram
	receiptWait                    prometheus.Histogram
	streamsOut, streamsIn          prometheus.Gauge
	connects                       *prometheus.CounterVec
	refused                        [refusals]prometheus.Counter
	otherSettings                  prometheus.Counter
	lines                          *loglimit.Metrics

	windowSent, windowReceived, windowDropped prometheus.Counter
	creditsOut, creditsIn                     prometheus.Counter

	heldBytes      prometheus.Gauge
	relayed        prometheus.Gauge
	fullKeys       prometheus.Gauge
	oldest         prometheus.Gauge
	resent         prometheus.Counter
	relayedRefused prometheus.Counter
	forgotten      prometheus.Counter
	missedFailures prometheus.Counter
	counted        Stats // by resent, relayedRefused, forgotten and missedFailures
	placeGauges    [places]prometheus.Gauge
}

// Reasons for which this node ends inbound streams.
const (
	refusedHello  = iota // another group, version or incarnation, or other settings
	refusedFrame         // malformed or unexpected frame
	refusedSilent        // no Hello in time
	refusals
)

var refusalNames = [refusals]string{"hello", "frame", "silent"}

// NewMetrics registers the metrics of this package. Once per registry.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	factory := promauto.With(reg)
	counters := func(name, help, label string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	sent := counters("ringfence_forward_events_sent_total", "Events sent to a mailbox, by path (local, peer, relay).", "path")
	received := counters("ringfence_forward_events_received_total", "Events received from other members, by path (peer, relay).", "path")
	frames := counters("ringfence_forward_frames_total", "Frames of events sent (out) and received (in).", "direction")
	verdicts := counters("ringfence_forward_verdicts_total", "Verdicts received about events of this node, by kind.", "kind")
	credits := counters("ringfence_forward_credits_total", "Credits for keys whose mailbox was full, given to others (out) and received (in).", "direction")
	window := counters("ringfence_forward_window_ids_total",
		"Ids of finished events, handed over with their partitions, by result (sent, received, dropped).", "result")
	streams := factory.NewGaugeVec(prometheus.GaugeOpts{Name: "ringfence_forward_streams", Help: "Working streams, by direction (out, in)."}, []string{"direction"})
	m := &Metrics{
		sentLocal:     sent.WithLabelValues("local"),
		sentPeer:      sent.WithLabelValues("peer"),
		sentRelay:     sent.WithLabelValues("relay"),
		receivedPeer:  received.WithLabelValues("peer"),
		receivedRelay: received.WithLabelValues("relay"),
		windowSent:    window.WithLabelValues("sent"), windowReceived: window.WithLabelValues("received"), windowDropped: window.WithLabelValues("dropped"),
		framesOut:  frames.WithLabelValues("out"),
		framesIn:   frames.WithLabelValues("in"),
		creditsOut: credits.WithLabelValues("out"),
		creditsIn:  credits.WithLabelValues("in"),
		streamsOut: streams.WithLabelValues("out"),
		streamsIn:  streams.WithLabelValues("in"),
		frameEvents: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "ringfence_forward_frame_events", Help: "Events in one sent frame.", Buckets: prometheus.ExponentialBuckets(1, 4, 7),
		}),
		receiptWait: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "ringfence_forward_receipt_wait_seconds", Help: "Time from sending a frame of events to its receipt.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}),
		connects: counters("ringfence_forward_connects_total", "Attempts to open a stream to a peer, by result (ok, failed).", "result"),
		lines:    loglimit.NewMetrics(reg),
		otherSettings: factory.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_forward_other_settings_total", Help: "Streams of routers whose settings are not those of this group.",
		}),
		heldBytes: factory.NewGauge(prometheus.GaugeOpts{Name: "ringfence_forward_held_bytes", Help: "Weight of the held events."}),
		relayed:   factory.NewGauge(prometheus.GaugeOpts{Name: "ringfence_forward_relayed_bytes", Help: "Weight of the held events that this member passes on for members that cannot reach their owners."}),
		relayedRefused: factory.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_forward_relayed_refused_total", Help: "Events that this member was to pass on and refused, because it held peer.relayed_bytes_max of them.",
		}),
		fullKeys: factory.NewGauge(prometheus.GaugeOpts{Name: "ringfence_forward_full_keys", Help: "Keys whose mailbox is full."}),
		oldest:   factory.NewGauge(prometheus.GaugeOpts{Name: "ringfence_forward_oldest_seconds", Help: "Age of the oldest held event."}),
		resent:   factory.NewCounter(prometheus.CounterOpts{Name: "ringfence_forward_resent_events_total", Help: "Events that were refused, lost with their stream or not answered before a takeover, and so sent again."}),
		forgotten: factory.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_forward_forgotten_releases_total", Help: "Releases of reservations that were forgotten before an owner of the key had confirmed them.",
		}),
		missedFailures: factory.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_forward_missed_failures_total",
			Help: "Failures and rejections that came when this member no longer held their event, mostly because a copy of it was safe in the retry topic: it runs again when the copy comes, and the failure does not count.",
		}),
	}
	m.connects.WithLabelValues("failed") // an increase is only seen from a count that was there before it
	refused := counters("ringfence_forward_refused_streams_total",
		"Inbound streams that this node refused or ended because of invalid input, by reason (hello, frame, silent).", "reason")
	for reason, name := range refusalNames {
		m.refused[reason] = refused.WithLabelValues(name)
	}
	for kind := event.Done; kind <= event.Granted; kind++ {
		m.verdicts[kind] = verdicts.WithLabelValues(kind.String())
	}
	held := factory.NewGaugeVec(prometheus.GaugeOpts{Name: "ringfence_forward_held_events", Help: "Events that wait for their verdict, by place."}, []string{"place"})
	for place := range places {
		m.placeGauges[place] = held.WithLabelValues(place.String())
	}
	return m
}

// count adds received verdicts by kind.
func (m *Metrics) count(done []event.Set, verdicts []event.Verdict) {
	var n [event.Granted + 1]int
	for i := range done {
		n[event.Done] += done[i].Events.Len()
	}
	for i := range verdicts {
		n[verdicts[i].Kind]++
	}
	for kind, n := range n {
		if n > 0 {
			m.verdicts[kind].Add(float64(n))
		}
	}
}

// observe sets the gauges from a snapshot of the table. One goroutine calls it.
func (m *Metrics) observe(now clock.Instant, s Stats) {
	for place, n := range s.In {
		m.placeGauges[place].Set(float64(n))
	}
	m.heldBytes.Set(float64(s.Bytes))
	m.fullKeys.Set(float64(s.FullKeys))
	m.relayed.Set(float64(s.Relayed))
	m.relayedRefused.Add(float64(s.RelayedRefused - m.counted.RelayedRefused))
	m.resent.Add(float64(s.Resent - m.counted.Resent))
	m.forgotten.Add(float64(s.Forgotten - m.counted.Forgotten))
	m.missedFailures.Add(float64(s.MissedFailures - m.counted.MissedFailures))
	m.counted = s
	m.oldest.Set(0)
	if s.Events > 0 {
		m.oldest.Set(now.Sub(s.Oldest).Seconds())
	}
}
