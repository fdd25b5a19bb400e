package ownership

import (
	"slices"
	"testing"
	"time"
)

// fork makes these members read a different next record than the rest, with the same meaning.
func (w *world) fork(members []int) {
	w.brief, w.forked = true, true
	for _, i := range members {
		w.procs[i].others = map[Position]bool{w.next: true}
	}
}

func (w *world) incs() (incs []Incarnation) {
	for _, p := range w.procs {
		incs = append(incs, p.inc)
	}
	return incs
}

// TestForkedLogIsNoticed: members that have read a different record show it in their next Beat, and
// those without a majority stop within two Beats of all members, without an epoch.
func TestForkedLogIsNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		members    int
		fork, lost []int
	}{
		"one of three":                     {3, []int{1}, []int{1}},
		"two of five":                      {5, []int{0, 3}, []int{0, 3}},
		"all of three, which is no fork":   {3, []int{0, 1, 2}, nil},
		"the majority of three, same rule": {3, []int{0, 2}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := quietWorld(t, 3, DefaultTiming(), c.members)
			before, cur := w.incs(), w.procs[0].m.state.Cur
			w.fork(c.fork)
			w.runUntil(w.now + 600*time.Millisecond) // everybody has sent a Beat since the fork
			if noticed := w.stats[string(NotePrefixDiffers)] > 0; noticed != (len(c.lost) > 0) {
				t.Errorf("noticed at the first Beat: %t", noticed)
			}
			if w.procs[0].m.state != nil && w.procs[0].m.state.Cur != cur {
				t.Error("there was an epoch: this proves too little")
			}
			w.runUntil(w.now + 1100*time.Millisecond)
			var lost []int
			for i, inc := range w.incs() {
				if inc != before[i] {
					lost = append(lost, i)
				}
			}
			if !slices.Equal(lost, c.lost) || w.losses() != len(c.lost) {
				t.Errorf("lost %v, %d in all, want %v", lost, w.losses(), c.lost)
			}
			w.runUntil(w.now + 20*time.Second)
			if why := w.unrest(); why != "" {
				t.Errorf("no rest after it: %s", why)
			}
			if w.losses() != len(c.lost) {
				t.Errorf("%d lost in the end, want %d", w.losses(), len(c.lost))
			}
			w.samePrefix(t)
		})
	}
}

// losses counts incarnations that were LOST. The effect and its Note are counted as one name.
func (w *world) losses() int { return w.stats["lost"] / 2 }

// TestForkWithoutMajority: it is unknown which log is the right one. The members that notice first
// stop, so that one log is left.
func TestForkWithoutMajority(t *testing.T) {
	for name, c := range map[string]struct {
		members int
		fork    []int
	}{
		"one of two":  {2, []int{0}},
		"two of four": {4, []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := quietWorld(t, 3, DefaultTiming(), c.members)
			before := w.incs()
			w.fork(c.fork)
			w.runUntil(w.now + 1700*time.Millisecond)
			left := map[bool]bool{} // by whether they read the other record
			for i, inc := range w.incs() {
				if inc == before[i] {
					left[slices.Contains(c.fork, i)] = true
				}
			}
			if len(left) == 2 {
				t.Error("both logs are still followed")
			}
			w.runUntil(w.now + 20*time.Second)
			if why := w.unrest(); why != "" {
				t.Errorf("no rest after it: %s", why)
			}
			w.samePrefix(t)
		})
	}
}

// samePrefix fails unless all members declare one prefix hash, at one position.
func (w *world) samePrefix(t *testing.T) {
	t.Helper()
	hashes := map[Position]uint64{}
	for _, p := range w.procs {
		hash, at := p.m.state.PrefixHash, p.m.tail.last
		if was, ok := hashes[at]; hash == 0 || ok && was != hash {
			t.Errorf("%s has the prefix hash %x at %v, another has %x", p.name, hash, at, was)
		}
		hashes[at] = hash
	}
}

// TestOneFaultyBeatEndsNobody: a Beat with a wrong prefix hash is reported. It ends no member, not
// even in a group of two, or when the log has it twice. A member that keeps lying ends a group of
// two, where the liar is unknown, and no member but itself in a group of three.
func TestOneFaultyBeatEndsNobody(t *testing.T) {
	for name, c := range map[string]struct {
		members, beats, copies int
		lost                   int
	}{
		"one, of two":           {2, 1, 1, 0},
		"the same twice":        {2, 1, 2, 0},
		"five of one, of three": {3, 5, 1, 0},
		"two of one, of two":    {2, 2, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := quietWorld(t, 5, DefaultTiming(), c.members)
			w.brief = true
			m, liar := w.procs[0].m, w.procs[1]
			for seq := range uint64(c.beats) {
				liar.m.beats.seq = 1000 + seq // or it would take them for those of a copy of itself
				lie := &Beat{
					Seq: liar.m.beats.seq, Applied: m.tail.last, Cur: m.state.Cur, ViewHash: m.state.ViewHash, Ready: true,
					Draining: liar.m.draining(), Acquired: liar.m.acquired(), PrefixHash: 1,
				}
				for range c.copies {
					w.land(Record{LogVersion: LogVersionMin, Group: "g", Inc: liar.inc, Body: lie})
				}
			}
			w.runUntil(w.now + 30*time.Millisecond) // before the next Beat that tells the truth
			if got := w.stats[string(NotePrefixDiffers)]; got == 0 {
				t.Error("no member has noticed")
			}
			w.runUntil(w.now + 3*time.Second)
			if w.losses() != c.lost || w.failure != "" {
				t.Errorf("%d lost, want %d; %s", w.losses(), c.lost, w.failure)
			}
		})
	}
}

// TestPrefixIsJudgedAmongThoseWhoKnowIt: a router of an older release sends no hash, and its Snap has
// none. No member is judged by the hash until it begins anew: with a Genesis, or with the epoch by
// which the group moves to a newer log version.
func TestPrefixIsJudgedAmongThoseWhoKnowIt(t *testing.T) {
	for name, anew := range map[string]func(w *world){
		"a Genesis": func(w *world) {
			p := w.procs[0]
			w.hear(p.inc, &Genesis{
				HashID: "h", Partitions: simPartitions, Members: []Node{p.m.self()}, Table: make([]uint16, simPartitions),
			})
		},
		"a newer log version": func(w *world) {
			clear(w.digests) // of the version that they all forget now
			for _, p := range w.procs {
				p.m.state.LogVersion = LogVersionMin
				p.m.beats.changed = true
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := quietWorld(t, 7, DefaultTiming(), 3)
			w.procs[1].m.state.PrefixHash = 0 // adopted from such a router
			w.procs[2].m.state.PrefixHash = 0
			w.fork([]int{0})
			w.runUntil(w.now + 5*time.Second)
			if n := w.stats[string(NotePrefixDiffers)]; n != 0 || w.losses() != 0 {
				t.Errorf("%d differ, %d lost: there was nothing to compare", n, w.losses())
			}
			anew(w)
			w.runUntil(w.now + 10*time.Second)
			if w.losses() != 0 || w.failure != "" {
				t.Errorf("%d lost; %s", w.losses(), w.failure)
			}
			w.samePrefix(t)
		})
	}
}

// TestJoiningMemberKnowsThePrefix: a member that adopts a Snap declares the same hash as the
// others.
func TestJoiningMemberKnowsThePrefix(t *testing.T) {
	w := quietWorld(t, 11, DefaultTiming(), 2)
	w.start("late")
	w.runUntil(w.now + 10*time.Second)
	if len(w.procs[0].m.state.Members) != 3 || w.failure != "" {
		t.Fatalf("it is no member: %s", w.failure)
	}
	w.samePrefix(t)
}

// TestPrefixesAreBounded: positions older than the remembered records are not judged, and positions
// between two of them are not in our log.
func TestPrefixesAreBounded(t *testing.T) {
	var p prefixes
	for i := range int64(5 * prefixesMax) {
		p.add(Position{Ledger: 1, Entry: 2 * i}, uint64(i)+1)
	}
	if len(p.list) > 2*prefixesMax || cap(p.list) > 4*prefixesMax {
		t.Errorf("%d are kept, room for %d", len(p.list), cap(p.list))
	}
	newest := int64(5*prefixesMax - 1)
	for name, c := range map[string]struct {
		at   int64
		hash uint64
		ok   bool
	}{
		"the newest":                 {2 * newest, uint64(newest) + 1, true},
		"the oldest that must be":    {2 * (newest - prefixesMax + 1), uint64(newest-prefixesMax) + 2, true},
		"an old one":                 {0, 0, false},
		"one that we have not":       {2*newest - 1, 0, true},
		"one that lies ahead of us ": {2*newest + 1, 0, true},
	} {
		if hash, ok := p.at(Position{Ledger: 1, Entry: c.at}); hash != c.hash || ok != c.ok {
			t.Errorf("%s: %d, %t, want %d, %t", name, hash, ok, c.hash, c.ok)
		}
	}
}
