// Package collect is the collector behind `router audit collect`: it takes reports of handlings whose exclusivity another
// system provides, such as a Redis lock or a Pulsar subscription, and reports how often they overlapped.
//
// # Concurrency
//
// A [Collector] is safe for concurrent use and has no goroutine.
package collect

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/audit/judge"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/netx/untrusted"
)

// Config configures a Collector.
type Config struct {
	Application  string // reports for another one are refused
	BytesMax     int    // memory for recent handlings
	ProcessesMax int    // processes that report within ProcessFor; further ones are refused
}

// DefaultConfig returns the settings for production.
func DefaultConfig() Config {
	return Config{Application: "default", BytesMax: 64 << 20, ProcessesMax: 1000}
}

// processFor is how long a process that reports no more counts, and keeps its place when another one needs it.
const processFor = 10 * time.Minute

// Collector takes reports and adds them up.
type Collector struct {
	cfg   Config
	judge *judge.Judge
	now   func() clock.Instant

	mu        sync.Mutex
	processes map[exchange.Incarnation]*process
	gone      exchange.Waits // of processes that have lost their place
	first     clock.Instant  // of the first report with handlings; 0: none yet
	last      clock.Instant
}

// process is one process that reports.
type process struct {
	at    clock.Instant // of its newest report
	waits exchange.Waits
}

// reports tells whether the process counts as one that still reports.
func (p *process) reports(now clock.Instant) bool { return now.Sub(p.at) < processFor }

// New returns a Collector. now is clock.Now, but in tests.
func New(cfg Config, reg prometheus.Registerer, log *slog.Logger, now func() clock.Instant) *Collector {
	c := &Collector{cfg: cfg, judge: judge.New(cfg.BytesMax, "collector", reg, log), now: now, processes: make(map[exchange.Incarnation]*process)}
	f := promauto.With(reg)
	gauge := func(name, help string, value func(Report) float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(c.Report()) })
	}
	gauge("ringfence_collector_processes", "Processes that have reported within the last ten minutes.", func(r Report) float64 { return float64(r.Processes) })
	gauge("ringfence_collector_overlaps_per_day", "Overlapping pairs of handlers of one key, per day at the rate so far.", func(r Report) float64 { return r.OverlapsPerDay })
	gauge("ringfence_collector_handlings_dropped", "Handlings that processes could not report.", func(r Report) float64 { return float64(r.Dropped) })
	gauge("ringfence_collector_locks_expired", "Handlings that continued after their lock had expired, as processes say.", func(r Report) float64 { return float64(r.LocksExpired) })
	gauge("ringfence_collector_lock_wait_seconds", "Mean time that handlings waited for their lock.", func(r Report) float64 { return r.LockWaitSeconds })
	gauge("ringfence_collector_lock_wait_max_seconds", "Longest time that a handling waited for its lock.", func(r Report) float64 { return r.LockWaitMaxSeconds })
	return c
}

// Note notes the clocks of this machine. It should be called about once a second.
func (c *Collector) Note() { c.judge.Note() }

// Take takes a report in. It is an [exchange.Receiver]'s.
func (c *Collector) Take(r *exchange.Report, _ func(func(text, signature []byte) bool) bool) error {
	if err := c.admit(r); err != nil {
		c.judge.Refused()
		return err
	}
	c.judge.Take(r)
	return nil
}

// admit gives the process of a report its place.
func (c *Collector) admit(r *exchange.Report) error {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Group != c.cfg.Application {
		return fmt.Errorf("this collector audits the application %q, not %q", c.cfg.Application, untrusted.Text(r.Group))
	}
	p := c.processes[r.Incarnation]
	if p == nil {
		if len(c.processes) >= c.cfg.ProcessesMax {
			c.expire(now)
		}
		if len(c.processes) >= c.cfg.ProcessesMax {
			return fmt.Errorf("%d processes report already", len(c.processes))
		}
		p = new(process)
		c.processes[r.Incarnation] = p
	}
	p.at, p.waits = now, r.Waits
	if len(r.Handlings) > 0 {
		if c.first == 0 {
			c.first = now
		}
		c.last = now
	}
	return nil
}

// expire removes the processes that no longer report. It is called only when a place is needed: a process that
// was only cut off, and returns after its removal, reports its counters again, so that they are added a second
// time.
func (c *Collector) expire(now clock.Instant) {
	maps.DeleteFunc(c.processes, func(_ exchange.Incarnation, p *process) bool {
		if p.reports(now) {
			return false
		}
		c.gone = add(c.gone, p.waits)
		return true
	})
}

func add(a, b exchange.Waits) exchange.Waits {
	return exchange.Waits{
		Dropped: sum(a.Dropped, b.Dropped), Acquired: sum(a.Acquired, b.Acquired), Waited: a.Waited + min(b.Waited, math.MaxInt64-a.Waited),
		Longest: max(a.Longest, b.Longest), Expired: sum(a.Expired, b.Expired),
	}
}

// sum adds counters, which others report, without an overflow.
func sum(a, b uint64) uint64 { return a + min(b, math.MaxUint64-a) }

// Report holds the findings of a Collector.
type Report struct {
	Application    string            `json:"application"`
	Seconds        float64           `json:"seconds"` // from the first report of handlings to the newest
	Processes      int               `json:"processes"`
	Handlings      uint64            `json:"handlings"`
	Overlaps       uint64            `json:"overlaps"` // pairs of handlings of one key that ran at the same time
	OverlapsPerDay float64           `json:"overlaps_per_day"`
	Undecided      map[string]uint64 `json:"undecided"` // handlings that could not be compared, by reason
	Dropped        uint64            `json:"dropped"`   // handlings that were not reported

	LockWaits          uint64  `json:"lock_waits"`
	LockWaitSeconds    float64 `json:"lock_wait_seconds"` // mean
	LockWaitMaxSeconds float64 `json:"lock_wait_max_seconds"`
	LocksExpired       uint64  `json:"locks_expired"` // handlings that continued after their lock had expired

	Newest []string `json:"newest"` // some overlaps, the newest last
}

// Report returns what was found so far.
func (c *Collector) Report() Report {
	found := c.judge.State()
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	waits, processes := c.gone, 0
	for _, p := range c.processes {
		waits = add(waits, p.waits)
		if p.reports(now) {
			processes++
		}
	}
	r := Report{
		Application: c.cfg.Application, Seconds: c.last.Sub(c.first).Seconds(), Processes: processes, Handlings: found.Handlings, Overlaps: found.Overlaps,
		Undecided: make(map[string]uint64), Dropped: waits.Dropped,
		LockWaits: waits.Acquired, LockWaitMaxSeconds: waits.Longest.Seconds(), LocksExpired: waits.Expired, Newest: []string{},
	}
	if waits.Acquired > 0 {
		r.LockWaitSeconds = waits.Waited.Seconds() / float64(waits.Acquired)
	}
	if r.Seconds > 0 {
		r.OverlapsPerDay = float64(r.Overlaps) * (24 * time.Hour).Seconds() / r.Seconds
	}
	for _, reason := range audit.Reasons() {
		if n := found.Undecided[reason]; n > 0 {
			r.Undecided[reason.String()] = n
		}
	}
	for _, f := range found.Newest {
		r.Newest = append(r.Newest, fmt.Sprintf("key %s for %v: by %s, and by %s", f.First.Key, f.For, judge.Describe(f.First), judge.Describe(f.Second)))
	}
	return r
}

// JSON writes the report as JSON.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r) //nolint:wrapcheck // the writer's error
}

// Text writes the report for people.
func (r Report) Text(w io.Writer) error {
	undecided := uint64(0)
	for _, n := range r.Undecided {
		undecided += n
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", r.Application, r.rate())
	if err != nil {
		return err //nolint:wrapcheck // the writer's error
	}
	fmt.Fprintf(w, "  %d overlaps in %d handlings of %d processes, in %v\n", r.Overlaps, r.Handlings, r.Processes, time.Duration(r.Seconds*float64(time.Second)).Round(time.Second))
	fmt.Fprintf(w, "  %d handlings could not be compared", undecided)
	for i, reason := range slices.Sorted(maps.Keys(r.Undecided)) {
		fmt.Fprintf(w, "%s%s %d", [2]string{": ", ", "}[min(i, 1)], reason, r.Undecided[reason])
	}
	fmt.Fprintf(w, "; %d were not reported\n", r.Dropped)
	fmt.Fprintf(w, "  locks: %d waits, %.1f ms on average, %.1f ms at most; %d expired while their handler ran\n", r.LockWaits, 1e3*r.LockWaitSeconds, 1e3*r.LockWaitMaxSeconds, r.LocksExpired)
	for _, overlap := range r.Newest {
		fmt.Fprintf(w, "  %s\n", overlap)
	}
	return nil
}

// rateAfter is how long handlings must have been reported before a rate per day is told.
const rateAfter = time.Hour

// rate tells overlaps per day, as far as they have been watched for long enough.
func (r Report) rate() string {
	switch {
	case r.Handlings == 0:
		return "nothing was reported yet"
	case r.Seconds < rateAfter.Seconds():
		return fmt.Sprintf("%d overlaps; a rate needs reports for %v at least", r.Overlaps, rateAfter)
	}
	return fmt.Sprintf("%.0f overlaps a day", r.OverlapsPerDay)
}
