package mailbox

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/history"
)

// Metrics exports the stats of a node's [Mailboxes] to Prometheus. It reads them at each
// scrape, so that it costs nothing per event.
type Metrics struct {
	boxes  *Mailboxes
	traced func(prometheus.Metric) prometheus.Metric // nil: nothing is traced
	gauges []gauge
	counts []count
	oldest *prometheus.Desc

	remembered       *prometheus.Desc
	handled, queued  *prometheus.Desc
	hotBusy, hotRate *prometheus.Desc
}

// Bounds of the hot keys that are exported: each is a time series, which a metrics database keeps.
const (
	hotExportedMax = 5
	hotExportedMin = 0.1 // the least share of the time in which a handler of the key runs
)

type gauge struct {
	desc  *prometheus.Desc
	value func(Stats) int
}

type count struct {
	desc  *prometheus.Desc
	label string // value of the only label, "" when there is none
	value func(Counters) uint64
}

// NewMetrics registers the metrics of boxes. traced, which may be nil, adds exemplars to the
// histogram of handler times.
func NewMetrics(reg prometheus.Registerer, boxes *Mailboxes, traced func(prometheus.Metric) prometheus.Metric) *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ringfence_mailbox_"+name, help, labels, nil)
	}
	taken := desc("events_total", "Events received from senders, by immediate answer.", "answer")
	moved := desc("moved_events_total", "Accepted events that were sent on to the next owner of their partition.")
	outlived := desc("outlived_deliveries_total", "Deliveries that ended after their partition had moved away, by result (answered, cut): the event of one that is cut is delivered once more.", "result")
	unpinned := desc("unpinned_events_total", "Events that were copied out of the frame that brought them after a long wait.")
	unrun := desc("done_first_deliveries_total", "Events that were acked without a handler because their id had recently finished, although the broker delivered them for the first time.")
	mistaken := desc("mistaken_events_total", "Events that came under the id of a different event or of a call, because one of the two is a copy with a false id: each ran as an event of its own.")
	displaced := desc("displaced_copies_total", "Ids of finished copies that were forgotten early: copies without a signature may fill a quarter of the window, and the oldest made room. If such an event comes once more, it runs again.")
	skipped := desc("skipped_events_total", "Events that operators have skipped, by end (dead_letter, done: a handler that ran already had done it).", "end")
	parked := desc("parked_events_total", "Events that were sent to the parking topic because an operator has parked their key.")
	ended := desc("deliveries_total", "Deliveries that ended, by outcome.", "outcome")
	calls := desc("calls_total", "Calls at this owner, by step (accepted, answered by its handler, expired before it could begin, taken_back while it ran, overloaded: refused because of a bound).", "step")
	m := &Metrics{
		boxes: boxes, traced: traced,
		gauges: []gauge{
			{desc("events", "Events here, waiting or running."), func(s Stats) int { return s.Events }},
			{desc("calls", "Calls and reservations here, waiting or running."), func(s Stats) int { return s.Visits }},
			{desc("running_events", "Events that run at a worker."), func(s Stats) int { return s.Running }},
			{desc("active_keys", "Keys with events here."), func(s Stats) int { return s.Keys }},
			{desc("ready_keys", "Keys that are ready and wait for room at their worker, or for the lease."), func(s Stats) int { return s.Ready }},
			{desc("held_keys", "Keys that wait for the next attempt of a failed event."), func(s Stats) int { return s.Held }},
			{desc("on_hold_keys", "Keys with events here that wait because an operator holds them."), func(s Stats) int { return s.OnHold }},
			{desc("on_park_keys", "Keys with events here that wait because of a park: mostly while their letters come back from the parking topic."), func(s Stats) int { return s.OnPark }},
			{desc("bytes", "Weight of all events here."), func(s Stats) int { return s.Bytes }},
			{desc("window_bytes", "Weight of the ids of recently finished events."), func(s Stats) int { return s.WindowIDs * recordBytes }},
		},
		counts: []count{
			{taken, "accepted", func(c Counters) uint64 { return c.Accepted }},
			{taken, "joined", func(c Counters) uint64 { return c.Joined }},
			{taken, "duplicate", func(c Counters) uint64 { return c.Duplicates }},
			{taken, "overloaded", func(c Counters) uint64 { return c.Overloaded }},
			{taken, "not_owner", func(c Counters) uint64 { return c.NotOwner }},
			{taken, "not_yet", func(c Counters) uint64 { return c.NotYet }},
			{taken, "misplaced", func(c Counters) uint64 { return c.Misplaced }},
			{unrun, "", func(c Counters) uint64 { return c.Unrun }},
			{mistaken, "", func(c Counters) uint64 { return c.Mistaken }},
			{displaced, "", func(c Counters) uint64 { return c.Displaced }},
			{moved, "", func(c Counters) uint64 { return c.Moved }},
			{outlived, "answered", func(c Counters) uint64 { return c.Outlived }},
			{outlived, "cut", func(c Counters) uint64 { return c.Cut }},
			{unpinned, "", func(c Counters) uint64 { return c.Unpinned }},
			{ended, "done", func(c Counters) uint64 { return c.Done }},
			{ended, "failed", func(c Counters) uint64 { return c.Failed }},
			{ended, "retried", func(c Counters) uint64 { return c.Retried }},
			{ended, "crashed", func(c Counters) uint64 { return c.Crashed }},
			{ended, "rejected", func(c Counters) uint64 { return c.Rejected }},
			{ended, "returned", func(c Counters) uint64 { return c.Returned }},
			{skipped, "dead_letter", func(c Counters) uint64 { return c.Skipped }},
			{skipped, "done", func(c Counters) uint64 { return c.SkippedDone }},
			{calls, "accepted", func(c Counters) uint64 { return c.Calls }},
			{calls, "answered", func(c Counters) uint64 { return c.Answered }},
			{calls, "expired", func(c Counters) uint64 { return c.Expired }},
			{calls, "taken_back", func(c Counters) uint64 { return c.Recalled }},
			{calls, "overloaded", func(c Counters) uint64 { return c.Crowded }},
			{parked, "", func(c Counters) uint64 { return c.Parked }},
			{ended, "ignored", func(c Counters) uint64 { return c.Ignored }},
		},
		oldest: desc("oldest_event_seconds", "Age of the oldest event here, 0 when there is none."),

		remembered: desc("history_seconds", "How far back all deliveries are remembered, 0 while none was forgotten."),
		handled:    desc("handler_seconds", "Time from the delivery of an event to a worker to its answer."),
		queued:     desc("queue_seconds", "Time that events wait in their mailbox for their first delivery."),
		hotBusy:    desc("hot_key_busy_ratio", "Part of the last ten seconds in which the handler of a hot key ran, by the hash of the key: at 1 it gets more events than it can do.", "key"),
		hotRate:    desc("hot_key_events_per_second", "Events of a hot key that were handled in the last ten seconds, by the hash of the key.", "key"),
	}
	reg.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(m, out)
	out <- m.hotBusy // there may be no hot key yet
	out <- m.hotRate
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	stats := m.boxes.Stats()
	for _, g := range m.gauges {
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(g.value(stats)))
	}
	for _, c := range m.counts {
		var labels []string
		if c.label != "" {
			labels = append(labels, c.label)
		}
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.value(stats.Counters)), labels...)
	}
	age := func(since clock.Instant) float64 {
		if since == clock.Forever || since == 0 {
			return 0
		}
		return m.boxes.now().Sub(since).Seconds()
	}
	out <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, age(stats.Oldest))
	out <- prometheus.MustNewConstMetric(m.remembered, prometheus.GaugeValue, age(m.boxes.Remembered()))
	times := m.boxes.Times()
	histogram := func(desc *prometheus.Desc, times *history.Durations) prometheus.Metric {
		n, sum, buckets := times.Histogram()
		return prometheus.MustNewConstHistogram(desc, n, sum, buckets)
	}
	handled := histogram(m.handled, &times.Handled)
	if m.traced != nil {
		handled = m.traced(handled)
	}
	out <- handled
	out <- histogram(m.queued, &times.Queued)
	exported := 0
	for _, k := range m.boxes.HotKeys() {
		if exported == hotExportedMax || k.Busy < hotExportedMin {
			break // the busiest come first
		}
		exported++
		out <- prometheus.MustNewConstMetric(m.hotBusy, prometheus.GaugeValue, k.Busy, k.Hash.String())
		out <- prometheus.MustNewConstMetric(m.hotRate, prometheus.GaugeValue, k.Rate, k.Hash.String())
	}
}
