package ownership

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

// TestNotes: another member's Beat names the keys on which its tenure runs.
func TestNotes(t *testing.T) {
	other := Incarnation{0xF}
	before, dep, after := Position{Ledger: 90, Entry: 1}, Position{Ledger: 90, Entry: 2}, Position{Ledger: 90, Entry: 3}
	names := func(applied Position, keys ...ring.KeyHash) *Beat {
		return &Beat{Applied: applied, Draining: SetOf(0), Busy: []Busy{{0, keys}}}
	}
	for name, c := range map[string]struct {
		from  Incarnation
		beats []*Beat
		want  []ring.KeyHash
		noted bool
	}{
		"it names keys":                          {other, []*Beat{names(dep, 1, 2)}, []ring.KeyHash{1, 2}, true},
		"it names nobody":                        {other, []*Beat{names(dep)}, nil, true},
		"it has not read of the deposition":      {other, []*Beat{names(before, 1)}, nil, false},
		"somebody else's":                        {Incarnation{0xE}, []*Beat{names(dep, 1)}, nil, false},
		"the partition does not drain":           {other, []*Beat{{Applied: dep, Busy: []Busy{{0, nil}}}}, nil, false},
		"another partition":                      {other, []*Beat{{Applied: dep, Draining: SetOf(0, 1), Busy: []Busy{{1, nil}}}}, nil, false},
		"a partition that is not there":          {other, []*Beat{{Applied: dep, Draining: SetOf(99), Busy: []Busy{{99, nil}}}}, nil, false},
		"the first partition that is not there":  {other, []*Beat{{Applied: dep, Draining: SetOf(simPartitions), Busy: []Busy{{simPartitions, nil}}}}, nil, false},
		"fewer and fewer":                        {other, []*Beat{names(dep, 1, 2), names(after, 2)}, []ring.KeyHash{2}, true},
		"an older Beat comes late":               {other, []*Beat{names(after, 2), names(dep, 1, 2)}, []ring.KeyHash{2}, true},
		"a later Beat has no room for the names": {other, []*Beat{names(dep, 1), {Applied: after, Draining: SetOf(0)}}, []ring.KeyHash{1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
			m.state.Pending[0] = []Tenure{{Inc: other, Lease: time.Second, Dep: dep, deadline: clock.Forever}}
			for _, b := range c.beats {
				m.noteBusy(c.from, b)
			}
			if got := m.state.Pending[0][0]; got.noted != c.noted || !slices.Equal(got.busy, c.want) {
				t.Errorf("noted %t, busy %v, want %t, %v", got.noted, got.busy, c.noted, c.want)
			}
			if c := m.state.clone().Pending[0][0]; c.noted || c.busy != nil {
				t.Error("a Snap would hand the note on")
			}
		})
	}
}

// TestGateWithholdsBusyKeys: a gate opens but for the keys that earlier owners name,
// lets them go one by one, and counts as acquired only then.
func TestGateWithholdsBusyKeys(t *testing.T) {
	a, b := Incarnation{0xA}, Incarnation{0xB}
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	m.gates.open.remove(0)
	m.gates.waiting.add(0)
	m.state.Pending[0] = []Tenure{
		{Inc: a, Lease: time.Second, deadline: clock.Forever, noted: true, busy: []ring.KeyHash{1, 2}},
		{Inc: b, Lease: time.Second, deadline: clock.Forever},
	}
	m.state.pending.add(0)
	look := func() (changes []GateChange) {
		m.gates.recheck, m.out = true, nil
		m.acquire()
		for _, e := range m.out {
			if e, ok := e.(SetGates); ok {
				changes = append(changes, e.Gates...)
			}
		}
		return changes
	}
	wants := func(what string, open, acquired bool, withheld ...ring.KeyHash) {
		t.Helper()
		changes := look()
		if m.gates.open.Has(0) != open || m.acquired().Has(0) != acquired || !slices.Equal(m.gates.withheld[0], withheld) {
			t.Errorf("%s: open %t, acquired %t, withheld %v", what, m.gates.open.Has(0), m.acquired().Has(0), m.gates.withheld[0])
		}
		if open && (len(changes) != 1 || !slices.Equal(changes[0].Withheld, withheld) || changes[0].Token != m.state.Token(0)) {
			t.Errorf("%s: gates %+v", what, changes)
		}
		if again := look(); len(again) > 0 {
			t.Errorf("%s: told twice: %+v", what, again)
		}
	}
	wants("b has named nothing", false, false)
	m.state.Pending[1] = []Tenure{
		{Inc: a, Lease: time.Second, deadline: clock.Forever, noted: true, busy: []ring.KeyHash{5, 9}},
		{Inc: b, Lease: time.Second, deadline: clock.Forever, noted: true, busy: []ring.KeyHash{1, 9}},
	}
	if m.withhold(1); !slices.Equal(m.gates.withheld[1], []ring.KeyHash{1, 5, 9}) {
		t.Errorf("withheld %v, want them ascending", m.gates.withheld[1])
	}
	m.state.Pending[1] = nil
	m.withhold(1)
	m.state.Pending[0][1].noted, m.state.Pending[0][1].busy = true, []ring.KeyHash{2, 3}
	wants("both have", true, false, 1, 2, 3)
	if n := m.Status(m.now).Withheld; n != 3 {
		t.Errorf("status: %d withheld", n)
	}
	m.state.Pending[0][0].busy = []ring.KeyHash{2}
	wants("1 is over", true, false, 2, 3)

	lease := m.lease
	m.lease = m.now // without a lease it may have lost the partition, and not know it
	m.state.Pending[0][1].deadline = 0
	if changes := look(); len(changes) > 0 {
		t.Errorf("without a lease: %+v", changes)
	}
	m.lease = lease
	wants("the deadline of b has passed", true, false, 2)
	m.state.Pending[0] = m.state.Pending[0][1:]
	wants("a has released", true, true)
}

// TestBusyKeysOfOurs: a Beat names busy keys, but none that were found before the newest
// revocation.
func TestBusyKeysOfOurs(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	g := &m.gates
	for p := range ring.Partition(3) {
		g.running.add(p)
		g.revoked[p] = 2
	}
	g.seq = 2
	many := make([]ring.KeyHash, BusyKeysMax)
	m.drained(Drained{Seq: 1, Busy: []Busy{{0, nil}}})
	if got := m.busy(); got != nil {
		t.Errorf("named from before the revocation: %v", got)
	}
	m.drained(Drained{Seq: 2, Busy: []Busy{{0, []ring.KeyHash{7}}, {1, many}, {5, []ring.KeyHash{9}}}})
	if got := m.busy(); len(got) != 1 || got[0].Partition != 0 || !slices.Equal(got[0].Keys, []ring.KeyHash{7}) {
		t.Errorf("named %v, want key 7 of partition 0 and nothing else: of 1 there are too many, 2 is not known, 5 does not drain", got)
	}
	m.drained(Drained{Seq: 2, Partitions: SetOf(0)})
	if got := m.busy(); len(got) != 1 || got[0].Partition != 1 {
		t.Errorf("with room for them, named %d partitions", len(got))
	}
	m.markRevoked(SetOf(1), m.now)
	if got := m.busy(); got != nil {
		t.Errorf("named after the gate was open again: %v", got)
	}
}
