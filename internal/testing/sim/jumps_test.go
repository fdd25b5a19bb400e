package sim

import (
	"testing"
	"time"
)

// TestClockJumps runs clusters whose clocks jump forward beyond all assumptions, as those of a virtual machine can: handlers may overlap, which the fences of their writes show,
// and what an act does to a key may meet an earlier delivery, but nothing is lost, nothing panics, and the cluster comes to rest. Half of the runs have schedules, and half operators.
func TestClockJumps(t *testing.T) {
	total := runSeeds(t, "ClockJumps", 30, func(w *world) {
		if w.wild {
			return
		}
		w.wild = true
		w.after(10*time.Second, w.jumpOn)
		if w.chance(0.5) {
			schedules(w)
		}
		if w.chance(0.5) {
			withActs(w)
		}
	})
	for _, k := range []string{"clock_jumped", "wild_overlap", "firing_started", "parked", "act_skipped_ended"} {
		if total[k] == 0 && *seedFlag == 0 {
			t.Errorf("no %s: this run proves too little", k)
		}
		t.Logf("%-22s %d", k, total[k])
	}
}

// jumpOn lets the clock of a machine jump.
func (w *world) jumpOn() {
	if w.troubles {
		h, d := w.hosts[w.rng.IntN(len(w.hosts))], w.between(0, 5*time.Second)
		if w.chance(0.3) {
			d = w.between(0, 1000*time.Hour)
		}
		w.count("clock_jumped")
		w.tracef("CLOCK of a machine jumps by %v", d)
		h.offset += d
		w.allowLost()
		w.spurious = true
		for _, m := range w.live {
			m.touch(30 * time.Second)
			if m.host == h {
				m.boxesAt = 0 // its mailboxes' Tick is due by the clock: the one under way comes too late
			}
		}
	}
	w.after(w.between(0, 8*time.Second), w.jumpOn)
}
