package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const contentionOutput = `goos: linux
pkg: github.com/ringfence/router/forward
BenchmarkContention/forward_table         	 1000	 51200 ns/op	 2.000 cores	 256.0 events/op
BenchmarkContention/forward_table-2       	 1000	 64000 ns/op	 2.000 cores	 256.0 events/op
BenchmarkContention/forward_table-2       	 1000	 25600 ns/op	 2.000 cores	 256.0 events/op
BenchmarkContention/forward_table-4       	 1000	 25600 ns/op	 2.000 cores	 256.0 events/op
PASS
BenchmarkContention/queue     	 1000	 5120 ns/op	 2.000 cores	 256.0 events/op
BenchmarkContention/queue-2   	 1000	 5120 ns/op	 2.000 cores	 256.0 events/op
BenchmarkContention/queue-4   	 1000	 10240 ns/op	 2.000 cores	 256.0 events/op
ok  	github.com/ringfence/router/forward	1.0s
`

// Of repeated runs the fastest counts; the chart is relative to one core, and names the real cores.
func TestContentionChart(t *testing.T) {
	s, err := readScaling(strings.NewReader(contentionOutput))
	if err != nil {
		t.Fatal(err)
	}
	c := s.chart()
	if len(c.parts) != 2 || c.parts[0].name != "forward table" || c.parts[0].values[1] != 2 || c.parts[1].values[2] != 0.5 {
		t.Errorf("parts = %v, want twice the throughput of the table with 2, half of the queue's with 4", c.parts)
	}
	if c.mark != 1 || !strings.Contains(c.names[0], "2, the real cores") {
		t.Errorf("mark = %v, %q: want the line at 2 cores", c.mark, c.names[0])
	}
	if want := "| ns per event, 2 real cores | 1 | 2 | 4 |\n|---|---|---|---|\n| forward table | 200 | 100 | 100 |\n| queue | 20 | 20 | 40 |\n"; s.table() != want {
		t.Errorf("table:\n%swant:\n%s", s.table(), want)
	}
	name := filepath.Join(t.TempDir(), "c.svg")
	if err := c.save(name); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(name); err != nil || !strings.Contains(string(b), "preemption") {
		t.Errorf("the picture does not explain the line (%v)", err)
	}
}

func TestContentionOutputThatIsIncomplete(t *testing.T) {
	for name, from := range map[string]string{
		"empty":        "PASS\n",
		"one number":   "BenchmarkContention/q 1 5 ns/op 2 cores 256 events/op\n",
		"without it":   strings.ReplaceAll(contentionOutput, "cores", "x"),
		"not complete": strings.Replace(contentionOutput, "BenchmarkContention/queue-4", "BenchmarkOther/queue-4", 1),
	} {
		if _, err := readScaling(strings.NewReader(from)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
