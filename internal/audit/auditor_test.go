package audit

import (
	"cmp"
	"slices"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

const us, ms = time.Microsecond, time.Millisecond

// told is a handling as it truly was, by one clock that sees all, and as its process tells it.
type told struct {
	by         int
	key        uint64
	start, end time.Duration
}

// overlaps reports whether both ran for some time.
func (x told) overlaps(y told) bool {
	within := func(x, y told) bool { return x.start == x.end && y.start < x.start && x.end < y.end }
	return x.key == y.key && (min(x.end, y.end) > max(x.start, y.start) || within(x, y) || within(y, x))
}

// TestAuditorAgainstTheTruth: processes with clocks of their own tell of handlings in any order. Every overlap that is found is true, and
// a true one is found, or the later told of the two is counted as undecided.
func TestAuditorAgainstTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		processes := rapid.IntRange(1, 4).Draw(t, "processes")
		offsets, errors, sources := make([]time.Duration, processes), make([]time.Duration, processes), make([]Source, processes)
		memory := rapid.SampledFrom([]int{1 << 10, 4 << 10, 1 << 20}).Draw(t, "memory")
		a := New(memory)
		for i := range processes {
			if i > 0 && rapid.Bool().Draw(t, "own clock") {
				offsets[i] = rapid.Custom(func(t *rapid.T) time.Duration { return time.Duration(rapid.IntRange(-1e6, 1e6).Draw(t, "offset")) * us }).Draw(t, "offset")
				errors[i] = time.Duration(rapid.IntRange(0, 3000).Draw(t, "error")) * us
			} // else it is on the judge's machine
			sources[i] = Source{Name: "p", Clock: ClockID{1, byte(i)}}
			if offsets[i] == 0 && errors[i] == 0 {
				sources[i].Clock = ClockID{1}
			}
		}
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) told {
			start := time.Hour + time.Duration(rapid.IntRange(0, 40_000).Draw(t, "start"))*us
			return told{
				rapid.IntRange(0, processes-1).Draw(t, "by"), uint64(rapid.IntRange(0, 5).Draw(t, "key")),
				start, start + time.Duration(rapid.IntRange(0, 4000).Draw(t, "length"))*us,
			}
		}), 0, 120).Draw(t, "handlings")
		for i, h := range all {
			id, ok := a.Register(sources[h.by])
			if !ok {
				t.Fatal("no room for a source")
			}
			// The judge's estimate of the offset is off by at most the error that it knows of.
			m := Mapping{}
			if errors[h.by] > 0 || offsets[h.by] != 0 {
				wrong := time.Duration(rapid.IntRange(-1000, 1000).Draw(t, "wrong")) * errors[h.by] / 1000
				m = Mapping{Shift: offsets[h.by] + wrong, StartSlack: errors[h.by], EndSlack: errors[h.by]}
			}
			before := a.Counts()
			told := Handling{Key: partition.KeyHash(h.key), Fence: event.Fence{Turn: uint64(i)}, Start: h.start - offsets[h.by], End: h.end - offsets[h.by]}
			found := a.Add(id, m, []Handling{told}, nil)
			truth := 0
			for _, other := range all[:i] {
				if h.overlaps(other) {
					truth++
				}
			}
			after := a.Counts()
			overlaps, undecided := int(after.Overlaps-before.Overlaps), sum(after.Undecided)-sum(before.Undecided)
			if overlaps > truth {
				t.Fatalf("%d overlaps found, %d are true", overlaps, truth)
			}
			if overlaps < truth && undecided == 0 {
				t.Fatalf("%d of %d overlaps found, and nothing is undecided", overlaps, truth)
			}
			if len(found) != min(overlaps, findingsMax) {
				t.Fatalf("%d overlaps, %d shown", overlaps, len(found))
			}
			for _, f := range found {
				if f.For <= 0 || f.First.Key != told.Key || f.Second.Key != told.Key {
					t.Fatalf("finding %+v for %+v", f, told)
				}
			}
		}
	})
}

func sum(undecided [reasons]uint64) (all uint64) {
	for _, n := range undecided {
		all += n
	}
	return all
}

// TestOneMachineLeavesNothingUndecided: with one clock and enough memory every pair is decided, in whatever order the handlings are told.
func TestOneMachineLeavesNothingUndecided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(1 << 20)
		id, _ := a.Register(Source{Clock: ClockID{1}})
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) told {
			start := time.Duration(rapid.IntRange(1, 1000).Draw(t, "start")) * us
			return told{0, uint64(rapid.IntRange(0, 9).Draw(t, "key")), start, start + time.Duration(rapid.IntRange(0, 50).Draw(t, "length"))*us}
		}), 0, 200).Draw(t, "handlings")
		truth := uint64(0)
		for i, h := range all {
			for _, other := range all[:i] {
				if h.overlaps(other) {
					truth++
				}
			}
			a.Add(id, Mapping{}, []Handling{{Key: partition.KeyHash(h.key), Fence: event.Fence{Turn: uint64(i)}, Start: h.start, End: h.end}}, nil)
		}
		if c := a.Counts(); c.Overlaps != truth || sum(c.Undecided) != 0 || c.Handlings != uint64(len(all)) {
			t.Fatalf("%+v, want %d overlaps", c, truth)
		}
	})
}

// A key whose handlers follow one another costs one step each, however many there were and whatever else is in its chain.
func TestFollowingHandlingsAreCheap(t *testing.T) {
	a := New(1 << 20)
	id, _ := a.Register(Source{Clock: ClockID{1}})
	for i := range 100_000 {
		at := time.Duration(i+1) * us
		a.Add(id, Mapping{}, []Handling{{Key: 7, Fence: event.Fence{Turn: uint64(i)}, Start: at, End: at + us}}, nil)
	}
	if c := a.Counts(); c.Overlaps != 0 || sum(c.Undecided) != 0 {
		t.Fatalf("%+v", c)
	}
	late := Handling{Key: 7, Fence: event.Fence{Turn: 1 << 40}, Start: 99_990 * us, End: 99_991*us + 1}
	if found := a.Add(id, Mapping{}, []Handling{late}, nil); len(found) != 2 || found[1].First.Fence.Turn != 99_989 {
		t.Fatalf("found %+v", found)
	}
	old := Handling{Key: 7, Fence: event.Fence{Turn: 1 << 41}, Start: us, End: 2 * us}
	if a.Add(id, Mapping{}, []Handling{old}, nil); a.Counts().Undecided[Crowded]+a.Counts().Undecided[Forgotten] == 0 {
		t.Errorf("a handling from before the memory began counts as compared: %+v", a.Counts())
	}
}

// Keys that share a chain are compared each with its own handlings.
func TestManyKeysShareTheChains(t *testing.T) {
	const keys = 3 * headsMax
	a := New(16 << 20)
	id, _ := a.Register(Source{Clock: ClockID{1}})
	for round := range uint64(2) {
		for i := range keys {
			at := time.Duration(i) * us
			a.Add(id, Mapping{}, []Handling{{Key: partition.KeyHash(i), Fence: event.Fence{Turn: round}, Start: at, End: at + ms}}, nil)
		}
	}
	if c := a.Counts(); c.Overlaps != keys || sum(c.Undecided) != 0 {
		t.Errorf("%+v, want %d overlaps", c, keys)
	}
}

// A report that comes twice is one handling.
func TestTheSameHandlingTwice(t *testing.T) {
	a := New(1 << 16)
	id, _ := a.Register(Source{Clock: ClockID{1}})
	h := []Handling{{Key: 1, Fence: event.Fence{Token: 2, Turn: 3}, Start: us, End: ms}}
	a.Add(id, Mapping{}, h, nil)
	if found := a.Add(id, Mapping{}, h, nil); len(found) != 0 {
		t.Errorf("found %+v", found)
	}
}

func TestImplausible(t *testing.T) {
	a := New(1 << 16)
	id, _ := a.Register(Source{})
	a.Add(id, Mapping{}, []Handling{{Start: 2, End: 1}}, nil)
	if c := a.Counts(); c.Undecided[Implausible] != 1 || c.Handlings != 0 {
		t.Errorf("%+v", c)
	}
}

// Sources come and go with the processes of a group. Those whose handlings are forgotten make room, the judge's own stays.
func TestSourcesMakeRoom(t *testing.T) {
	a := New(2 << 10)
	self, _ := a.Register(Source{Name: "self"})
	for i := range 3 * sourcesMax {
		id, ok := a.Register(Source{Name: "peer", Clock: ClockID{byte(i), byte(i >> 8)}})
		if !ok || id == self {
			t.Fatalf("source %d: id %d, %v", i, id, ok)
		}
		a.Add(id, Mapping{}, []Handling{{Key: partition.KeyHash(i), Start: time.Duration(i), End: time.Duration(i)}}, nil)
	}
	if got, _ := a.Register(Source{Name: "self"}); got != self {
		t.Errorf("own id is %d, was %d", got, self)
	}
}

// A source that has handlings in memory keeps its id, so that none is compared by the clock of another one.
func TestSourcesWithHandlingsKeepTheirIDs(t *testing.T) {
	a := New(1 << 20)
	a.Register(Source{Name: "self"})
	source := func(i int) Source { return Source{Name: "peer", Clock: ClockID{byte(i), byte(i >> 8)}} }
	ids := map[SourceID]bool{}
	for i := range sourcesMax - 1 {
		id, ok := a.Register(source(i))
		if !ok || ids[id] {
			t.Fatalf("source %d: id %d, %v", i, id, ok)
		}
		ids[id] = true
		a.Add(id, Mapping{}, []Handling{{Key: partition.KeyHash(i), Start: us, End: ms}}, nil)
	}
	if id, ok := a.Register(source(sourcesMax)); ok {
		t.Errorf("one more has the id %d", id)
	}
	if _, ok := a.Register(source(0)); !ok {
		t.Error("one that is registered has no id")
	}
}

// Processes whose clocks are not known are not on one machine: what their clocks say alike may not be alike.
func TestUnknownClocksAreNotTheSame(t *testing.T) {
	a := New(1 << 16)
	x, _ := a.Register(Source{Name: "x"})
	y, _ := a.Register(Source{Name: "y"})
	unsure := Mapping{StartSlack: time.Second, EndSlack: time.Second}
	a.Add(x, unsure, []Handling{{Key: 1, Fence: event.Fence{Turn: 1}, Start: time.Minute, End: time.Minute + ms}}, nil)
	found := a.Add(y, unsure, []Handling{{Key: 1, Fence: event.Fence{Turn: 2}, Start: time.Minute, End: time.Minute + ms}}, nil)
	if c := a.Counts(); len(found) > 0 || c.Overlaps != 0 || c.Undecided[Clocks] != 1 {
		t.Errorf("%+v %+v, want it undecided", found, c)
	}
}

func TestSince(t *testing.T) {
	a := New(1 << 16)
	id, _ := a.Register(Source{Clock: ClockID{1}})
	other, _ := a.Register(Source{Clock: ClockID{2}})
	for i := range 20 {
		h := Handling{Key: partition.KeyHash(i), Partition: partition.ID(i % 2), Start: time.Duration(i) * ms, End: time.Duration(i+1) * ms}
		a.Add(id, Mapping{}, []Handling{h}, nil)
		a.Add(other, Mapping{}, []Handling{h}, nil)
	}
	even := func(p partition.ID) bool { return p == 0 }
	got, omitted := a.Since(id, 10*ms, even, 3, nil)
	keys := make([]int, 0, 3)
	for _, h := range got {
		keys = append(keys, int(h.Key))
	}
	if !slices.Equal(keys, []int{18, 16, 14}) || omitted != 13*ms {
		t.Errorf("keys %v, omitted until %v", keys, omitted)
	}
	slices.SortFunc(got, func(a, b Handling) int { return cmp.Compare(a.Start, b.Start) })
}

// An event must not allocate, and the memory is what was asked for.
func TestMemory(t *testing.T) {
	a := New(1 << 20)
	id, _ := a.Register(Source{Clock: ClockID{1}})
	h := make([]Handling, 1)
	i := 0
	if allocs := testing.AllocsPerRun(20_000, func() {
		i++
		h[0] = Handling{Key: partition.KeyHash(i % 1000), Fence: event.Fence{Turn: uint64(i)}, Start: time.Duration(i) * ms, End: time.Duration(i+1) * ms}
		a.Add(id, Mapping{}, h, nil)
	}); allocs != 0 {
		t.Errorf("%v allocations for a handling", allocs)
	}
	other, _ := a.Register(Source{Clock: ClockID{2}})
	a.Add(other, Mapping{StartSlack: 1}, h, nil)
	if got := len(a.ring)*int(unsafe.Sizeof(record{})) + len(a.heads)*int(unsafe.Sizeof(head{})) + len(a.mappings)*int(unsafe.Sizeof(Mapping{})); got > 1<<20 || len(a.mappings) == 0 {
		t.Errorf("%d bytes, want at most %d", got, 1<<20)
	}
}

func BenchmarkAdd(b *testing.B) {
	a := New(16 << 20)
	id, _ := a.Register(Source{Clock: ClockID{1}})
	h := make([]Handling, 256)
	var at time.Duration
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(h) {
		for j := range h {
			at += us
			h[j] = Handling{Key: partition.KeyHash(spread(uint64((i + j) % 10_000))), Fence: event.Fence{Turn: uint64(i + j)}, Start: at, End: at + us}
		}
		a.Add(id, Mapping{}, h, nil)
	}
}

// TestInstantWithinAnotherHandler: clocks with steps show a short handler as an instant. It overlaps with one that ran before and after it, and not with one that
// began or ended at it.
func TestInstantWithinAnotherHandler(t *testing.T) {
	long, within := Handling{Key: 1, Fence: event.Fence{Turn: 1}, Start: 5 * ms, End: 20 * ms}, Handling{Key: 1, Fence: event.Fence{Turn: 2}, Start: 10 * ms, End: 10 * ms}
	for name, test := range map[string]struct {
		all  []Handling
		want uint64
	}{
		"it ends last":     {[]Handling{within, long}, 1},
		"it ends first":    {[]Handling{long, within}, 1},
		"at the beginning": {[]Handling{long, {Key: 1, Fence: event.Fence{Turn: 2}, Start: 5 * ms, End: 5 * ms}}, 0},
		"at the end":       {[]Handling{long, {Key: 1, Fence: event.Fence{Turn: 2}, Start: 20 * ms, End: 20 * ms}}, 0},
		"two instants":     {[]Handling{within, {Key: 1, Fence: event.Fence{Turn: 3}, Start: 10 * ms, End: 10 * ms}}, 0},
	} {
		a := New(1 << 20)
		id, _ := a.Register(Source{Clock: ClockID{1}})
		found := a.Add(id, Mapping{}, test.all, nil)
		if n := a.Counts().Overlaps; n != test.want || uint64(len(found)) != test.want || test.want > 0 && found[0].For <= 0 {
			t.Errorf("%s: %d overlaps, found %+v, want %d", name, n, found, test.want)
		}
	}
}

// TestClonesAmongOthers: two machines with one ClockID, such as two that were resumed from one snapshot, have different clocks if the judge sees them differ.
func TestClonesAmongOthers(t *testing.T) {
	handlings := func(shown time.Duration) []Handling { return []Handling{{Key: 1, Start: shown, End: shown + 10*ms}} }
	for name, test := range map[string]struct {
		first, second time.Duration // as the machines show them; the second one's clock is a second behind
		want          uint64
	}{
		"one after the other, shown as one": {time.Hour, time.Hour, 0},
		"at once, shown as far apart":       {time.Hour, time.Hour - time.Second, 1},
	} {
		a := New(1 << 20)
		x, _ := a.Register(Source{Name: "x", Clock: ClockID{9}})
		y, _ := a.Register(Source{Name: "y", Clock: ClockID{9}})
		a.Add(x, Mapping{Shift: time.Minute, StartSlack: ms, EndSlack: ms}, handlings(test.first), nil)
		a.Add(y, Mapping{Shift: time.Minute + time.Second, StartSlack: ms, EndSlack: ms}, handlings(test.second), nil)
		if c := a.Counts(); c.Overlaps != test.want || sum(c.Undecided) != 0 {
			t.Errorf("%s: %+v, want %d overlaps", name, c, test.want)
		}
	}
}
