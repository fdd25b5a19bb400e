package sim

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/pipeline/schedule"
)

// TestSchedules runs clusters whose applications declare schedules through all faults: firings run at their owners, one at a time with everything else of
// their keys, none before its time or before its successor is safe, and when the cluster has come to rest, none is missing.
func TestSchedules(t *testing.T) {
	total := runSeeds(t, "Schedules", 1, schedules)
	for _, k := range []string{"firing_armed", "firing_started", "firing_put_off", "firing_dropped", "firing_arm_failed", "firing_started_again", "lost", "redelivered"} {
		if total[k] == 0 && *seedFlag == 0 {
			t.Errorf("no %s: this run proves too little", k)
		}
		t.Logf("%-22s %d", k, total[k])
	}
}

// TestFailingFirings is TestSchedules with handlers that reject many firings, and want many of them again later, by way of the retry topic. Two thirds of the runs
// have operators, and half of them difficult workers.
func TestFailingFirings(t *testing.T) {
	total := runSeeds(t, "FailingFirings", 1, func(w *world) {
		if w.agenda != nil {
			return
		}
		schedules(w)
		w.agenda.fails = 0.05 + 0.15*w.rng.Float64()
		if w.chance(2.0 / 3) {
			withActs(w)
		}
		if w.chance(0.5) {
			withDifficultWorkers(w)
		}
	})
	for _, k := range []string{"firing_started", "firing_put_off", "firing_rejected", "firing_wanted_later", "firing_dead", "parked", "unparked", "redelivered"} {
		if total[k] == 0 && *seedFlag == 0 {
			t.Errorf("no %s: this run proves too little", k)
		}
		t.Logf("%-22s %d", k, total[k])
	}
}

// runSeeds runs a scene for eight seeds from the first one on, or for those that the flags say, and returns the counts of all runs.
func runSeeds(t *testing.T, test string, first uint64, change scene) (total map[string]int) {
	first, n := cmp.Or(*firstFlag, first), max(8, *seedsFlag/3)
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	total = map[string]int{}
	for i := range n {
		seed := first + uint64(i)
		r := runScene(seed, 3*time.Minute, *seedFlag != 0, change)
		if *seedFlag != 0 {
			t.Log("\n" + strings.Join(r.Trace, "\n"))
		}
		if r.Failure != "" {
			t.Errorf("%s\nreplay with: go test ./internal/testing/sim -run %s -sim.seed=%d -v", r.Failure, test, seed)
		}
		for k, v := range r.Stats {
			total[k] += v
		}
	}
	return total
}

// TestLostFiringIsSeen: a copy of a firing may be acked if a handler has done it, if its policy drops it, or if its dead letter is safe; not because a member takes it for a duplicate.
func TestLostFiringIsSeen(t *testing.T) {
	for name, test := range map[string]struct {
		ends func(w *world, f schedule.Firing, ev *event.Event)
		lost bool
	}{
		"nothing":       {func(*world, schedule.Firing, *event.Event) {}, true},
		"a duplicate":   {func(w *world, f schedule.Firing, _ *event.Event) { w.agenda.drops(f, schedule.Duplicate) }, true},
		"superseded":    {func(w *world, f schedule.Firing, _ *event.Event) { w.agenda.drops(f, schedule.Superseded) }, false},
		"a dead letter": {func(w *world, _ schedule.Firing, ev *event.Event) { w.broker.deadLetter(ev) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1, params{partitions: 6})
			schedules(w)
			d := w.agenda.definitions[0]
			at, ok := d.Next(w.agenda.now())
			if !ok {
				t.Fatal("the schedule has no firing")
			}
			ev := &event.Event{ID: firingID(d, at), Key: event.Key(schedule.KeyOf(d.Name)), Round: 1}
			for range 2 { // the second copy comes when the first is gone
				w.agenda.deliver(ev, at)
				test.ends(w, schedule.Firing{Name: d.Name, DefinitionID: d.ID(), Time: at}, ev)
				w.broker.gone(ev)
				test.ends = func(*world, schedule.Firing, *event.Event) {}
			}
			if lost := w.failure != ""; lost != test.lost {
				t.Errorf("failure = %q, want one: %v", w.failure, test.lost)
			}
		})
	}
}
