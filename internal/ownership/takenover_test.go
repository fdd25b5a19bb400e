package ownership

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/ring"
)

// takenOver checks that nothing of an incarnation's deposed tenures runs on the partitions that others have taken over from it. A member that reads the log
// late may be told so while the incarnation has a later tenure.
func (w *world) takenOver(p *proc, e TakenOver) {
	w.stats["taken over"]++
	for _, r := range w.runs {
		if r.inc == e.Inc && r.holder == nil && e.Partitions.Has(r.part) && r.token < p.m.state.Token(r.part) && w.running(r) {
			w.fail("%s#%d says that partition %d was taken over from %v, of which a delivery runs", p.name, p.id, r.part, e.Inc)
		}
	}
}

// Members name the partitions that were taken over from an owner which has read nothing of it, each once: one that is cut off from the log, not one that
// leaves.
func TestTakenOver(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(w *world, p *proc)
		want bool
	}{
		"cut off from the log": {func(w *world, p *proc) { p.cut = w.now + time.Hour }, true},
		"its tail is stuck":    {func(w *world, p *proc) { p.stall = w.now + time.Hour }, true},
		"killed":               {func(_ *world, p *proc) { p.alive = false }, true},
		"leaves":               {func(_ *world, p *proc) { p.step(Leave{}) }, false},
		"another one joins":    {func(w *world, _ *proc) { w.start("n9") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := quietWorld(t, 3, DefaultTiming(), 3)
			p := w.procs[0]
			want := newSet(simPartitions)
			for part := range ring.Partition(simPartitions) {
				if c.want && p.m.state.Owner(part) == p.inc {
					want.add(part)
				}
			}
			if c.want && want.Empty() {
				t.Fatal("it owns nothing")
			}
			told := make(map[*proc]Set)
			for _, q := range w.procs {
				told[q] = newSet(simPartitions)
			}
			w.effect = func(by *proc, e Effect) {
				over, ok := e.(TakenOver)
				if !ok {
					return
				}
				if over.Inc != p.inc {
					t.Errorf("%s names %v", by.name, over.Inc)
				}
				for part := range over.Partitions.All() {
					if told[by].Has(part) {
						t.Errorf("%s names partition %d again", by.name, part)
					}
				}
				told[by].addAll(over.Partitions)
			}
			c.do(w, p)
			w.runUntil(w.now + 10*time.Second)
			if w.failure != "" {
				t.Fatal(w.failure)
			}
			for _, q := range w.procs[1:3] {
				if !slices.Equal(told[q], want) {
					t.Errorf("%s names %x, want %x", q.name, told[q], want)
				}
			}
		})
	}
}
