package sim

import (
	"strings"
	"testing"
	"time"
)

// TestSchedules runs clusters whose applications declare schedules through all faults: firings run at their owners, one at a time with everything else of
// their keys, none before its time or before its successor is safe, and when the cluster has come to rest, none is missing.
func TestSchedules(t *testing.T) {
	first, n := *firstFlag, max(8, *seedsFlag/3)
	if first == 0 {
		first = 1
	}
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	total := map[string]int{}
	for i := range n {
		seed := first + uint64(i)
		r := runScene(seed, 3*time.Minute, *seedFlag != 0, schedules)
		if *seedFlag != 0 {
			t.Log("\n" + strings.Join(r.Trace, "\n"))
		}
		if r.Failure != "" {
			t.Fatalf("%s\nreplay with: go test ./internal/testing/sim -run Schedules -sim.seed=%d -v", r.Failure, seed)
		}
		for k, v := range r.Stats {
			total[k] += v
		}
	}
	for _, k := range []string{"firing_armed", "firing_started", "firing_put_off", "firing_dropped", "firing_arm_failed", "firing_started_again", "lost", "redelivered"} {
		if total[k] == 0 && *seedFlag == 0 {
			t.Errorf("no %s in %d seeds: this run proves too little", k, n)
		}
		t.Logf("%-22s %d", k, total[k])
	}
}
