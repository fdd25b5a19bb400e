package prove

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/report"
)

//go:embed report.html
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"ms":      durationWords,
	"percent": func(a, b int) string { return fmt.Sprintf("%.2f %%", 100*float64(a)/float64(max(1, b))) },
	"plots":   plots,
	"clock":   func(t time.Time) string { return t.Format("2 January 2006, 15:04 UTC") },
	"length":  func(s float64) string { return time.Duration(math.Round(s) * 1e9).String() },
	"names":   report.Plural,
	"words":   faultWords,
	"kinds":   func() []string { return Kinds },
}).Parse(pageText))

// HTML returns a verdict as one page that needs nothing else: no script, and no request to anywhere.
func HTML(v *Verdict) ([]byte, error) {
	var b bytes.Buffer
	if err := page.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("prove: report: %w", err)
	}
	return b.Bytes(), nil
}

// JSON returns a verdict as one JSON object.
func JSON(v *Verdict) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return nil, fmt.Errorf("prove: report: %w", err)
	}
	return append(text, '\n'), nil
}

// faultWords explains a kind of fault.
func faultWords(kind string) string {
	return map[string]string{
		Kill: "SIGKILL for the router and its handlers", KillRouter: "SIGKILL for the router; its handlers run on", KillHandler: "SIGKILL for the handlers; the router runs on",
		Pause: "SIGSTOP for the router and its handlers", PauseRouter: "SIGSTOP for the router; its handlers run on", Drain: "the router leaves in order and comes back",
	}[kind]
}

// durationWords formats seconds for people.
func durationWords(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 0.01:
		return fmt.Sprintf("%.2f ms", 1e3*s)
	case s < 1:
		return fmt.Sprintf("%.0f ms", 1e3*s)
	}
	return fmt.Sprintf("%.2f s", s)
}

// Plot is one picture of the page.
type Plot struct {
	Title, Says string
	SVG         template.HTML
}

// line is one line of a plot.
type line struct {
	name, class string
	value       func(Bin) float64
}

// plots draws a verdict over time.
func plots(v *Verdict) []Plot {
	return []Plot{
		{
			"Throughput", "Events per second. Vertical lines are faults; a shaded band lasts until all members are ready again.",
			drawn(v, "events per second", false, []line{
				{"published", "b", func(b Bin) float64 { return b.Published }},
				{"done", "a", func(b Bin) float64 { return b.Done }},
			}),
		},
		{
			"Waits", "From the publication of an event to its first handler, by the time at which that began. A key whose owner died waits until the lease of the owner is over.",
			drawn(v, "wait", true, []line{
				{"longest", "c", func(b Bin) float64 { return b.WaitMax }},
				{"p99", "b", func(b Bin) float64 { return b.WaitP99 }},
				{"p50", "a", func(b Bin) float64 { return b.WaitP50 }},
			}),
		},
		{
			"Latencies", "From the publication of an event to the end of the handler that did it. One event in " + fmt.Sprint(slowEvery) + " works for 0.3 to 1.5 s on purpose, the others for 2 to 20 ms.",
			drawn(v, "latency", true, []line{
				{"p99", "b", func(b Bin) float64 { return b.LatencyP99 }},
				{"p50", "a", func(b Bin) float64 { return b.LatencyP50 }},
			}),
		},
	}
}

// The plot's measures, in its own units.
const (
	plotWidth, plotHeight                            = 920.0, 240.0
	marginLeft, marginRight, marginTop, marginBottom = 62.0, 24.0, 26.0, 26.0
)

// axis maps values to heights.
type axis struct {
	log       bool
	low, high float64
	ticks     []float64
}

func newAxis(log bool, most float64) axis {
	if log { // decades, from a millisecond
		a := axis{log: true, low: 1e-3, high: 1e-2}
		for a.high < most && a.high < 1e4 {
			a.high *= 10
		}
		for t := a.low; t <= a.high*1.0001; t *= 10 {
			a.ticks = append(a.ticks, t)
		}
		return a
	}
	step := math.Pow(10, math.Floor(math.Log10(max(most, 4)/4)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if step*factor*4 >= most {
			step *= factor
			break
		}
	}
	a := axis{high: max(step, math.Ceil(most/step)*step)}
	for t := 0.0; t <= a.high*1.0001; t += step {
		a.ticks = append(a.ticks, t)
	}
	return a
}

func (a axis) y(value float64) float64 {
	part := (value - a.low) / (a.high - a.low)
	if a.log {
		part = math.Log10(max(value, a.low)/a.low) / math.Log10(a.high/a.low)
	}
	return plotHeight - marginBottom - min(1, max(0, part))*(plotHeight-marginTop-marginBottom)
}

func (a axis) label(value float64) string {
	if !a.log {
		return fmt.Sprintf("%g", value)
	}
	if value < 1 {
		return fmt.Sprintf("%g ms", math.Round(value*1e3))
	}
	return fmt.Sprintf("%g s", value)
}

// drawn draws one plot. All text in it is its own, or escaped.
func drawn(v *Verdict, what string, log bool, lines []line) template.HTML {
	most := 0.0
	for _, b := range v.Series {
		for _, l := range lines {
			most = max(most, l.value(b))
		}
	}
	y := newAxis(log, most)
	x := func(at float64) float64 {
		return marginLeft + min(1, max(0, at/max(v.Seconds, 1)))*(plotWidth-marginLeft-marginRight)
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s over time">`, plotWidth, plotHeight, template.HTMLEscapeString(what))
	for _, t := range y.ticks {
		fmt.Fprintf(&s, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`,
			marginLeft, plotWidth-marginRight, y.y(t), y.y(t), marginLeft-8, y.y(t)+4, y.label(t))
	}
	for _, t := range timeTicks(v.Seconds) {
		fmt.Fprintf(&s, `<text class="tick" x="%.1f" y="%g" text-anchor="middle">%s</text>`, x(t), plotHeight-8, timeWords(t))
	}
	for _, f := range v.Faults {
		until := cmp.Or(f.Ready, v.Seconds)
		title := template.HTMLEscapeString(fmt.Sprintf("fault %d: %s at %s", f.Number, f.Kind, f.Member))
		fmt.Fprintf(&s, `<g><title>%s</title><rect class="band" x="%.1f" y="%g" width="%.1f" height="%g"/><line class="fault" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text class="number" x="%.1f" y="%g">%d</text></g>`,
			title, x(f.From), marginTop, max(1, x(until)-x(f.From)), plotHeight-marginTop-marginBottom, x(f.From), x(f.From), marginTop, plotHeight-marginBottom, x(f.From)+2, marginTop+9, f.Number)
	}
	for i, l := range lines {
		var points []string
		for _, b := range v.Series {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(b.At), y.y(l.value(b))))
		}
		fmt.Fprintf(&s, `<polyline class="line %s" points="%s"/>`, l.class, strings.Join(points, " "))
		at := marginLeft + 120*float64(i)
		fmt.Fprintf(&s, `<line class="line %s" x1="%g" x2="%g" y1="12" y2="12"/><text class="tick" x="%g" y="16">%s</text>`, l.class, at, at+22, at+28, template.HTMLEscapeString(l.name))
	}
	s.WriteString(`</svg>`)
	return template.HTML(s.String()) //nolint:gosec // numbers, and text that is escaped above
}

// timeWords formats whole seconds: 30s, 2m, 1h30m.
func timeWords(seconds float64) string {
	text := (time.Duration(seconds) * time.Second).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// timeTicks returns up to nine round times.
func timeTicks(seconds float64) (ticks []float64) {
	steps := []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400}
	i := slices.IndexFunc(steps, func(s float64) bool { return seconds/s <= 8 })
	step := steps[len(steps)-1]
	if i >= 0 {
		step = steps[i]
	}
	for t := 0.0; t <= seconds; t += step {
		ticks = append(ticks, t)
	}
	return ticks
}
