package node

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/invariant"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// metrics are about ownership, as this node sees it.
type metrics struct {
	notes    *prometheus.CounterVec
	handoff  prometheus.Histogram
	takeover prometheus.Histogram
	forced   prometheus.Counter
	lost     prometheus.Counter
	drains   prometheus.Counter

	topicsNotConsumed prometheus.Gauge
	admitted          *prometheus.CounterVec
	questionsRefused  prometheus.Counter

	unparkedLetters    *prometheus.CounterVec
	unparkReadFailures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		notes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_ownership_notes_total",
			Help: "Things that the ownership machine has reported, by kind.",
		}, []string{"kind"}),
		handoff: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "ringfence_ownership_acquire_seconds",
			Help:    "Longest wait of a batch of partitions from the record that gave them to this node until their gates opened.",
			Buckets: []float64{.001, .002, .004, .008, .016, .032, .064, .125, .25, .5, 1, 2, 4, 7, 10, 16, 32}, // the alerts' thresholds are among the bounds, here and below
		}),
		takeover: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "ringfence_ownership_takeover_seconds",
			Help:    "Time from the last sign of a silent owner until its partitions were open here.",
			Buckets: []float64{.1, .15, .25, .4, .6, .9, 1.25, 1.75, 2.5, 3.5, 5, 7.5, 10, 15, 20, 30, 45},
		}),
		forced: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_ownership_forced_drains_total",
			Help: "Partitions whose deliveries were given up on because they outlasted the drain timeout, or because of a Genesis or LOST.",
		}),
		lost: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_ownership_lost_total",
			Help: "Times that this node could not trust the control log any more and began a new incarnation.",
		}),
		unparkedLetters: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_node_unparked_letters_total",
			Help: "Letters of the parking topic that this node has brought back and that came to their end, by verdict (done, failed: to the retry topic, rejected: to the dead letter topic).",
		}, []string{"verdict"}),
		unparkReadFailures: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_node_unpark_read_failures_total",
			Help: "Attempts to read the parking topic for unparked keys, or to remove letters that were handled, that failed, or found another member reading for 10 s; they are made again.",
		}),
		questionsRefused: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_node_questions_refused_total",
			Help: "Queries about keys that were refused by their rate limit.",
		}),
		drains: f.NewCounter(prometheus.CounterOpts{
			Name: "ringfence_node_drains_total",
			Help: "Drains that this node has begun.",
		}),
		topicsNotConsumed: f.NewGauge(prometheus.GaugeOpts{
			Name: "ringfence_node_topics_not_consumed",
			Help: "Topics of pulsar.topics that wait until all members list them.",
		}),
		admitted: f.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_handover_ids_total",
			Help: "Ids of finished events that other members have handed over, by result: admitted and keyless (by a member of an older release) were taken in; unproven, not_owner, ahead, late and full were refused.",
		}, []string{"result"}),
	}
	for _, kind := range []ownership.NoteKind{ownership.NoteLeaseLapsed, ownership.NoteTakeover} {
		m.notes.WithLabelValues(string(kind)) // an increase is only seen from a count that was there before it
	}
	return m
}

// watch exports the newest picture of the machine.
func (m *metrics) watch(reg prometheus.Registerer, n *Node) {
	f := promauto.With(reg)
	flag := func(name, help string, is func() bool) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if is() {
				return 1
			}
			return 0
		})
	}
	flag("ringfence_node_draining", "1 from the begin of a drain until this node takes part again.",
		func() bool { return n.drainCycle().isDraining() })
	f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "ringfence_node_info",
		Help: "Always 1; its labels name the group and this member, to join with in queries about whole groups.",
	}, []string{"group", "member"}).WithLabelValues(n.cfg.Group, n.cfg.Name).Set(1)
	gauge := func(name, help string, value func(ownership.Status) float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(n.Status()) })
	}
	gauge("ringfence_ownership_open_partitions", "Partitions that this node may dispatch for while it has a lease.",
		func(s ownership.Status) float64 { return float64(s.Open) })
	gauge("ringfence_ownership_waiting_partitions", "Partitions that are this node's but where an earlier owner may still work.",
		func(s ownership.Status) float64 { return float64(s.Waiting) })
	gauge("ringfence_ownership_withheld_keys", "Keys of open partitions for which an earlier owner still works.",
		func(s ownership.Status) float64 { return float64(s.Withheld) })
	gauge("ringfence_ownership_reserved_keys", "Keys of the group that reservations with a ttl hold, as the control log says: at 1,024 further ones are refused.",
		func(s ownership.Status) float64 { return float64(s.Reserved) })
	gauge("ringfence_ownership_awaited_keys", "Keys of open partitions that wait for the holder of a reservation with a ttl, since their partition has moved here.",
		func(s ownership.Status) float64 { return float64(s.Awaited) })
	gauge("ringfence_ownership_draining_partitions", "Partitions that are not this node's any more and where its application still works.",
		func(s ownership.Status) float64 { return float64(s.Draining) })
	gauge("ringfence_ownership_lease_remaining_seconds", "Time left of this node's lease, negative when it has run out.",
		func(s ownership.Status) float64 { return s.Lease.Sub(clock.Now()).Seconds() })
	flag("ringfence_ownership_is_member", "1 while this node is a member of the newest epoch.",
		func() bool { return n.Status().Member })
	flag("ringfence_ownership_exclusive", "1 while ownership is decided on the control log, 0 with ownership.mode gossip, which does not keep a key exclusive.",
		func() bool { return n.cfg.Mode != Gossip })
	f.NewCounterFunc(prometheus.CounterOpts{
		Name: "ringfence_invariant_failures_total",
		Help: "Assertions that did not hold: a bug in the router. Please report it.",
	}, func() float64 { return float64(invariant.Failures()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ringfence_ownership_lease_margin_seconds",
		Help: "Least remaining lease at a dispatch since this was read last; the lease itself when nothing was dispatched.",
	}, func() float64 { return n.pipeline.LeaseMargin(n.cfg.Timing.Lease).Seconds() })
}

// Log lines about ignored records: any writer of the control topic can cause them.
const (
	badRecordEvery = time.Second
	badRecordBurst = 20
)

func newBadRecords(log *slog.Logger, reg prometheus.Registerer) *loglimit.Limit {
	return loglimit.NewBurst(log, "ownership_bad_record", badRecordEvery, badRecordBurst, loglimit.NewMetrics(reg))
}

// noted takes a Note of the machine: a log line and a count.
func (n *Node) noted(note ownership.Note) {
	m := n.metrics
	n.rollout.noted(wallClock().time, &note)
	m.notes.WithLabelValues(string(note.Kind)).Inc()
	level := slog.LevelInfo
	switch note.Kind {
	case ownership.NoteAcquired:
		m.handoff.Observe(note.Took.Seconds())
	case ownership.NoteTakeover:
		m.takeover.Observe(note.Took.Seconds())
	case ownership.NoteOtherSettings:
		n.otherSettings.Store(&otherSettings{at: clock.Now(), reason: strings.TrimSpace(note.Name + " " + note.Reason)})
		level = slog.LevelWarn
	case ownership.NoteConfirm, ownership.NoteSnapSent, ownership.NoteDrained, ownership.NoteEpochLost:
		level = slog.LevelDebug
	case ownership.NoteLeaseLapsed, ownership.NoteReopen, ownership.NoteRejoin, ownership.NoteBadRecord, ownership.NotePlaceFailed,
		ownership.NoteCheckRepeated, ownership.NoteForced, ownership.NoteNameHeld, ownership.NoteRemoved, ownership.NoteLostTrust,
		ownership.NotePrefixDiffers, ownership.NoteGenesisVoid, ownership.NoteGroupFull:
		level = slog.LevelWarn
	case ownership.NoteAdopted, ownership.NoteGenesis, ownership.NoteEpoch, ownership.NoteProposed, ownership.NoteDeposed, ownership.NoteLeaseRegained,
		ownership.NoteLogVersion,
		ownership.NoteNoOtherMember,  // the last one leaves, as when a group is stopped
		ownership.NoteEvictedFromLog: // as when members start together; a member that is voted out is "removed" before
	}
	attrs := []any{"kind", string(note.Kind)}
	if !note.At.IsZero() {
		attrs = append(attrs, "position", note.At.String())
	}
	if note.Name != "" {
		attrs = append(attrs, "member", note.Name)
	}
	if !note.Inc.IsZero() {
		attrs = append(attrs, "incarnation", note.Inc.String())
	}
	counted := "partitions"
	switch note.Kind {
	case ownership.NoteProposed, ownership.NoteGroupFull:
		counted = "members"
	case ownership.NoteLogVersion:
		counted = "version"
	}
	if note.Count != 0 {
		attrs = append(attrs, counted, note.Count)
	}
	if note.Took != 0 {
		attrs = append(attrs, "took", note.Took)
	}
	if note.Reason != "" {
		attrs = append(attrs, "reason", note.Reason)
	}
	log := n.log
	if note.Kind == ownership.NoteBadRecord {
		var due bool
		if log, due = n.badRecords.Line(); !due {
			return
		}
	}
	log.Log(context.Background(), level, "ownership", attrs...)
}
