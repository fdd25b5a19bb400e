package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func parseWith(args ...string) (Options, error) {
	return parse(append([]string{"--pulsar", "pulsar://there:6650", "--admin", "http://there:8080"}, args...))
}

func TestParseDefaults(t *testing.T) {
	o, err := parseWith()
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Modes) != 2 || o.Modes[0].name != modeShared || o.Modes[1].name != modeRingfence {
		t.Errorf("modes = %v, want shared and ringfence", o.Modes)
	}
	if len(o.Workloads) != 1 || o.Workloads[0] != workloadDrain || o.Handler.name != "none" {
		t.Errorf("workloads = %v, handler = %v, want drain, none", o.Workloads, o.Handler)
	}
}

func TestParseEverything(t *testing.T) {
	o, err := parseWith("--modes", "all", "--workloads", "latency,kill", "--handler", "10ms", "--measure", "30s", "--batching", "off", "--router-exec", "tools/cpu-limit.sh 100m")
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Modes) != len(alternatives()) || o.Handler.wait != 10*time.Millisecond || o.Measure != 30*time.Second {
		t.Errorf("got %d modes, handler %+v, measure %v", len(o.Modes), o.Handler, o.Measure)
	}
	if !slices.Equal(o.RouterBy, []string{"tools/cpu-limit.sh", "100m"}) {
		t.Errorf("routers are run by %q", o.RouterBy)
	}
	for _, m := range o.Modes {
		want := batchingOff
		if m.name == modeKeyShared {
			want = batchingKey // a batch of many keys would go to one consumer
		}
		if got := m.batchingFor(o); got != want {
			t.Errorf("%s batches %q, want %q", m.name, got, want)
		}
	}
}

func TestParseTellsEverythingThatIsWrong(t *testing.T) {
	_, err := parse([]string{
		"--pulsar", "", "--admin", "", "--modes", "failover,locks", "--workloads", "kill,drian", "--handler", "slow", "--distribution", "even",
		"--nodes", "1", "--size", "3", "--suite", "everything", "--output", "xml", "--stalled-keys", "10000", "--verify-events", "5", "--batch-delay", "2m", "extra",
	})
	if err == nil {
		t.Fatal("bad options are taken")
	}
	for _, want := range []string{
		`mode "locks"`, `workload "drian"`, `handler "slow"`, `distribution "even"`, "make bench", "PULSAR_ADMIN_URL", "--nodes >= 2",
		"--size >= 64", `suite "everything"`, `output "xml"`, "--stalled-keys", "--verify-events", "--batch-delay", `"extra"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not tell about %s:\n%v", want, err)
		}
	}
}

func TestEverySuiteIsValid(t *testing.T) {
	for _, name := range []string{suiteCore, suiteFull} {
		o, err := parseWith("--suite", name)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, e := range experiments(o) {
			if err := e.options.validate(); err != nil {
				t.Errorf("%s: %s: %v", name, e.name, err)
			}
			if seen[e.name] || e.name == "" {
				t.Errorf("%s: the name %q is not its own", name, e.name)
			}
			seen[e.name] = true
			if len(e.options.Modes) == 0 || e.options.Modes[0].name != modeShared {
				t.Errorf("%s: %s: modes %v, want plain SHARED first", name, e.name, e.options.Modes)
			}
		}
		if len(seen) < 4 {
			t.Errorf("%s has %d experiments", name, len(seen))
		}
	}
}

func TestSuiteKeepsToTheModesAskedFor(t *testing.T) {
	o, err := parseWith("--suite", suiteFull, "--modes", "redlock")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range experiments(o) {
		if len(e.options.Modes) != 1 || e.options.Modes[0].name != modeRedlock {
			t.Errorf("%s: modes %v, want redlock alone", e.name, e.options.Modes)
		}
	}
}

func TestBacklogOfASlowMode(t *testing.T) {
	o, err := parseWith("--events", "1000000", "--warm", "0.25")
	if err != nil {
		t.Fatal(err)
	}
	fast, slow := mode{share: 1}, mode{share: 0.1}
	if n := fast.eventsAt(o, 10); n != 1_000_000 {
		t.Errorf("a mode with a whole backlog gets %d", n)
	}
	for perSecond, want := range map[float64]int{1: eventsMin, 5000: 35_714, 1e6: 100_000} {
		if n := slow.eventsAt(o, perSecond); n != want {
			t.Errorf("at %v events/s the backlog holds %d, want %d", perSecond, n, want)
		}
	}
	if n := (mode{share: 0.0001}).events(o); n != eventsMin {
		t.Errorf("the smallest backlog holds %d", n)
	}
}
