package ownership

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/ring"
)

// takenOver checks that nothing of an incarnation runs on the partitions that others have taken over from it, as far as
// a member can know that reads the log late: the incarnation may have a later tenure that this member has not read of.
func (w *world) takenOver(p *proc, e TakenOver) {
	w.stats["taken over"]++
	for _, r := range w.runs {
		if r.inc == e.Inc && r.holder == nil && e.Partitions.Has(r.part) && r.token < p.m.state.Token(r.part) && w.running(r) {
			w.fail("%s#%d says that partition %d was taken over from %v, of which a delivery runs", p.name, p.id, r.part, e.Inc)
		}
	}
}

// Members name the partitions that were taken over from an owner which has read nothing of it, each once: one that is
// cut off from the log, not one that leaves.
func TestTakenOver(t *testing.T) {
	for name, c := range map[string]struct {
		do func(w *world, p, other *proc)
		by []int // the members that name them
	}{
		"cut off from the log": {func(w *world, p, _ *proc) { p.cut = w.now + time.Hour }, []int{1, 2}},
		"its tail is stuck":    {func(w *world, p, _ *proc) { p.stall = w.now + time.Hour }, []int{1, 2}},
		"killed":               {func(_ *world, p, _ *proc) { p.alive = false }, []int{1, 2}},
		"cut off, and for a while so is another member":  {func(w *world, p, other *proc) { p.cut, other.cut = w.now+time.Hour, w.now+4*time.Second }, []int{1, 2}},
		"back in the log before another member reads on": {func(w *world, p, other *proc) { p.cut, other.cut = w.now+4*time.Second, w.now+7*time.Second }, []int{2}},
		"leaves":            {func(_ *world, p, _ *proc) { p.step(Leave{}) }, nil},
		"another one joins": {func(w *world, _, _ *proc) { w.start("n9") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := quietWorld(t, 3, DefaultTiming(), 3)
			p := w.procs[0]
			owned := newSet(simPartitions)
			for part := range ring.Partition(simPartitions) {
				if p.m.state.Owner(part) == p.inc {
					owned.add(part)
				}
			}
			if owned.Empty() {
				t.Fatal("it owns nothing")
			}
			told := make(map[*proc]Set)
			for _, q := range w.procs {
				told[q] = newSet(simPartitions)
			}
			w.effect = func(by *proc, e Effect) {
				over, ok := e.(TakenOver)
				if !ok || over.Inc != p.inc {
					return
				}
				for part := range over.Partitions.All() {
					if told[by].Has(part) {
						t.Errorf("%s names partition %d again", by.name, part)
					}
				}
				told[by].addAll(over.Partitions)
			}
			c.do(w, p, w.procs[1])
			w.runUntil(w.now + 12*time.Second)
			if w.failure != "" {
				t.Fatal(w.failure)
			}
			for i, q := range w.procs[:3] {
				want := newSet(simPartitions)
				if slices.Contains(c.by, i) {
					want = owned
				}
				if !slices.Equal(told[q], want) {
					t.Errorf("%s names %x, want %x", q.name, told[q], want)
				}
			}
		})
	}
}
