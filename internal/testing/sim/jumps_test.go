package sim

import (
	"testing"
	"time"
)

// TestClockJumps runs clusters whose clocks jump forward beyond all assumptions, as those of a virtual machine can: handlers may overlap, which the fences of their writes show,
// but nothing is lost, nothing panics, and the cluster comes to rest.
func TestClockJumps(t *testing.T) {
	total := map[string]int{}
	for seed := range uint64(8) {
		r := runScene(seed+1, 3*time.Minute, false, func(w *world) {
			if !w.wild {
				w.wild = true
				w.after(10*time.Second, w.jumpOn)
			}
		})
		if r.Failure != "" {
			t.Errorf("seed %d: %s", seed+1, r.Failure)
		}
		for k, v := range r.Stats {
			total[k] += v
		}
	}
	if total["clock_jumped"] == 0 || total["wild_overlap"] == 0 {
		t.Errorf("%d jumps and %d overlaps: this run proves too little", total["clock_jumped"], total["wild_overlap"])
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
