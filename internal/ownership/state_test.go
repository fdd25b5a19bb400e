package ownership

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

var (
	incA, incB, incC = Incarnation{0xA}, Incarnation{0xB}, Incarnation{0xC}
	nodeA            = Node{Name: "a", Inc: incA, Lease: 2 * time.Second}
	nodeB            = Node{Name: "b", Inc: incB, Lease: 2 * time.Second}
	nodeC            = Node{Name: "c", Inc: incC, Lease: 4 * time.Second}
)

func at(entry int64) Position { return Position{Ledger: 7, Entry: entry} }

// logStep is one record of a little log: its position is its index, from 1 on.
type logStep struct {
	inc  Incarnation
	body Body
}

func genesisOf(n Node) logStep {
	return logStep{n.Inc, &Genesis{HashID: "h", Partitions: 1, Members: []Node{n}, Table: []uint16{0}}}
}
func helloOf(n Node) logStep { return logStep{n.Inc, &Hello{Node: n, HashID: "h", Partitions: 1}} }
func give(prev int64, to Node) logStep {
	return logStep{incA, &Epoch{Prev: at(prev), Members: []Incarnation{to.Inc}, Table: []uint16{0}}}
}

func beatOf(inc Incarnation, applied int64, draining, acquired bool) logStep {
	b := &Beat{Applied: at(applied)}
	if draining {
		b.Draining = SetOf(0)
	}
	if acquired {
		b.Acquired = SetOf(0)
	}
	return logStep{inc, b}
}

// replay applies a little log to a state that its first record begins.
func replay(t *testing.T, log []logStep) *State {
	t.Helper()
	var s *State
	for i, l := range log {
		q := at(int64(i + 1))
		switch b := l.body.(type) {
		case *Genesis:
			if err := validGenesis(q, b); err != nil {
				t.Fatal(err)
			}
			s = newGenesisState(q, LogVersionMin, b)
		case *Epoch:
			_ = s.applyEpoch(q, LogVersionMin, b)
		case *Beat:
			s.applyBeat(l.inc, b)
		case *Hello:
			if err := s.applyHello(q, b); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// begun is a log in which everybody is known and A has proven ANY dead: 1 to 4.
func begun(more ...logStep) []logStep {
	return append([]logStep{genesisOf(nodeA), helloOf(nodeB), helloOf(nodeC), beatOf(incA, 3, false, true)}, more...)
}

func TestApplyRules(t *testing.T) {
	tenure := func(inc Incarnation, start, dep int64) Tenure {
		return Tenure{Inc: inc, Lease: 2 * time.Second, Start: at(start), Dep: at(dep)}
	}
	any1 := Tenure{Lease: LeaseMax, Dep: at(1)}
	for name, c := range map[string]struct {
		log     []logStep
		owner   Incarnation
		start   int64
		pending []Tenure
	}{
		"genesis waits for ANY":                         {[]logStep{genesisOf(nodeA)}, incA, 1, []Tenure{any1}},
		"ANY goes with an acquisition after it":         {begun(), incA, 1, nil},
		"attack 35: a Beat acquired before the Genesis": {[]logStep{genesisOf(nodeA), beatOf(incA, 0, false, true)}, incA, 1, []Tenure{any1}},
		"an epoch deposes":                              {begun(give(1, nodeB)), incB, 5, []Tenure{tenure(incA, 1, 5)}},
		"attack 18: a late proposal":                    {begun(give(1, nodeB), give(1, nodeC)), incB, 5, []Tenure{tenure(incA, 1, 5)}},
		"an epoch that changes no owner keeps start":    {begun(give(1, nodeA)), incA, 1, nil},
		"(i) released":                                  {begun(give(1, nodeB), beatOf(incA, 5, false, false)), incB, 5, nil},
		"(i) draining is not released":                  {begun(give(1, nodeB), beatOf(incA, 5, true, false)), incB, 5, []Tenure{tenure(incA, 1, 5)}},
		"attack 6: a Beat that has not read the epoch":  {begun(give(1, nodeB), beatOf(incA, 4, false, true)), incB, 5, []Tenure{tenure(incA, 1, 5)}},
		"attack 4: B releases, A may run": {
			begun(give(1, nodeB), give(5, nodeC), beatOf(incB, 6, false, false)),
			incC, 6,
			[]Tenure{tenure(incA, 1, 5)},
		},
		"attack 5: A's first release lands late": {
			begun(give(1, nodeB), give(5, nodeA), give(6, nodeB), beatOf(incA, 5, false, false)),
			incB, 7,
			[]Tenure{tenure(incB, 5, 6), tenure(incA, 6, 7)},
		},
		"(ii) who acquired proves all before it dead": {
			begun(give(1, nodeB), give(5, nodeC), beatOf(incC, 6, false, true)),
			incC, 6, nil,
		},
		"(ii) the sender has not read that it is the owner again": {
			begun(give(1, nodeB), give(5, nodeA), beatOf(incA, 5, false, true)),
			incA, 6,
			[]Tenure{tenure(incB, 5, 6)},
		},
		"(ii) a deposed tenure that was acquired proves its predecessors dead": {
			begun(give(1, nodeB), give(5, nodeC), beatOf(incB, 5, false, true)),
			incC, 6,
			[]Tenure{tenure(incB, 5, 6)},
		},
		"(ii) acquired, but not by the Beat's sender's tenure": {
			begun(give(1, nodeB), beatOf(incC, 5, false, true)),
			incB, 5,
			[]Tenure{tenure(incA, 1, 5)},
		},
		"(ii) a late Beat of a tenure that is over says nothing of the next one": {
			begun(give(1, nodeB), beatOf(incA, 5, false, false), give(5, nodeA), give(7, nodeC), beatOf(incA, 4, false, true)),
			incC, 8,
			[]Tenure{tenure(incB, 5, 7), tenure(incA, 7, 8)},
		},
		"a second Genesis forgets all tenures and waits for ANY": {
			begun(give(1, nodeB), genesisOf(nodeB)), incB, 6, []Tenure{{Lease: LeaseMax, Dep: at(6)}},
		},
		"attack 36: draining across a Genesis is covered by ANY": {
			begun(genesisOf(nodeA), beatOf(incA, 5, true, false)), incA, 5, []Tenure{{Lease: LeaseMax, Dep: at(5)}},
		},
		"unknown member": {begun(give(1, Node{Name: "z", Inc: Incarnation{0xF}})), incA, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := replay(t, c.log)
			if got := s.Owner(0); got != c.owner {
				t.Errorf("owner = %v, want %v", got, c.owner)
			}
			if got := s.Start[0]; got != at(c.start) {
				t.Errorf("start = %v, want %v", got, at(c.start))
			}
			if got := s.Pending[0]; len(got)+len(c.pending) > 0 && !reflect.DeepEqual(got, c.pending) {
				t.Errorf("pending = %+v, want %+v", got, c.pending)
			}
			if s.pending.Has(0) != (len(c.pending) > 0) {
				t.Errorf("the index says pending = %v", s.pending.Has(0))
			}
		})
	}
}

// TestStatesOfSnapsAreChecked: nobody would wait long enough for a lease that is longer than any may be, nor for too short a wait for ANY.
func TestStatesOfSnapsAreChecked(t *testing.T) {
	for name, change := range map[string]func(s *State){
		"":                         func(*State) {},
		"a member is not known":    func(s *State) { s.Members = []Incarnation{{0xF}} },
		"a node's lease":           func(s *State) { s.Nodes[0].Lease = LeaseMax + time.Millisecond },
		"the lease of a tenure":    func(s *State) { s.Pending[0][0] = Tenure{Inc: incA, Lease: LeaseMax + 1} },
		"no lease of a tenure":     func(s *State) { s.Pending[0][0] = Tenure{Inc: incA} },
		"a shorter wait for ANY":   func(s *State) { s.Pending[0][0].Lease = LeaseMax - time.Second },
		"an owner beyond the list": func(s *State) { s.Table = []uint16{1} },
		"a start is missing":       func(s *State) { s.Start = nil },
		"a generation":             func(s *State) { s.Gen = GenMax + 1 },
	} {
		s := replay(t, []logStep{genesisOf(nodeA)})
		change(s)
		if err := s.valid(); (err == nil) != (name == "") {
			t.Errorf("%q: %v", name, err)
		}
	}
	s := replay(t, []logStep{genesisOf(nodeA)})
	long := nodeB
	long.Lease = LeaseMax + time.Millisecond
	if err := s.applyHello(at(2), &Hello{Node: long}); err == nil || len(s.Nodes) != 1 {
		t.Errorf("a Hello with too long a lease: %v", err)
	}
}

func TestEpochValidity(t *testing.T) {
	twin := Node{Name: "a", Inc: incC, Lease: 2 * time.Second}
	for name, c := range map[string]struct {
		at    Position
		epoch Epoch
		ok    bool
	}{
		"good":               {at(9), Epoch{Members: []Incarnation{incA, incB}, Table: []uint16{1}}, true},
		"no members":         {at(9), Epoch{Table: []uint16{0}}, false},
		"short table":        {at(9), Epoch{Members: []Incarnation{incA}}, false},
		"index out of range": {at(9), Epoch{Members: []Incarnation{incA}, Table: []uint16{1}}, false},
		"same name twice":    {at(9), Epoch{Members: []Incarnation{incA, incC}, Table: []uint16{0}}, false},
		"ledger too great":   {Position{Ledger: 1 << 34, Entry: 0}, Epoch{Members: []Incarnation{incA}, Table: []uint16{0}}, false},
		"entry too great":    {Position{Ledger: 7, Entry: 1 << 22}, Epoch{Members: []Incarnation{incA}, Table: []uint16{0}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := replay(t, []logStep{genesisOf(nodeA), helloOf(nodeB), helloOf(twin)})
			before := stateDigest(s)
			c.epoch.Prev = at(1)
			if err := s.applyEpoch(c.at, LogVersionMin, &c.epoch); (err == nil) != c.ok {
				t.Fatalf("err = %v, want ok = %t", err, c.ok)
			}
			if !c.ok && stateDigest(s) != before {
				t.Error("a refused epoch changed the state")
			}
		})
	}
}

func TestStrangersAreForgottenInOrder(t *testing.T) {
	s := replay(t, []logStep{genesisOf(nodeA)})
	for i := range strangersMax + 10 {
		inc := Incarnation{1, byte(i), byte(i >> 8)}
		if err := s.applyHello(at(int64(10+i)), &Hello{Node: Node{Name: "x", Inc: inc, Lease: time.Second}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.Nodes) != strangersMax+1 {
		t.Errorf("%d nodes, want %d", len(s.Nodes), strangersMax+1)
	}
	if _, ok := s.Node(incA); !ok {
		t.Error("a member was forgotten")
	}
	if _, ok := s.Node(Incarnation{1, 9, 0}); ok {
		t.Error("the oldest strangers are still known")
	}
	if _, ok := s.Node(Incarnation{1, 10, 0}); !ok {
		t.Error("a younger stranger was forgotten")
	}
}

func TestTokensGrowWithPositionsAndGenerations(t *testing.T) {
	ordered := []Token{
		TokenOf(0, Position{Ledger: 0, Entry: 0}), TokenOf(0, Position{Ledger: 0, Entry: 1<<22 - 1}), TokenOf(0, Position{Ledger: 1, Entry: 0}),
		TokenOf(0, Position{Ledger: 1<<34 - 1, Entry: 1<<22 - 1}), TokenOf(1, Position{Ledger: 0, Entry: 0}), TokenOf(GenMax, Position{Ledger: 1<<34 - 1, Entry: 1<<22 - 1}),
	}
	if !slices.IsSorted(ordered) || ordered[len(ordered)-1] < 0 || len(slices.Compact(ordered)) != 6 {
		t.Errorf("tokens %v do not grow", ordered)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	s := replay(t, begun(give(1, nodeB), give(5, nodeC)))
	s.Pending[0][0].deadline = 5
	c := s.clone()
	if c.Pending[0][0].deadline != 0 || stateDigest(c) != stateDigest(s) {
		t.Error("a clone is not the same state without our clock")
	}
	want := stateDigest(c)
	s.applyBeat(incC, &Beat{Applied: at(6), Acquired: SetOf(0)})
	_ = s.applyEpoch(at(9), LogVersionMin, &Epoch{Prev: at(6), Members: []Incarnation{incA}, Table: []uint16{0}})
	if stateDigest(c) != want {
		t.Error("a clone changed with its original")
	}
}

func TestMayDispatch(t *testing.T) {
	l := Lease{Until: 1000, Guard: 100}
	for _, c := range []struct {
		gate Gate
		now  int64
		want bool
	}{{Open, 899, true}, {Open, 900, false}, {Open, 2000, false}, {Waiting, 0, false}, {Draining, 0, false}, {Closed, 0, false}} {
		if got := l.MayDispatch(c.gate, clock.Instant(c.now)); got != c.want {
			t.Errorf("MayDispatch(%v, %d) = %t, want %t", c.gate, c.now, got, c.want)
		}
	}
	if (Lease{}).MayDispatch(Open, 0) {
		t.Error("the zero lease permits something")
	}
}

func TestSet(t *testing.T) {
	s := SetOf(0, 63, 64, 200)
	if got := slices.Collect(s.All()); !slices.Equal(got, []ring.Partition{0, 63, 64, 200}) || s.Len() != 4 {
		t.Errorf("All = %v", got)
	}
	if s.Has(1) || s.Has(5000) || !s.Has(200) || Set(nil).Has(0) || !Set(nil).Empty() {
		t.Error("Has is wrong")
	}
	if got := slices.Collect(both(s, SetOf(64, 65))); !slices.Equal(got, []ring.Partition{64}) {
		t.Errorf("both = %v", got)
	}
}

func TestValidate(t *testing.T) {
	err := Config{Timing: Timing{Lease: LeaseMax + 1}}.Validate()
	for _, want := range []string{"Group is empty", "Place is nil", "lease = 4.000000001s, want", "guard = 0s, want", "AnchorBehind = 0s, want >= 9m11s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not tell %q: %v", want, err)
		}
	}
}
