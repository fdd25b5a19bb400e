package node

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/pipeline/schedule"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/telemetry/loglimit"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// schedules performs what a schedule.Book asks for: it publishes firings, and tells the application's server which of
// the arriving firings may run. Its methods are safe for concurrent use.
type schedules struct {
	node    *Node
	changed chan struct{} // cap 1: wakes the goroutine
	metrics *schedulesMetrics
	lines   *loglimit.Limit // limits the warnings that firings cannot be published

	mu      sync.Mutex
	book    *schedule.Book
	running map[event.DeliveryID]schedule.Firing
	tenures map[ring.Partition]ownership.Token // of the open gates
	failing clock.Instant                      // the instant since which no firing could be published; zero: the newest publication succeeded, or there was none
}

func newSchedules(n *Node) *schedules {
	s := &schedules{
		node: n, changed: make(chan struct{}, 1), book: schedule.NewBook(), running: make(map[event.DeliveryID]schedule.Firing),
		tenures: make(map[ring.Partition]ownership.Token),
	}
	s.metrics = newSchedulesMetrics(n.parts.Registry, s)
	s.lines = loglimit.New(n.log, "schedules_not_published", unpublishedEvery, loglimit.NewMetrics(n.parts.Registry))
	return s
}

// timeOfDay returns the time of day, without the monotonic reading: with that, times compare as if the wall clock had never been set.
func timeOfDay() time.Time {
	return time.Now().Round(0) //nolint:forbidigo // schedules follow the wall clock; no lease depends on it
}

// The bounds of the goroutine's pauses: it waits at least a little even if the book asks for less, and at most for so
// long that steps of the wall clock are noticed.
const (
	schedulesLeast = 20 * time.Millisecond
	schedulesMost  = time.Second
)

// The warning that firings cannot be published comes late, since a member that joins or leaves may have no subscription
// for a moment.
const (
	unpublishedAfter = 10 * time.Second
	unpublishedEvery = time.Minute
)

// run publishes firings until ctx ends.
func (s *schedules) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-timer.C:
		}
		s.mu.Lock()
		now := timeOfDay()
		arms := s.book.Tick(now)
		next := s.book.Next(now)
		s.mu.Unlock()
		for i := range arms {
			s.arm(&arms[i])
		}
		pause := schedulesMost
		if !next.IsZero() {
			pause = min(max(next.Sub(now), schedulesLeast), schedulesMost)
		}
		timer.Reset(pause)
	}
}

// arm publishes one firing.
func (s *schedules) arm(a *schedule.Arm) {
	sent := a.Sent()
	id := a.ID
	armed := func(err error) {
		now := clock.Now()
		s.mu.Lock()
		s.book.Armed(timeOfDay(), id, err)
		switch {
		case err == nil:
			s.failing = 0
		case s.failing == 0:
			s.failing = now
		}
		long := err != nil && now.Sub(s.failing) >= unpublishedAfter
		s.mu.Unlock()
		signal.Set(s.changed)
		if err == nil {
			s.metrics.armed.Inc()
			return
		}
		s.metrics.failures.Inc()
		if long {
			if log, due := s.lines.Line(); due {
				log.Warn("schedule firings cannot be published: the router retries them, and they run late or not at all", "schedule", sent.Name, "error", err)
			}
		}
	}
	err := s.node.Publish(&event.Event{
		ID: schedule.MessageID(a.Definition.Name, id), Key: sent.Key, Payload: []byte{}, PublishTime: timeOfDay().UnixMilli(), Properties: sent.Properties(nil),
	}, armed)
	if err != nil {
		armed(err)
	}
}

// maySkip reports whether an event that an operator skips may end, for its schedule's sake.
func (s *schedules) maySkip(e *event.Event) bool {
	sent, err := event.ParseSent(e.Properties)
	if err != nil || sent.Firing == nil || string(e.Key) != schedule.KeyOf(sent.Name) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	signal.Set(s.changed) // the next firing may have to be published
	return s.book.MaySkip(timeOfDay(), schedule.FiringOf(&sent))
}

// skipped tells the book of the firings that an operator has skipped.
func (s *schedules) skipped(ends []event.Skipped) {
	for i := range ends {
		e := &ends[i]
		if e.Done || !e.Event.IsSent() {
			continue
		}
		s.mu.Lock()
		s.book.Skip(e.Key, e.Event)
		s.mu.Unlock()
		signal.Set(s.changed)
	}
}

// stop tells the book that an operator's act stops keys, or no longer stops them.
func (s *schedules) stop(keys []event.Key, why schedule.Stop, stops bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		s.book.Stop(timeOfDay(), key, why, stops)
	}
	signal.Set(s.changed)
}

// known tells the book of firings that have run before, mostly at an earlier owner: no further copy of them comes.
func (s *schedules) known(events []event.Known) {
	for i := range events {
		s.mu.Lock()
		over := s.book.Over(events[i].Key, events[i].Event)
		s.mu.Unlock()
		if over {
			signal.Set(s.changed)
		}
	}
}

// opens notes the partitions that this node owns from now on. A further change of an open gate in the same tenure
// releases withheld keys: no other node has run a firing meanwhile.
func (s *schedules) opens(changes []ownership.GateChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := timeOfDay()
	for i := range changes {
		if c := &changes[i]; c.Gate == ownership.Open && (c.Token == 0 || s.tenures[c.Partition] != c.Token) {
			s.tenures[c.Partition] = c.Token
			s.book.Opened(now, c.Partition)
		}
	}
	signal.Set(s.changed)
}

// closes notes the partitions that this node no longer owns.
func (s *schedules) closes(changes []ownership.GateChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range changes {
		if c := &changes[i]; c.Gate != ownership.Open {
			delete(s.tenures, c.Partition)
			s.book.Closed(c.Partition)
		}
	}
	signal.Set(s.changed)
}

// Declare implements app.Schedules.
func (s *schedules) Declare(w event.WorkerID, declared []*appv1.Schedule) error {
	if len(declared) > schedule.SchedulesMax {
		return fmt.Errorf("%d schedules: want at most %d of one worker", len(declared), schedule.SchedulesMax)
	}
	definitions := make([]schedule.Definition, 0, len(declared))
	for _, one := range declared {
		d, err := definitionOf(one)
		if err != nil {
			return err
		}
		definitions = append(definitions, d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	signal.Set(s.changed)
	return s.book.Declare(timeOfDay(), uint64(w), definitions)
}

// definitionOf reads a schedule from the wire. The book checks the rest.
func definitionOf(s *appv1.Schedule) (schedule.Definition, error) {
	d := schedule.Definition{Name: s.GetName(), Cron: s.GetCron(), Zone: s.GetZone()}
	for _, one := range []struct {
		name string
		ms   uint64
		to   *time.Duration
	}{{"every_ms", s.GetEveryMs(), &d.Every}, {"jitter_ms", s.GetJitterMs(), &d.Jitter}, {"grace_ms", s.GetGraceMs(), &d.Grace}} {
		if one.ms > math.MaxInt64/uint64(time.Millisecond) {
			return d, fmt.Errorf("schedule %.80q: %s = %d is too long", s.GetName(), one.name, one.ms)
		}
		*one.to = time.Duration(one.ms) * time.Millisecond
	}
	if s.GetAtMs() != 0 {
		d.At = time.UnixMilli(s.GetAtMs())
	}
	switch s.GetMissed() {
	case appv1.MissedPolicy_MISSED_POLICY_UNSPECIFIED, appv1.MissedPolicy_MISSED_POLICY_LATEST:
		d.Missed = schedule.Latest
	case appv1.MissedPolicy_MISSED_POLICY_ALL:
		d.Missed = schedule.All
	case appv1.MissedPolicy_MISSED_POLICY_SKIP:
		d.Missed = schedule.Skip
	default:
		return d, fmt.Errorf("schedule %.80q: missed = %d, want latest, all or skip", s.GetName(), s.GetMissed())
	}
	return d, nil
}

// Forget implements app.Schedules.
func (s *schedules) Forget(w event.WorkerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.Forget(timeOfDay(), uint64(w))
}

// Arrive implements app.Schedules.
func (s *schedules) Arrive(w event.WorkerID, id event.DeliveryID, sent *event.Sent) app.Firing {
	f := schedule.FiringOf(sent)
	s.mu.Lock()
	if other := s.book.Elsewhere(uint64(w), f.Name); other != 0 {
		s.mu.Unlock()
		return app.Firing{To: event.WorkerID(other)}
	}
	now := timeOfDay()
	d := s.book.Arrive(now, f)
	if d.Verdict == schedule.Enter {
		s.running[id] = f
	}
	s.mu.Unlock()
	signal.Set(s.changed) // the next firing may have to be published
	switch d.Verdict {
	case schedule.Enter:
		s.metrics.lateness.Observe(now.Sub(time.UnixMilli(sent.Due)).Seconds())
		return app.Firing{Run: true, Missed: uint32(d.Missed)}
	case schedule.Drop:
		s.node.log.Info("a schedule firing is skipped", "schedule", sent.Name, "for", time.UnixMilli(sent.Firing.Time), "reason", d.Reason.String())
		return app.Firing{}
	case schedule.NotYet:
	}
	return app.Firing{After: max(d.Until.Sub(now), schedulesLeast)}
}

// Ended implements app.Schedules.
func (s *schedules) Ended(r event.Result) bool {
	s.mu.Lock()
	f, known := s.running[r.Delivery]
	delete(s.running, r.Delivery)
	s.mu.Unlock()
	if !known {
		return false
	}
	end := schedule.EndOf(r.Kind, s.node.pipeline.Outlook(r))
	s.mu.Lock()
	s.book.Done(timeOfDay(), f, end)
	s.mu.Unlock()
	signal.Set(s.changed)
	return true
}

// overview returns all schedules that this node's workers declare.
func (s *schedules) overview() []schedule.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.Overview()
}

// report returns the schedules for a status, and how many do not fit.
func (s *schedules) report() (shown []report.Schedule, unshown int) {
	for _, one := range s.overview() {
		r := report.Schedule{
			Name: one.Definition.Name, Times: timesOf(&one.Definition), Missed: one.Definition.Missed.String(), Owned: one.Owned, Workers: one.Workers,
			Conflict: one.Conflict, Next: stamp(one.Next), Armed: one.Armed, LastRun: stamp(one.LastRun), Running: stamp(one.Running), Waiting: one.Waiting,
			Covered: one.Missed, Error: one.ArmError,
		}
		for reason, n := range one.Dropped {
			if n > 0 {
				if r.Dropped == nil {
					r.Dropped = make(map[string]uint64)
				}
				r.Dropped[schedule.Reason(reason).String()] = n
			}
		}
		shown = append(shown, r)
	}
	slices.SortStableFunc(shown, func(a, b report.Schedule) int {
		switch {
		case a.Owned == b.Owned:
			return 0
		case a.Owned:
			return -1
		}
		return 1
	})
	unshown = max(0, len(shown)-report.SchedulesMax)
	return shown[:len(shown)-unshown], unshown
}

// timesOf words the times of a schedule.
func timesOf(d *schedule.Definition) string {
	switch {
	case d.Cron != "":
		return strings.TrimSpace(d.Cron + " " + d.Zone)
	case d.Every != 0:
		return "every " + d.Every.String()
	}
	return "at " + stamp(d.At)
}

// stamp is a time in a report; "" for none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func (s *schedules) counts() schedule.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.Counts()
}

// schedulesMetrics are the metrics of schedules.
type schedulesMetrics struct {
	armed, failures prometheus.Counter
	lateness        prometheus.Histogram
}

func newSchedulesMetrics(reg prometheus.Registerer, s *schedules) *schedulesMetrics {
	with := promauto.With(reg)
	arms := with.NewCounterVec(prometheus.CounterOpts{
		Name: "ringfence_schedule_arms_total",
		Help: "Firings that this node, as the owner of their schedule, has published ahead of their time, by result: confirmed by the broker, or failed, which is tried again.",
	}, []string{"result"})
	m := &schedulesMetrics{
		armed: arms.WithLabelValues("confirmed"), failures: arms.WithLabelValues("failed"),
		lateness: with.NewHistogram(prometheus.HistogramOpts{
			Name: "ringfence_schedule_lateness_seconds", Help: "Time from when a firing was due until it was given to a worker.",
			Buckets: []float64{0.01, 0.1, 0.25, 0.5, 1, 1.5, 2.5, 5, 10, 60, 600, 3600},
		}),
	}
	reg.MustRegister(&schedulesCollector{s: s})
	return m
}

// schedulesCollector collects what the book counts.
type schedulesCollector struct{ s *schedules }

var (
	declaredDesc = prometheus.NewDesc("ringfence_schedules", "Schedules that this node's workers declare, by state: owned ones are published here.", []string{"state"}, nil)
	enteredDesc  = prometheus.NewDesc("ringfence_schedule_firings_total", "Firings that came to this node as the owner of their schedule, by result: run, or the reason why they do not run (superseded, skipped, too_late, too_many, duplicate, redefined, undeclared, not_scheduled).", []string{"result"}, nil)
	missedDesc   = prometheus.NewDesc("ringfence_schedule_missed_total", "Earlier firings for which one ran here, too: they were missed.", nil, nil)
	rearmedDesc  = prometheus.NewDesc("ringfence_schedule_rearmed_total", "Firings that had not come 5 s after their time and were published again.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *schedulesCollector) Describe(to chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, to)
}

// Collect implements prometheus.Collector.
func (c *schedulesCollector) Collect(to chan<- prometheus.Metric) {
	owned, others := 0, 0
	for _, one := range c.s.overview() {
		if one.Owned {
			owned++
		} else {
			others++
		}
	}
	to <- prometheus.MustNewConstMetric(declaredDesc, prometheus.GaugeValue, float64(owned), "owned")
	to <- prometheus.MustNewConstMetric(declaredDesc, prometheus.GaugeValue, float64(others), "not_owned")
	counts := c.s.counts()
	to <- prometheus.MustNewConstMetric(enteredDesc, prometheus.CounterValue, float64(counts.Entered), "run")
	for reason := schedule.Undeclared; int(reason) < len(counts.Dropped); reason++ {
		to <- prometheus.MustNewConstMetric(enteredDesc, prometheus.CounterValue, float64(counts.Dropped[reason]), reason.String())
	}
	to <- prometheus.MustNewConstMetric(missedDesc, prometheus.CounterValue, float64(counts.Missed))
	to <- prometheus.MustNewConstMetric(rearmedDesc, prometheus.CounterValue, float64(counts.Rearmed))
}

var _ app.Schedules = (*schedules)(nil)
