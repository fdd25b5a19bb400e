package ownership

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/ring"
)

// quietWorld is a group of n members that has come to rest, without any fault.
func quietWorld(t *testing.T, seed uint64, timing Timing, n int) *world {
	t.Helper()
	w := newWorld(seed, timing)
	w.brief = true
	for i := range n {
		w.start(fmt.Sprintf("n%d", i))
	}
	for w.now < time.Minute && (w.now < 12*time.Second || w.unrest() != "") && w.failure == "" {
		w.runUntil(w.now + 100*time.Millisecond)
	}
	w.runUntil(w.now + 5*time.Second) // handoffs of the joins are over
	if w.failure != "" || len(w.procs[0].m.state.Members) != n {
		t.Fatalf("seed %d: %s, members %v", seed, w.failure, w.procs[0].m.state.Members)
	}
	return w
}

// servedAgain runs until every partition is served and returns how long that took.
func (w *world) servedAgain(t *testing.T) time.Duration {
	t.Helper()
	from := w.now
	for w.now < from+20*time.Second && w.failure == "" {
		w.runUntil(w.now + time.Millisecond)
		open := 0
		for _, p := range w.procs {
			for part := range ring.Partition(simPartitions) {
				if p.alive && p.gates[part].Gate == Open && p.lease.MayDispatch(Open, p.local(w.now)) {
					open++
				}
			}
		}
		if open == simPartitions {
			return w.now - from
		}
	}
	t.Fatalf("not served again: %s", w.failure)
	return 0
}

func summary(d []time.Duration) string {
	slices.Sort(d)
	round := func(i int) time.Duration { return d[i].Round(time.Millisecond) }
	return fmt.Sprintf("min %v p50 %v max %v", round(0), round(len(d)/2), round(len(d)-1))
}

// TestColdStartTime: six Hellos, jitter, and the wait for whatever ran before.
func TestColdStartTime(t *testing.T) {
	var times []time.Duration
	for seed := range uint64(20) {
		w := newWorld(seed, DefaultTiming())
		w.brief = true
		w.start("a")
		times = append(times, w.servedAgain(t))
	}
	t.Log("cold start:", summary(times))
	if times[len(times)-1] > 8*time.Second || times[0] < 6*time.Second {
		t.Errorf("cold start took %s, want about 7 s", summary(times))
	}
}

// TestTakeoverTime: SIGKILL, with and without evidence at once (section 7).
func TestTakeoverTime(t *testing.T) {
	for name, c := range map[string]struct {
		evidence bool
		max      time.Duration
	}{
		"evidence":    {true, 2250 * time.Millisecond},
		"no_evidence": {false, 2750 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var times []time.Duration
			for seed := range uint64(25) {
				w := quietWorld(t, seed, DefaultTiming(), 3)
				victim := w.procs[1]
				w.runUntil(w.now + w.between(0, time.Second))
				victim.alive = false
				victim.stream++
				for _, p := range []*proc{w.procs[0], w.procs[2]} {
					if c.evidence {
						p.stepAfter(5*time.Millisecond, Evidence{victim.inc, ReachDead})
					}
				}
				times = append(times, w.servedAgain(t))
			}
			t.Logf("owned again after a kill: %s", summary(times))
			if times[0] < 1500*time.Millisecond || times[len(times)-1] > c.max {
				t.Errorf("owned again after %s, want 1.6 s … %v", summary(times), c.max)
			}
		})
	}
}

// TestRestartTime: a member is killed, and a new one joins before the victim is found silent. The new
// member must not delay the takeover by its own wait (rule 4), neither under the victim's name nor
// under another one, and has its share soon after.
func TestRestartTime(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
	}{
		{"n1", 0},
		{"n1", time.Second},
		{"n3", 0},
		{"n3", 700 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%s after %v", c.name, c.after), func(t *testing.T) {
			var times []time.Duration
			for seed := range uint64(15) {
				w := quietWorld(t, seed, DefaultTiming(), 3)
				killed := w.now
				w.procs[1].kill(true)
				w.runUntil(w.now + c.after)
				p := w.start(c.name)
				p.app = true
				p.step(AppReady{true})
				w.servedAgain(t)
				times = append(times, w.now-killed)
				for w.now < killed+4*time.Second && !p.m.isMember() {
					w.runUntil(w.now + 10*time.Millisecond)
				}
				if !p.m.isMember() {
					t.Errorf("seed %d: the joining member is no member after %v", seed, w.now-killed)
				}
			}
			t.Logf("owned again: %s", summary(times))
			if times[len(times)-1] > 2500*time.Millisecond {
				t.Errorf("owned again after %s, want 2.5 s at most", summary(times))
			}
		})
	}
}

// TestHandoffIsNotTimed: one append and one Beat, no confirming Beat (attack 16).
func TestHandoffIsNotTimed(t *testing.T) {
	var times []time.Duration
	for seed := range uint64(25) {
		w := quietWorld(t, seed, DefaultTiming(), 3)
		w.idle = true // no handler runs
		w.runUntil(w.now + time.Second)
		confirmed := w.stats["confirm"]
		w.procs[1].step(Leave{})
		from := w.now
		for w.procs[1].ended == "" && w.now < from+10*time.Second && w.failure == "" {
			w.runUntil(w.now + time.Millisecond)
		}
		if w.procs[1].ended != "left" || w.failure != "" {
			t.Fatalf("seed %d: %q, %s", seed, w.procs[1].ended, w.failure)
		}
		w.servedAgain(t)
		times = append(times, w.now-from)
		if w.stats["confirm"] != confirmed {
			t.Errorf("seed %d: a graceful handoff waited for a confirming Beat", seed)
		}
	}
	t.Logf("graceful leave to last partition open: %s", summary(times))
	if times[len(times)-1] > 100*time.Millisecond {
		t.Errorf("a graceful handoff took %s, want about 50 ms", summary(times))
	}
}

// TestManyLeaveAtOnce: members that leave at the same moment, or lose their applications, need an epoch each for their
// first proposals and a few for all of them together, and not one after another.
func TestManyLeaveAtOnce(t *testing.T) {
	for _, many := range []int{1, 2, 10, 20} {
		for name, in := range map[string]Input{"leave": Leave{}, "app": AppReady{}} {
			t.Run(fmt.Sprint(many, name), func(t *testing.T) {
				w := quietWorld(t, 5, DefaultTiming(), many+1)
				w.idle = true // no handler runs
				w.runUntil(w.now + time.Second)
				epochs, last, from := 0, w.now, w.now
				w.landed = func(_ Position, r Record) {
					if _, ok := r.Body.(*Epoch); ok {
						epochs, last = epochs+1, w.now
					}
				}
				for _, p := range w.procs[1:] {
					p.step(in)
				}
				if in == (AppReady{}) {
					from += w.timing.AppAbsence
				}
				w.runUntil(w.now + 20*time.Second)
				if got := len(w.procs[0].m.state.Members); got != 1 || w.failure != "" {
					t.Fatalf("%d members: %s %s", got, w.unrest(), w.failure)
				}
				t.Logf("%d proposals in %v", epochs, last-from)
				if most := many + many/5 + 3; many == 1 && epochs != 1 || epochs > most {
					t.Errorf("%d epochs were proposed, want at most %d", epochs, most)
				}
				if last-from > time.Second || many == 1 && last-from > 50*time.Millisecond {
					t.Errorf("the last proposal came after %v", last-from)
				}
			})
		}
	}
}

// TestNothingMovesWithoutAFault: handlers of any length and bursts of Beats remove no member.
func TestNothingMovesWithoutAFault(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(seed, DefaultTiming())
		w.mixed = seed%2 == 1
		n := 1 + int(seed)%7
		for i := range n {
			w.start(fmt.Sprintf("n%d", i))
		}
		w.runUntil(20 * time.Second)
		epochs := w.stats["epoch"]
		w.runUntil(3 * time.Minute)
		for _, k := range []string{"removed", "lost", "exit", "lease_lapsed", "reader_reopened"} {
			if w.stats[k] > 0 {
				t.Errorf("seed %d: %d %s without a fault", seed, w.stats[k], k)
			}
		}
		if w.stats["genesis"] > n*n || w.stats["epoch"] != epochs || w.unrest() != "" || w.failure != "" {
			t.Errorf("seed %d: something moved without a fault: %s %s", seed, w.unrest(), w.failure)
		}
	}
}

// TestRollingRestartMovesAwayAndBack: members restart in turn, under their names. A
// partition moves when its own member does, even if the placement would shuffle all.
func TestRollingRestartMovesAwayAndBack(t *testing.T) {
	timing := DefaultTiming()
	w := newWorld(7, timing)
	w.brief = true
	w.place = func(names []string) ([]uint16, error) {
		table := make([]uint16, simPartitions)
		for p := range table {
			table[p] = uint16((p + 3*len(names)) % len(names))
		}
		return table, nil
	}
	names := []string{"a", "b", "c", "d", "e"}
	rest := func() {
		t.Helper()
		w.servedAgain(t)
		w.runUntil(w.now + 5*time.Second)
	}
	for _, name := range names {
		w.start(name)
	}
	for len(w.procs[0].membersNow()) < len(names) && w.now < time.Minute {
		w.runUntil(w.now + time.Second)
	}
	rest()
	owners := func() (owners [simPartitions]string) {
		for _, p := range w.procs {
			for part := range owners {
				if p.alive && p.gates[part].Gate == Open {
					owners[part] = p.name
				}
			}
		}
		return owners
	}
	first, before, moves := owners(), owners(), [simPartitions]int{}
	note := func() {
		now := owners()
		for part := range moves {
			if now[part] != before[part] {
				moves[part]++
			}
		}
		before = now
	}
	for _, name := range names {
		for _, p := range w.procs {
			if p.alive && p.name == name && p.ended == "" {
				p.step(Leave{})
				rest()
				note()
				p.kill(true)
			}
		}
		w.start(name)
		rest()
		note()
	}
	if w.failure != "" {
		t.Fatal(w.failure)
	}
	if before != first {
		t.Errorf("owners %v, were %v: a name does not get its partitions back", before, first)
	}
	for part, n := range moves {
		if n != 2 {
			t.Errorf("partition %d has moved %d times, want away and back", part, n)
		}
	}
}

func (p *proc) membersNow() []Incarnation {
	if p.m.state == nil {
		return nil
	}
	return p.m.state.Members
}
