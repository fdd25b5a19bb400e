package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
)

// Run holds all measurements of one call of the bench, as written to its JSON file.
type Run struct {
	At       time.Time         `json:"at"`
	Command  []string          `json:"command"`
	Machine  string            `json:"machine"`
	Versions map[string]string `json:"versions"`
	Reports  []Report          `json:"reports"`
}

// Report is one workload with one set of options, in all modes.
type Report struct {
	Name         string             `json:"name"`
	Workload     string             `json:"workload"`
	Handler      string             `json:"handler"`
	Events       int                `json:"events"` // in the backlog, or in all at the rate
	Keys         int                `json:"keys"`
	Distribution string             `json:"distribution"`
	Size         int                `json:"size"`
	Nodes        int                `json:"nodes"`
	App          string             `json:"app"`
	Rate         int                `json:"rate_per_s,omitempty"`
	Callers      int                `json:"callers,omitempty"` // calls or reservations in flight, as fast as they are answered
	Waiters      int                `json:"waiters,omitempty"` // for one key
	StalledKeys  int                `json:"stalled_keys,omitempty"`
	SingleAcks   bool               `json:"single_acks,omitempty"` // the broker counts acks of single events in a batch
	Modes        []Result           `json:"modes"`
	Ratios       map[string]float64 `json:"ratios,omitempty"` // ringfence divided by each
}

// Result is the cost of one mode, as the median over its repetitions.
type Result struct {
	Mode        string `json:"mode"`
	Batching    string `json:"batching"`
	Events      int    `json:"events"` // in one repetition, at most
	Repetitions int    `json:"repetitions"`

	ConsumePerS   float64            `json:"consume_per_s,omitempty"`
	ConsumeSpread *[2]float64        `json:"consume_per_s_min_max,omitempty"`
	CPUPerEvent   map[string]float64 `json:"cpu_us_per_event,omitempty"`
	Allocated     map[string]float64 `json:"allocated_bytes_per_event,omitempty"`
	// The broker's maximum count of unacked events in a drain, and whether it stopped a consumer or the subscription for it.
	UnackedConsumer     int  `json:"unacked_consumer_max,omitempty"`
	UnackedSubscription int  `json:"unacked_subscription_max,omitempty"`
	Stopped             bool `json:"stopped,omitempty"`

	Latency   *Latency   `json:"latency,omitempty"`
	Disturbed *Disturbed `json:"disturbed,omitempty"`
	Kill      *Kill      `json:"kill,omitempty"`
	Calls     *Calls     `json:"calls,omitempty"`

	Reservations *Reservations `json:"reservations,omitempty"`

	// Exclusivity comes from a separate run; with a kill from that run itself.
	Exclusivity *Exclusivity `json:"exclusivity,omitempty"`
}

// Latency counts from when an event was to be published. Quantiles are of all
// repetitions together.
type Latency struct {
	Start  Quantiles `json:"start"`                     // of the handler
	End    Quantiles `json:"end"`                       // the application has acked: to Pulsar, or to its router
	Acked  float64   `json:"acked_mean_ms,omitempty"`   // at the broker, all of the event's batch
	Behind int       `json:"behind"`                    // not handled when the last event was published, at worst
	Added  *Added    `json:"added_to_shared,omitempty"` // to the start of the handler
}

// Added is the additional latency until the start of the handler, compared with plain SHARED.
type Added struct {
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p999_ms"`
}

// Kill is the effect of the death of a node, the worst over the repetitions.
type Kill struct {
	GapMax      float64 `json:"gap_max_ms"` // the longest that a key with an event stood still
	GapP99      float64 `json:"gap_p99_ms"` // 99 of 100 keys stood still at most that long
	Keys        uint64  `json:"keys"`
	Redelivered int     `json:"redelivered"` // handlings of events that were handled, or had begun, before
	Lost        uint64  `json:"lost"`
}

// Exclusivity is the evidence of the applications' journals.
type Exclusivity struct {
	Overlaps   uint64  `json:"overlaps"` // pairs of handlings of one key that ran at once
	OverlapMax float64 `json:"overlap_max_ms"`
	Handlings  uint64  `json:"handlings"`
	Lost       uint64  `json:"lost"`
}

func exclusivity(s killSample) *Exclusivity {
	return &Exclusivity{
		Overlaps: s.report.Overlaps, OverlapMax: milliseconds(s.report.OverlapMax), Handlings: s.report.Started, Lost: s.report.Lost,
	}
}

func (e *Exclusivity) String() string {
	if e == nil {
		return "overlaps not looked for"
	}
	text := fmt.Sprintf("%d overlaps in %d handlings", e.Overlaps, e.Handlings)
	if e.Lost > 0 {
		text += fmt.Sprintf(", %d events LOST", e.Lost)
	}
	return text
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func newReport(o Options, name, workload string) Report {
	r := Report{
		Name: name, Workload: workload, Handler: o.Handler.name, Events: o.Events, Keys: o.Keys, Distribution: o.Distribution,
		Size: o.Size, Nodes: o.Nodes, App: o.App, StalledKeys: o.StalledKeys, SingleAcks: o.SingleAcks, Ratios: map[string]float64{},
	}
	if workload != workloadDrain {
		r.Rate, r.Events = o.Rate, o.load().count
	}
	if workload == workloadCalls {
		r.Callers = o.Callers
	}
	if workload == workloadReservations {
		r.Callers, r.Waiters, r.Rate, r.Events = o.Callers, o.Waiters, 0, 0
	}
	if workload == workloadStuck || workload == workloadHot {
		r.Events = o.plan().to
	}
	return r
}

func drainResult(o Options, m mode, samples []Sample) Result {
	var rates []float64
	var cpu, allocated []map[string]float64
	events, most := 0, allowance{}
	for _, s := range samples {
		most = most.max(s.Allowance)
		rates, cpu, allocated, events = append(rates, s.PerSecond), append(cpu, s.CPU), append(allocated, s.Allocated), max(events, s.Events)
	}
	mid, spread := median(rates)
	return Result{
		Mode: m.name, Batching: m.batchingFor(o), Events: events, Repetitions: len(samples),
		ConsumePerS: mid, ConsumeSpread: &spread, CPUPerEvent: medians(cpu), Allocated: medians(allocated),
		UnackedConsumer: most.Consumer, UnackedSubscription: most.Subscription, Stopped: most.Blocked,
	}
}

func latencyResult(o Options, m mode, samples []latencySample) Result {
	l := &Latency{}
	start, end := newHistogram(), newHistogram()
	var cpu []map[string]float64
	var acked []float64
	for _, s := range samples {
		start.Merge(s.start)
		end.Merge(s.end)
		cpu, acked = append(cpu, s.cpu), append(acked, milliseconds(s.acked))
		l.Behind = max(l.Behind, s.behind)
	}
	l.Start, l.End = quantilesOf(start), quantilesOf(end)
	l.Acked, _ = median(acked)
	return Result{
		Mode: m.name, Batching: m.batchingFor(o), Events: o.load().count, Repetitions: len(samples), CPUPerEvent: medians(cpu), Latency: l,
	}
}

func killResult(o Options, m mode, samples []killSample) Result {
	k, e := &Kill{}, &Exclusivity{}
	for _, s := range samples {
		k.GapMax, k.GapP99 = max(k.GapMax, milliseconds(s.gap.Max)), max(k.GapP99, milliseconds(s.gap.P99))
		k.Keys, k.Redelivered = max(k.Keys, s.gap.Count), max(k.Redelivered, s.again())
		k.Lost = max(k.Lost, s.report.Lost)
		one := exclusivity(s)
		e.Overlaps += one.Overlaps
		e.OverlapMax = max(e.OverlapMax, one.OverlapMax)
		e.Handlings += one.Handlings
		e.Lost += one.Lost
	}
	return Result{
		Mode: m.name, Batching: m.batchingFor(o), Events: o.load().count, Repetitions: len(samples), Kill: k, Exclusivity: e,
	}
}

// compare computes the figures relative to another mode: the throughput of Ringfence relative to
// each other mode, and the latency of each mode relative to plain SHARED.
func (r *Report) compare() {
	byMode := map[string]Result{}
	for _, m := range r.Modes {
		byMode[m.Mode] = m
	}
	for _, m := range r.Modes {
		if ours := byMode[modeRingfence].ConsumePerS; ours > 0 && m.Mode != modeRingfence && m.ConsumePerS > 0 {
			r.Ratios[m.Mode] = ours / m.ConsumePerS
		}
		if plain := byMode[modeShared].Latency; plain != nil && m.Latency != nil && m.Mode != modeShared {
			m.Latency.Added = &Added{
				P50:  m.Latency.Start.P50 - plain.Start.P50,
				P99:  m.Latency.Start.P99 - plain.Start.P99,
				P999: m.Latency.Start.P999 - plain.Start.P999,
			}
		}
	}
}

// print writes the report as a table.
func (r *Report) print(w io.Writer) {
	for _, m := range r.Modes {
		switch {
		case m.Latency != nil:
			l := m.Latency
			fmt.Fprintf(w, "%-*s start p50 %8.2f  p99 %8.2f  p99.9 %8.2f ms  end p50 %8.2f  p99 %8.2f ms  acked %s  %s\n",
				modeWidth, m.Mode, l.Start.P50, l.Start.P99, l.Start.P999, l.End.P50, l.End.P99, ackedText(l.Acked), costs(m.CPUPerEvent, nil))
			if l.Behind > r.Rate/10 {
				fmt.Fprintf(w, "%-*s did not keep up: %d events behind at the end\n", modeWidth, "", l.Behind)
			}
		case m.Disturbed != nil:
			fmt.Fprintf(w, "%-*s %v  %v\n", modeWidth, m.Mode, m.Disturbed, m.Exclusivity)
		case m.Calls != nil:
			fmt.Fprintf(w, "%-*s %s\n", modeWidth, m.Mode, m.Calls.row(r, m.CPUPerEvent))
		case m.Reservations != nil:
			fmt.Fprintf(w, "%-*s %s\n", modeWidth, m.Mode, m.Reservations.row(r, m.CPUPerEvent))
		case m.Kill != nil:
			k := m.Kill
			fmt.Fprintf(w, "%-*s gap per key p99 %8.1f  worst %8.1f ms  redelivered %6d  lost %d  %v\n",
				modeWidth, m.Mode, k.GapP99, k.GapMax, k.Redelivered, k.Lost, m.Exclusivity)
		default:
			fmt.Fprintf(w, "%-*s median   %9.0f events/s (%.0f … %.0f)  %s%s  %v\n",
				modeWidth, m.Mode, m.ConsumePerS, m.ConsumeSpread[0], m.ConsumeSpread[1], costs(m.CPUPerEvent, m.Allocated), m.unacked(), m.Exclusivity)
		}
	}
	for _, m := range r.Modes {
		if m.Latency != nil && m.Latency.Added != nil {
			a := m.Latency.Added
			fmt.Fprintf(w, "%s - %s = p50 %+.2f, p99 %+.2f, p99.9 %+.2f ms\n", m.Mode, modeShared, a.P50, a.P99, a.P999)
		}
	}
	for _, m := range r.Modes {
		if m.Mode == modeInvoke && m.Calls != nil {
			fmt.Fprintf(w, "%-*s %s\n", modeWidth, "goal of "+modeInvoke, m.Calls.goals(r.Rate))
		}
	}
	if text := r.goalsOfReservations(); text != "" {
		fmt.Fprintf(w, "%-*s %s\n", modeWidth, "goals of "+modeReserve, text)
	}
	for _, mode := range slices.Sorted(maps.Keys(r.Ratios)) {
		fmt.Fprintf(w, "ringfence / %s = %.2f\n", mode, r.Ratios[mode])
	}
}

// modeWidth makes columns.
const modeWidth = len(modeKeySharedUnbatched)

func ackedText(ms float64) string {
	if ms == 0 {
		return "unknown"
	}
	return fmt.Sprintf("mean %.1f ms", ms)
}

// unacked formats the use of the broker's allowance, "" if it is unknown.
func (r *Result) unacked() string {
	if r.UnackedSubscription == 0 {
		return ""
	}
	text := fmt.Sprintf("; most unacked: %d, of one consumer %d", r.UnackedSubscription, r.UnackedConsumer)
	if r.Stopped {
		text += ", STOPPED by the broker"
	}
	return text
}

// costs formats the CPU time per event, and the allocated bytes if they are known.
func costs(cpu, allocated map[string]float64) string {
	text := "CPU/event: " + byRole(cpu, "%s %.2f µs")
	if len(allocated) > 0 {
		text += "; allocated: " + byRole(allocated, "%s %.0f B")
	}
	return text
}

// byRole formats a value of each role.
func byRole(values map[string]float64, format string) string {
	var parts []string
	for _, role := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, fmt.Sprintf(format, role, values[role]))
	}
	return strings.Join(parts, ", ")
}

// newRun describes the place and the configuration of a run.
func newRun(ctx context.Context, o Options) Run {
	r := Run{
		At: time.Now().UTC().Truncate(time.Second), Command: append([]string{"go", "run", "./bench"}, os.Args[1:]...),
		Machine: machine(), Versions: map[string]string{"go": runtime.Version()},
	}
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		commit = nil // not in a checkout
	}
	for name, version := range map[string]string{"pulsar": admin{pulsaradmin.Client{URL: o.AdminURL}}.version(ctx), "redis": redisVersion(ctx), "ringfence": strings.TrimSpace(string(commit))} {
		if version != "" {
			r.Versions[name] = version
		}
	}
	return r
}

// machine lists the machine's properties that figures depend on, as far as the kernel reports
// them.
func machine() string {
	cpu := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		cpu = field(string(b), "model name", cpu)
	}
	text := fmt.Sprintf("%d × %s", runtime.NumCPU(), cpu)
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		text += ", " + field(string(b), "MemTotal", "?") + " memory"
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		text += ", " + runtime.GOOS + " " + strings.TrimSpace(string(b))
	}
	return text
}

// field returns the value in the first line "name : value", or otherwise.
func field(text, name, otherwise string) string {
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return otherwise
}

// firstField returns the text after prefix in the first word that begins with it.
func firstField(text, prefix string) string {
	for word := range strings.FieldsSeq(text) {
		if value, ok := strings.CutPrefix(word, prefix); ok {
			return value
		}
	}
	return ""
}
