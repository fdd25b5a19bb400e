package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// chart is the content of one picture, without its drawing.
type chart struct {
	file  string // without its ending
	title string
	kind  chartKind
	unit  string    // of the values
	names []string  // of the bars or rows; of a curve, its x axis
	xs    []float64 // of a curve
	log2  bool      // the xs are logarithms to base 2, and the ticks are the numbers
	mark  float64   // of a curve: a dashed line at this x; 0: none
	parts []part
}

// chartKind is the way in which a chart is drawn.
//
//exhaustive:enforce
type chartKind uint8

// The kinds of charts.
const (
	bars   chartKind = iota // one for each name, its parts stacked
	dots                    // one row for each name, its parts side by side on a logarithmic axis
	curves                  // one for each part
)

// part is one value for each name of the chart, or for each x of a curve.
type part struct {
	name   string
	values []float64
}

// charts selects the pictures of a run.
func charts(run Run) []chart {
	var all []chart
	for _, r := range run.Reports {
		suffix := ""
		if r.Name != "" {
			suffix = "-" + fileName(r.Name)
		}
		title := r.Workload
		if r.Name != "" {
			title = r.Name
		}
		switch {
		case len(r.Modes) == 0 || isCurve(r):
		case r.Workload == workloadDrain:
			all = append(all, throughputChart(r, "throughput"+suffix, title), cpuChart(r, "cpu"+suffix, title))
		case r.Workload == workloadLatency:
			all = append(all, latencyChart(r, "latency"+suffix, title))
		case r.Workload == workloadKill:
			all = append(all, killChart(r, "gap"+suffix, title))
		case r.Workload == workloadCalls:
			all = append(all, callsChart(r, "calls"+suffix))
		case r.Workload == workloadReservations:
			all = append(all, reservationsChart(r, "reservations"+suffix))
		}
	}
	all = append(all, curveChart(run, "nodes", "nodes", func(r Report) int { return r.Nodes }))
	all = append(all, curveChart(run, "size", "B", func(r Report) int { return r.Size }))
	return slices.DeleteFunc(all, func(c chart) bool { return len(c.parts) == 0 })
}

// isCurve reports whether r is one point of a curve: its name is a number and a unit.
func isCurve(r Report) bool {
	return r.Name == curveName(r.Nodes, "nodes") || r.Name == curveName(r.Size, "B")
}

func curveName(n int, unit string) string { return strconv.Itoa(n) + " " + unit }

func modesOf(r Report) []string {
	var names []string
	for _, m := range r.Modes {
		names = append(names, m.Mode)
	}
	return names
}

// values returns one value of each mode.
func values(r Report, of func(Result) float64) []float64 {
	var v []float64
	for _, m := range r.Modes {
		v = append(v, of(m))
	}
	return v
}

func throughputChart(r Report, file, title string) chart {
	return chart{
		file: file, title: "Throughput, " + title, kind: bars, unit: "thousand events/s", names: modesOf(r),
		parts: []part{{"", values(r, func(m Result) float64 { return m.ConsumePerS / 1000 })}},
	}
}

func cpuChart(r Report, file, title string) chart {
	roles := map[string]bool{}
	for _, m := range r.Modes {
		for role := range m.CPUPerEvent {
			roles[role] = true
		}
	}
	c := chart{file: file, title: "CPU, " + title, kind: bars, unit: "µs per event", names: modesOf(r)}
	for _, role := range slices.Sorted(maps.Keys(roles)) {
		c.parts = append(c.parts, part{role, values(r, func(m Result) float64 { return m.CPUPerEvent[role] })})
	}
	return c
}

func latencyChart(r Report, file, title string) chart {
	quantile := func(of func(Quantiles) float64) []float64 {
		return values(r, func(m Result) float64 {
			if m.Latency == nil {
				return 0
			}
			return of(m.Latency.Start)
		})
	}
	return chart{
		file: file, title: "Publish to start of the handler, " + title, kind: dots, unit: "ms", names: modesOf(r),
		parts: []part{
			{"p50", quantile(func(q Quantiles) float64 { return q.P50 })},
			{"p99", quantile(func(q Quantiles) float64 { return q.P99 })},
			{"p99.9", quantile(func(q Quantiles) float64 { return q.P999 })},
		},
	}
}

func callsChart(r Report, file string) chart {
	quantile := func(of func(Quantiles) float64) []float64 {
		return values(r, func(m Result) float64 {
			if m.Calls == nil {
				return 0
			}
			return of(m.Calls.Call)
		})
	}
	return chart{
		file: file, title: fmt.Sprintf("Calls, %d a second", r.Rate), kind: dots, unit: "ms", names: modesOf(r),
		parts: []part{
			{"p50", quantile(func(q Quantiles) float64 { return q.P50 })},
			{"p90", quantile(func(q Quantiles) float64 { return q.P90 })},
			{"p99", quantile(func(q Quantiles) float64 { return q.P99 })},
		},
	}
}

func reservationsChart(r Report, file string) chart {
	of := func(value func(*Reservations) float64) []float64 {
		return values(r, func(m Result) float64 {
			if m.Reservations == nil {
				return 0
			}
			return value(m.Reservations)
		})
	}
	return chart{
		file: file, title: "Reservations: a pair, and a hand-over", kind: dots, unit: "ms", names: modesOf(r),
		parts: []part{
			{"pair, p50", of(func(h *Reservations) float64 { return h.Pair.P50 })},
			{"pair, p99", of(func(h *Reservations) float64 { return h.Pair.P99 })},
			{"hand-over, p50", of(func(h *Reservations) float64 { return h.HandOver.P50 })},
			{"hand-over, p99", of(func(h *Reservations) float64 { return h.HandOver.P99 })},
		},
	}
}

func killChart(r Report, file, title string) chart {
	gap := func(of func(*Kill) float64) []float64 {
		return values(r, func(m Result) float64 {
			if m.Kill == nil {
				return 0
			}
			return of(m.Kill)
		})
	}
	return chart{
		file: file, title: "How long keys stand still, " + title, kind: dots, unit: "ms", names: modesOf(r),
		parts: []part{
			{"p99 of keys", gap(func(k *Kill) float64 { return k.GapP99 })},
			{"worst key", gap(func(k *Kill) float64 { return k.GapMax })},
		},
	}
}

// curveChart shows the CPU of application and router together over number, for the reports with
// that name.
func curveChart(run Run, file, unit string, number func(Report) int) chart {
	c := chart{file: "cpu-by-" + file, title: "CPU of applications and routers", kind: curves, unit: "µs per event", names: []string{unit}}
	byMode := map[string][]float64{}
	for _, r := range run.Reports {
		if r.Name != curveName(number(r), unit) {
			continue
		}
		c.xs = append(c.xs, float64(number(r)))
		for _, m := range r.Modes {
			byMode[m.Mode] = append(byMode[m.Mode], m.CPUPerEvent[roleApp]+m.CPUPerEvent[roleRouter])
		}
	}
	for _, m := range modes {
		if v := byMode[m.name]; len(v) > 1 && len(v) == len(c.xs) {
			c.parts = append(c.parts, part{m.name, v})
		}
	}
	return c
}

// fileName keeps letters and digits.
func fileName(name string) string {
	b := []byte(name)
	for i, c := range b {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' {
			b[i] = '-'
		}
	}
	return string(b)
}
