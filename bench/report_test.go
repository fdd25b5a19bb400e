package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/devtools/journal"
)

// exampleRun has every workload, in all modes.
func exampleRun(t *testing.T) Run {
	t.Helper()
	o, err := parseWith("--modes", "all", "--rate", "1000", "--warm-up", "1s", "--measure", "1s")
	if err != nil {
		t.Fatal(err)
	}
	drain, latency, kill := newReport(o, "", workloadDrain), newReport(o, "", workloadLatency), newReport(o, "", workloadKill)
	for i, m := range o.Modes {
		rate := 100_000 / float64(i+1)
		d := drainResult(o, m, []Sample{
			{PerSecond: rate - 1, CPU: map[string]float64{roleApp: 1}, Events: 100},
			{PerSecond: rate, CPU: map[string]float64{roleApp: 2, roleBroker: 4}, Allocated: map[string]float64{roleApp: 70}, Events: 100},
			{PerSecond: rate + 5, CPU: map[string]float64{roleApp: 3}, Events: 100},
		})
		d.Exclusivity = exclusivity(killSample{report: journal.Report{Overlaps: uint64(7 - i), Started: 100}})
		drain.Modes = append(drain.Modes, d)
		s := latencySample{start: newHistogram(), end: newHistogram(), acked: 3 * time.Millisecond, behind: 1000 * i, cpu: map[string]float64{roleApp: 5}}
		for ms := range 1000 {
			_ = s.start.RecordValue(int64(1000 * (ms + 10*i)))
		}
		latency.Modes = append(latency.Modes, latencyResult(o, m, []latencySample{s, s}))
		kill.Modes = append(kill.Modes, killResult(o, m, []killSample{
			{gap: journal.Spread{Count: 9, P99: time.Millisecond, Max: time.Second}, report: journal.Report{Started: 120, Events: 100, Overlaps: 1}},
			{gap: journal.Spread{Count: 8, P99: 2 * time.Millisecond, Max: time.Millisecond}, report: journal.Report{Started: 110, Events: 100, Overlaps: 2, Lost: 1}},
		}))
	}
	run := Run{At: zero, Machine: "a machine", Reports: []Report{drain, latency, kill}}
	for i, nodes := range []int{2, 4, 8, 16} {
		o.Nodes = nodes
		r := newReport(o, curveName(nodes, "nodes"), workloadDrain)
		for _, m := range o.Modes {
			r.Modes = append(r.Modes, Result{Mode: m.name, ConsumeSpread: &[2]float64{}, CPUPerEvent: map[string]float64{roleApp: 1, roleRouter: float64(i)}})
		}
		run.Reports = append(run.Reports, r)
	}
	for i := range run.Reports {
		run.Reports[i].compare()
	}
	return run
}

func TestReport(t *testing.T) {
	run := exampleRun(t)
	drain, latency, kill := run.Reports[0], run.Reports[1], run.Reports[2]
	near(t, "ringfence by shared", drain.Ratios[modeShared], 1.0/6, 1e-6)
	if _, there := drain.Ratios[modeRingfence]; there || len(drain.Ratios) != len(alternatives())-1 {
		t.Errorf("ratios = %v, want one for each other mode", drain.Ratios)
	}
	if d := drain.Modes[0]; d.ConsumePerS != 100_000 || d.ConsumeSpread[1] != 100_005 || d.CPUPerEvent[roleApp] != 2 || d.Allocated[roleApp] != 70 || d.Repetitions != 3 {
		t.Errorf("drain = %+v", d)
	}
	ours := latency.Modes[len(alternatives())-1]
	near(t, "added p50", ours.Latency.Added.P50, 50, 0.02)
	near(t, "acked", ours.Latency.Acked, 3, 0.01)
	if ours.Latency.Start.Count != 2000 || ours.Events != 2000 {
		t.Errorf("latency = %+v", ours)
	}
	if k := kill.Modes[0]; k.Kill.GapMax != 1000 || k.Kill.GapP99 != 2 || k.Kill.Redelivered != 20 || k.Kill.Lost != 1 || k.Exclusivity.Overlaps != 3 {
		t.Errorf("kill = %+v, %+v", k.Kill, k.Exclusivity)
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	for _, r := range exampleRun(t).Reports {
		r.print(&b)
	}
	for _, want := range []string{
		"ringfence / shared = 0.17\n", "ringfence / redlock = 0.83\n", "shared               median      100000 events/s (99999 … 100005)",
		"app 2.00 µs, broker 4.00 µs; allocated: app 70 B  7 overlaps in 100 handlings", "acked mean 3.0 ms", "redlock - shared = p50 +39.94", "did not keep up: 5000 events behind",
		"worst   1000.0 ms", "redelivered     20", "1 events LOST",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, b.String())
		}
	}
}

func TestSaveAndPlot(t *testing.T) {
	in, out := filepath.Join(t.TempDir(), "result.json"), filepath.Join(t.TempDir(), "img")
	run := exampleRun(t)
	if err := save(in, run); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(in)
	if err != nil {
		t.Fatal(err)
	}
	var back Run
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if err := runPlot([]string{"--in", in, "--out", out}); err != nil {
		t.Fatal(err)
	}
	for file, wants := range map[string][]string{
		"throughput.svg":   {"Throughput, drain", "thousand events/s", "key_shared_unbatched"},
		"cpu.svg":          {"broker", "µs per event", "ringfence"},
		"latency.svg":      {"p99.9", "redlock"},
		"gap.svg":          {"worst key", "failover"},
		"cpu-by-nodes.svg": {"nodes", "16", "shared"},
	} {
		svg, err := os.ReadFile(filepath.Join(out, file))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(string(svg), want) {
				t.Errorf("%s shows no %q", file, want)
			}
		}
		if len(svg) > 100_000 {
			t.Errorf("%s has %d bytes", file, len(svg))
		}
	}
	if made, _ := filepath.Glob(filepath.Join(out, "*")); len(made) != 5 {
		t.Errorf("pictures: %q", made)
	}
}

func TestPlotOfWhatIsNone(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.json")
	if err := os.WriteFile(empty, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"nothing": {}, "no file": {"--in", "none.json"}, "no report": {"--in", empty},
	} {
		if err := runPlot(append(args, "--out", t.TempDir())); err == nil {
			t.Errorf("%s: drawn", name)
		}
	}
}

// A run in which nothing took any time must not stop the logarithmic axis.
func TestPlotOfZeros(t *testing.T) {
	for kind := bars; kind <= curves; kind++ {
		c := chart{file: "zero", title: "zero", kind: kind, unit: "ms", names: []string{"a", "b"}, xs: []float64{1, 2}, parts: []part{{"p", []float64{0, 0}}, {"q", []float64{0, 0}}}}
		if err := c.save(filepath.Join(t.TempDir(), "zero.svg")); err != nil {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
}

func TestFields(t *testing.T) {
	if v := field("a : 1\nmodel name\t: A CPU @ 2 GHz\n", "model name", "?"); v != "A CPU @ 2 GHz" {
		t.Errorf("model name = %q", v)
	}
	if v := field("", "model name", "?"); v != "?" {
		t.Errorf("no model name = %q", v)
	}
	if v := firstField("Redis server v=7.0.15 sha=0:0", "v="); v != "7.0.15" {
		t.Errorf("version = %q", v)
	}
}
