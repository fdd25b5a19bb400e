package ownership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/ring"
)

// hear appends a record to the world's log and lets everybody read it.
func (w *world) hear(inc Incarnation, b Body) {
	w.land(Record{LogVersion: LogVersionMax, Group: "g", Inc: inc, Body: b})
	w.runUntil(w.now + 200*time.Millisecond)
}

// TestWhatEndsAMachine: the records after which a machine is LOST or exits.
func TestWhatEndsAMachine(t *testing.T) {
	foreign := Incarnation{0xF}
	node := Node{Name: "f", Inc: foreign, Lease: time.Second}
	table := make([]uint16, simPartitions)
	for name, c := range map[string]struct {
		do   func(w *world, p *proc)
		want string
	}{
		"log (c): an epoch that was never accepted": {func(w *world, p *proc) {
			w.hear(foreign, &Beat{Cur: Position{Ledger: p.m.state.Cur.Ledger, Entry: p.m.state.Cur.Entry + 1}})
		}, "lost"},
		"an epoch that lies ahead of the Beat that names it": {func(w *world, _ *proc) {
			w.hear(foreign, &Beat{Cur: Position{Ledger: w.next.Ledger + 1}})
		}, ""},
		"attack 49: a slow node's older epoch diverges from nothing": {func(w *world, p *proc) {
			w.hear(foreign, &Beat{Cur: Position{Ledger: 1}})
		}, ""},
		"another function from key to partition": {func(w *world, p *proc) {
			w.hear(foreign, &Genesis{HashID: "x", Partitions: simPartitions, Members: []Node{node}, Table: table})
		}, "exit"},
		"attack 52: a greater generation than an operator has set here": {func(w *world, p *proc) {
			p.m.cfg.Gen = 1
			w.hear(foreign, &Genesis{Gen: 2, HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table})
		}, "exit"},
		"a greater generation where none is set": {func(w *world, p *proc) {
			w.hear(foreign, &Genesis{Gen: 2, HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table})
		}, ""},
		"a Genesis with lower tokens": {func(w *world, p *proc) {
			p.m.memory.Floor = TokenOf(1, Position{Ledger: 1})
			w.hear(foreign, &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table})
		}, "exit"},
		"a Genesis of other settings": {func(w *world, p *proc) {
			p.m.cfg.Identity = identity.Of(identity.Setting{Name: "key.from", Value: "message_key"})
			other := identity.Of(identity.Setting{Name: "key.from", Value: "json:user"})
			w.hear(foreign, &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table, Identity: other, After: Position{Ledger: w.next.Ledger, Entry: w.next.Entry - 1}})
		}, "exit"},
		"a Genesis of other settings, written after the group's": {func(w *world, p *proc) {
			p.m.cfg.Identity = identity.Of(identity.Setting{Name: "key.from", Value: "message_key"})
			p.m.state.Identity = p.m.cfg.Identity
			other := identity.Of(identity.Setting{Name: "key.from", Value: "json:user"})
			w.hear(foreign, &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table, Identity: other, After: Position{Ledger: w.next.Ledger, Entry: w.next.Entry - 1}})
		}, "exit"},
		"a Genesis of other settings that comes too late": {func(w *world, p *proc) {
			p.m.cfg.Identity = identity.Of(identity.Setting{Name: "key.from", Value: "message_key"})
			p.m.state.Identity = p.m.cfg.Identity
			other := identity.Of(identity.Setting{Name: "key.from", Value: "json:user"})
			before := Position{Ledger: p.m.state.Genesis.Ledger - 1}
			w.hear(foreign, &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table, Identity: other, After: before})
		}, ""},
		"a Genesis that was written for another log": {func(w *world, p *proc) {
			w.hear(foreign, &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table, After: w.next})
			if p.m.state.IsMember(foreign) {
				w.failure = "it was taken"
			}
		}, ""},
		"a Genesis whose author has read another log": {func(w *world, p *proc) {
			w.hear(foreign, &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table, Base: w.next})
			if p.m.state.IsMember(foreign) {
				w.failure = "it was taken"
			}
		}, ""},
		"a Genesis of a member whose lease is too long": {func(w *world, p *proc) {
			long := node
			long.Lease = LeaseMax + time.Millisecond
			w.hear(foreign, &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{long}, Table: table})
			if p.m.state.IsMember(foreign) {
				w.failure = "it was taken, and outlives the wait for ANY"
			}
		}, ""},
		"a Genesis of a member of other topics": {func(w *world, p *proc) {
			p.m.cfg.Topics = []string{"orders"}
			other := node
			other.Topics = []string{"billing"}
			w.hear(foreign, &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{other}, Table: table})
		}, "exit"},
		"an epoch of an older log version": {func(w *world, p *proc) {
			twin := Node{Name: p.name, Inc: foreign, Lease: time.Second}
			w.hear(foreign, &Hello{Node: twin, HashID: "h", Partitions: simPartitions})
			w.land(Record{LogVersion: LogVersionMin, Group: "g", Inc: foreign, Body: &Epoch{Prev: p.m.state.Cur, Members: []Incarnation{foreign}, Table: table}})
			w.runUntil(w.now + 200*time.Millisecond)
		}, ""},
		"a Genesis that is not valid": {func(w *world, p *proc) {
			w.hear(foreign, &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table[1:]})
		}, ""},
		"a Beat of its own that it has not sent": {func(w *world, p *proc) { // another process of this incarnation has: a copy of the virtual machine
			w.hear(p.inc, &Beat{Seq: p.m.beats.seq + 3, Applied: p.m.tail.last, Cur: p.m.state.Cur, ViewHash: p.m.state.ViewHash})
		}, "lost"},
		"a Beat of its own of the same number, with another content": {func(w *world, p *proc) {
			w.outage = w.now + 3*time.Second
			applied := p.m.tail.last
			w.runUntil(w.now + 2*time.Second)
			seq := p.m.beats.seq
			w.outage = 0
			w.hear(p.inc, &Beat{Seq: seq, Applied: Position{Ledger: applied.Ledger, Entry: applied.Entry - 1}, Cur: p.m.state.Cur, ViewHash: p.m.state.ViewHash})
		}, "lost"},
		"a Beat of its own twice": {func(w *world, p *proc) {
			w.hear(p.inc, &Beat{Seq: p.m.beats.seq - 1, Applied: p.m.tail.last, Cur: p.m.state.Cur, ViewHash: p.m.state.ViewHash})
		}, ""},
		"a hole": {func(w *world, p *proc) {
			w.next.Entry++
			w.hear(foreign, &Beat{})
		}, "lost"},
		"a lower ledger": {func(w *world, p *proc) {
			w.next = Position{Ledger: 9}
			w.hear(foreign, &Beat{})
		}, "lost"},
		"a decision of another log version": {func(w *world, p *proc) {
			w.land(Record{LogVersion: LogVersionMax + 1, Group: "g", Inc: foreign})
			w.runUntil(w.now + 200*time.Millisecond)
		}, "exit"},
		"another group's record": {func(w *world, p *proc) {
			w.land(Record{LogVersion: LogVersionMin, Group: "other", Inc: foreign, Body: &Beat{}})
			w.runUntil(w.now + 200*time.Millisecond)
		}, ""},
		"another group's record of a later log version": {func(w *world, p *proc) {
			w.land(Record{LogVersion: LogVersionMax + 1, Group: "other", Inc: foreign})
			w.runUntil(w.now + 200*time.Millisecond)
		}, ""},
		"attack 48: an outage of 31 s": {func(w *world, p *proc) {
			w.outage = w.now + 31*time.Second
			w.runUntil(w.now + 35*time.Second)
		}, ""},
		"no own Beat for 5 min": {func(w *world, p *proc) {
			p.pauseFor(6 * time.Minute)
			w.runUntil(w.now + 6*time.Minute + time.Millisecond)
		}, "lost"},
		"the only member leaves (attack 51)": {func(w *world, p *proc) {
			p.step(Leave{})
			w.runUntil(w.now + 200*time.Millisecond)
		}, "left"},
		"its name is taken": {func(w *world, p *proc) {
			twin := Node{Name: p.name, Inc: foreign, Lease: time.Second}
			w.hear(foreign, &Hello{Node: twin, HashID: "h", Partitions: simPartitions})
			w.hear(foreign, &Epoch{Prev: p.m.state.Cur, Members: []Incarnation{foreign}, Table: table})
		}, "exit"},
	} {
		t.Run(name, func(t *testing.T) {
			w := quietWorld(t, 3, DefaultTiming(), 1)
			w.brief = true
			p := w.procs[0]
			m := p.m
			c.do(w, p)
			if w.failure != "" {
				t.Fatal(w.failure)
			}
			if got := map[bool]string{true: w.ending, false: ""}[m.over]; got != c.want {
				t.Errorf("the machine ended as %q, want %q", got, c.want)
			}
			if m.over && (m.gates.open.Len() > 0 || len(m.Step(m.now, Tick{})) > 0) {
				t.Error("a machine that is over still acts")
			}
		})
	}
}

// TestGenesisOrder: gates close and everything is revoked for good before any later
// lease (attacks 36 and 37, mutations 17 and 20).
func TestGenesisOrder(t *testing.T) {
	w := quietWorld(t, 5, DefaultTiming(), 1)
	p := w.procs[0]
	w.outage = w.now + time.Hour // only the test feeds the machine
	genesis := Record{LogVersion: LogVersionMax, Group: "g", Inc: p.inc, Body: &Genesis{
		HashID: "h", Partitions: simPartitions, Members: []Node{{Name: p.name, Inc: p.inc, Lease: 2 * time.Second, LogVersion: LogVersionMax}},
		Table: make([]uint16, simPartitions),
	}}
	next := Position{Ledger: p.m.tail.last.Ledger, Entry: p.m.tail.last.Entry + 1}
	var got []string
	for _, e := range p.m.Step(p.local(w.now), RecordRead{Reader: p.reader, At: next, Record: genesis}) {
		switch e := e.(type) {
		case SetGates:
			got = append(got, "gates "+e.Gates[0].Gate.String())
		case Revoke:
			got = append(got, fmt.Sprintf("revoke %d final %t", e.Partitions.Len(), e.Final))
		case ForceDrain:
			got = append(got, "force")
		case SetLease:
			got = append(got, fmt.Sprintf("lease lists %d", e.Lease.Draining.Len()))
		case PublishTable:
			got = append(got, "table")
		case Append:
			got = append(got, fmt.Sprintf("append %T", e.Record.Body))
		}
	}
	want := "gates draining; revoke 8 final true; force; lease lists 0; gates waiting; table"
	if strings.Join(got, "; ") != want {
		t.Errorf("effects: %s\nwant:    %s", strings.Join(got, "; "), want)
	}
}

// TestOldDrainedDoesNotCount: news from before the newest revocation is no news.
func TestOldDrainedDoesNotCount(t *testing.T) {
	m := New(Config{Partitions: 1})
	m.gates.running.add(0)
	m.gates.revoked[0], m.gates.seq = 2, 2
	m.drained(Drained{Seq: 1, Partitions: SetOf(0)})
	if !m.gates.running.Has(0) {
		t.Error("an answer to the first Revoke ended the second drain")
	}
	m.drained(Drained{Seq: 2, Partitions: SetOf(0)})
	if m.gates.running.Has(0) {
		t.Error("the drain did not end")
	}
}

// TestDrainBelongsToItsRevoke: each revocation waits for its own answer and its own time.
func TestDrainBelongsToItsRevoke(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	g, timeout := &m.gates, m.cfg.Timing.DrainTimeout
	revoke := func(p ring.Partition) uint64 {
		m.shut(p)
		m.markRevoked(SetOf(p), m.now)
		m.revoke(SetOf(p), false)
		return g.seq
	}
	first := revoke(0)
	second := revoke(1)
	m.drained(Drained{Seq: first, Partitions: SetOf(0, 1)})
	if g.running.Has(0) || !g.running.Has(1) {
		t.Errorf("after the answer to the first Revoke: 0 runs %t, 1 runs %t, want 1 alone", g.running.Has(0), g.running.Has(1))
	}
	m.drained(Drained{Seq: second + 1, Partitions: SetOf(1)})
	if !g.running.Has(1) {
		t.Error("the answer to a Revoke of an earlier machine ended a drain of this one")
	}
	m.now = m.now.Add(20 * time.Second)
	revoke(0) // again

	force := func() (forced, listed Set) {
		m.out, m.listed = nil, SetOf(0, 1)
		m.forceDrains()
		for _, e := range m.out {
			switch e := e.(type) {
			case ForceDrain:
				forced = e.Partitions
			case SetLease:
				listed = e.Lease.Draining
			}
		}
		return forced, listed
	}
	m.now = m.now.Add(timeout - 20*time.Second)
	if forced, listed := force(); !forced.Has(1) || forced.Has(0) || listed.Has(1) || !listed.Has(0) {
		t.Errorf("after the patience with 1: forced %v, listed %v", forced, listed)
	}
	m.now = m.now.Add(20 * time.Second)
	if forced, _ := force(); !forced.Has(0) || forced.Has(1) {
		t.Errorf("after the patience with 0: forced %v", forced)
	}

	m.drained(Drained{Seq: g.seq, Partitions: SetOf(0, 1)})
	revoke(1)
	m.out, m.listed = nil, SetOf(1)
	m.setLease()
	if lease := m.out[0].(SetLease).Lease; !lease.Draining.Has(1) {
		t.Error("a forced drain that is over bars the next one of its partition")
	}
	for what, listed := range map[string]Set{"no Beat that was read back lists it": SetOf(), "nothing runs there": SetOf(2)} {
		m.out, m.listed = nil, listed
		m.setLease()
		if lease := m.out[0].(SetLease).Lease; !lease.Draining.Empty() {
			t.Errorf("%s, and a Pong may extend a delivery", what)
		}
	}
}

// TestStoppedNodeOpensNothing: a node that has closed its gates for good takes nothing any more, whatever the log gives it.
func TestStoppedNodeOpensNothing(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	m.stopAlone()
	m.drained(Drained{Seq: m.gates.seq, Partitions: m.gates.running.Clone()})
	m.gates.waiting.add(0)
	m.gates.recheck = true
	m.acquire()
	if m.gates.open.Has(0) {
		t.Error("a gate has opened")
	}
}

// TestStoppedNodeWithholdsNothing: what a node says of a gate that it has closed for good names no keys that wait behind it.
func TestStoppedNodeWithholdsNothing(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	p := slices.Collect(m.gates.open.All())[0]
	m.gates.withheld[p] = []ring.KeyHash{7}
	m.out = nil
	m.stopAlone()
	if n := m.Status(m.now).Withheld; n != 0 {
		t.Errorf("%d keys count as withheld", n)
	}
	for _, e := range m.out {
		if set, ok := e.(SetGates); ok {
			for _, c := range set.Gates {
				if len(c.Withheld) > 0 {
					t.Errorf("the gate of partition %d is %v, and withholds %d keys", c.Partition, c.Gate, len(c.Withheld))
				}
			}
		}
	}
}

// TestOwnBeatReadBack: a lease and the confirmation count from before the sending of the Beat that was read, once; a
// duplicate, an earlier one and one of another incarnation give nothing.
func TestOwnBeatReadBack(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	start := m.now.Add(time.Minute)
	sent := func(seq uint64) clock.Instant { return start.Add(time.Duration(seq-100) * 100 * time.Millisecond) }
	m.beats.sent, m.beats.seq = nil, 104
	for seq := uint64(101); seq <= 104; seq++ {
		m.beats.sent = append(m.beats.sent, sentBeat{seq: seq, at: sent(seq), applied: m.tail.last})
	}
	at := m.tail.last
	hear := func(inc Incarnation, seq uint64, draining Set, when clock.Instant) {
		at.Entry++
		m.now, m.out, m.gates.recheck = when, nil, false
		m.applyBeat(read{at: at, rec: Record{LogVersion: m.groupVersion(), Group: "g", Inc: inc}, when: when}, &Beat{
			Seq: seq, Applied: m.tail.last, Cur: m.state.Cur, ViewHash: m.state.ViewHash, Ready: true, Draining: draining,
		})
	}
	m.gates.running.add(3)
	when := start.Add(time.Second)
	hear(m.cfg.Inc, 102, SetOf(3), when)
	leases := func() (all []Lease) {
		for _, e := range m.out {
			if l, ok := e.(SetLease); ok {
				all = append(all, l.Lease)
			}
		}
		return all
	}
	until := sent(102).Add(m.cfg.Timing.Lease)
	if got := leases(); len(got) != 1 || got[0].Until != until || !got[0].Draining.Has(3) || m.lease != until || m.fresh != sent(102) || m.ownRead != when || !m.gates.recheck {
		t.Errorf("leases %+v, lease until %v, confirmed from %v on, read at %v, gates are checked: %t; want until %v", got, m.lease, m.fresh, m.ownRead, m.gates.recheck, until)
	}
	if len(m.beats.sent) != 2 || m.beats.sent[0].seq != 103 {
		t.Errorf("on their way are %+v, want 103 and 104", m.beats.sent)
	}
	other := Incarnation{0xF}
	for what, c := range map[string]struct {
		inc Incarnation
		seq uint64
	}{"a duplicate": {m.cfg.Inc, 102}, "an earlier one": {m.cfg.Inc, 101}, "one of another incarnation": {other, 103}} {
		hear(c.inc, c.seq, SetOf(), when.Add(100*time.Millisecond))
		if got := leases(); len(got) > 0 || m.lease != until || m.fresh != sent(102) || m.ownRead != when || !m.listed.Has(3) || m.gates.recheck || len(m.beats.sent) != 2 {
			t.Errorf("%s: leases %+v, lease until %v, confirmed from %v on, read at %v, on their way %+v", what, got, m.lease, m.fresh, m.ownRead, m.beats.sent)
		}
	}
	hear(m.cfg.Inc, 104, SetOf(), when.Add(200*time.Millisecond))
	if got := leases(); len(got) != 1 || got[0].Until != sent(104).Add(m.cfg.Timing.Lease) || !got[0].Draining.Empty() || len(m.beats.sent) != 0 {
		t.Errorf("leases %+v after the last one", got)
	}
}

// TestBeatsOnTheirWay: at most two are unanswered for a lease, one whose sending failed confirms nothing, and the
// memory of those that are not read is bounded.
func TestBeatsOnTheirWay(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	beats := func() (n int) {
		m.out, m.beats.at = nil, 0
		m.beat()
		for _, e := range m.out {
			if a, ok := e.(Append); ok {
				if _, ok := a.Record.Body.(*Beat); ok {
					n++
				}
			}
		}
		return n
	}
	m.beats.sent = nil
	for i, want := range []int{1, 1, 0} {
		if got := beats(); got != want {
			t.Errorf("Beat %d: %d are sent, want %d", i+1, got, want)
		}
	}
	m.now = m.now.Add(m.cfg.Timing.Lease)
	if beats() != 1 {
		t.Error("none is sent though both are older than a lease")
	}
	m.beats.sent = []sentBeat{{seq: 7, at: m.now}}
	m.gates.confirm = m.now.Add(-1)
	if m.needsConfirming() {
		t.Error("another Beat is to confirm what the one on its way will")
	}
	m.appendDone(AppendDone{Record: Record{Body: &Beat{Seq: 8}}, Failed: true})
	if m.needsConfirming() {
		t.Error("the failure of another Beat counts")
	}
	m.appendDone(AppendDone{Record: Record{Body: &Beat{Seq: 7}}, Failed: true})
	if !m.needsConfirming() {
		t.Error("a Beat whose sending has failed is to confirm")
	}
	m.gates.confirm = 0
	for range 2 * beatsSentMax {
		beats()
		m.appendDone(AppendDone{Record: Record{Body: &Beat{Seq: m.beats.seq}}})
	}
	if n := len(m.beats.sent); n != beatsSentMax || m.beats.sent[n-1].seq != m.beats.seq {
		t.Errorf("%d are remembered, want the newest %d", n, beatsSentMax)
	}
}

// TestLeaveWaitsForWhatRuns: a node has left when nothing of it runs and the log says so, and then it permits nothing.
func TestLeaveWaitsForWhatRuns(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
		key := KeyAt{Partition: 2, Key: 5}
		m.covers.until[key] = clock.Forever
		m.leave()
		fresh := m.lease
		m.lease, m.out = m.now, nil // it may have been removed, and not know it
		m.finishLeaving()
		if m.gates.stopped || len(m.out) > 0 {
			t.Errorf("without a lease it ends: %+v", m.out)
		}
		m.lease, m.out = fresh, nil
		m.finishLeaving()
		closed := -1
		for i, e := range m.out {
			switch e := e.(type) {
			case SetGates:
				if closed = i; len(e.Gates) != simPartitions || e.Gates[0].Gate != Draining {
					t.Errorf("gates %+v", e.Gates)
				}
			case Revoke:
				if closed < 0 || e.Final || e.Partitions.Len() != simPartitions {
					t.Errorf("revoked %+v, gates closed: %t", e, closed >= 0)
				}
				closed = len(m.out)
			case Left:
				t.Error("it has left though its deliveries run")
			}
		}
		if closed != len(m.out) || m.over || !m.gates.stopped || m.gates.running.Len() != simPartitions || m.gates.open.Len() > 0 {
			t.Errorf("effects %+v, %d partitions run", m.out, m.gates.running.Len())
		}
		if len(m.covers.until) > 0 {
			t.Error("a key of a closed gate waits for its holder")
		}
		m.out = nil
		m.drained(Drained{Seq: m.gates.seq, Partitions: m.gates.running.Clone()})
		m.finishLeaving()
		n := len(m.out)
		if !m.over || n < 2 {
			t.Fatalf("it has not left: %+v", m.out)
		}
		if l, ok := m.out[n-2].(SetLease); !ok || l.Lease.Until != 0 || m.out[n-1] != (Left{}) {
			t.Errorf("it ends with %+v", m.out)
		}
	})
	t.Run("removed", func(t *testing.T) {
		m := quietWorld(t, 3, DefaultTiming(), 2).procs[0].m
		m.leave()
		m.state.members[m.cfg.Inc] = false
		m.state.Pending[4] = []Tenure{{Inc: m.cfg.Inc, Lease: time.Second}}
		m.state.pending.add(4)
		if m.finishLeaving(); m.over {
			t.Fatal("it has left though the log counts a tenure of it as running")
		}
		m.state.Pending[4][0].Inc = Incarnation{0xF}
		m.gates.running.add(4)
		if m.finishLeaving(); m.over {
			t.Fatal("it has left though a delivery runs")
		}
		m.gates.running.remove(4)
		if m.finishLeaving(); !m.over {
			t.Error("it does not leave for a tenure of another node")
		}
	})
	t.Run("nobody can take over", func(t *testing.T) {
		m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
		ready := Node{Name: strings.Repeat("x", ring.MemberBytesMax+1), Inc: Incarnation{0xF}, Lease: LeaseMax} // it cannot become a member
		if err := m.state.applyHello(m.tail.last, &Hello{Node: ready}); err != nil {
			t.Fatal(err)
		}
		m.beating = append(m.beating, ready.Inc)
		m.peer(ready.Inc).beat = &Beat{Ready: true}
		m.leave()
		began := m.now
		m.lease = m.now.Add(time.Hour)
		m.now = began.Add(m.cfg.Timing.Lease / 2)
		m.leave() // again
		other := m.peer(ready.Inc)
		other.heard = m.now // it is ready
		if m.finishLeaving(); m.gates.stopped {
			t.Error("it does not give the others the time of a lease")
		}
		m.now = began.Add(m.cfg.Timing.Lease)
		if other.heard = m.now; !m.nobodyTakesOver() {
			t.Error("it waits for longer than a lease since it was first asked to leave")
		}
	})
	t.Run("joining", func(t *testing.T) {
		m := New(memoryConfig())
		now := clock.Instant(time.Hour)
		m.Step(now, AppReady{true})
		effects := m.Step(now, Leave{})
		if n := len(effects); !m.over || n == 0 || effects[n-1] != (Left{}) {
			t.Errorf("it does not leave: %+v", effects)
		}
		cfg := memoryConfig()
		cfg.Running = SetOf(1)
		m = New(cfg)
		m.Step(now, AppReady{true})
		m.Step(now, Leave{})
		effects = m.Step(now, ReaderOpened{Reader: m.tail.reader})
		if m.over || len(effects) > 0 {
			t.Errorf("with a delivery of an earlier incarnation: over %t, effects %+v; want that it waits, and asks for no state", m.over, effects)
		}
		if m.Step(now, Drained{Partitions: SetOf(1)}); !m.over {
			t.Error("it does not leave when nothing runs any more")
		}
	})
}

// TestStopBarsAllDrains: after a Genesis or the end nothing is extended, nor waited for with patience.
func TestStopBarsAllDrains(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	m.shut(0)
	m.markRevoked(SetOf(0), m.now)
	m.revoke(SetOf(0), false)
	m.listed = SetOf(0, 1, 2)
	m.out = nil
	m.stopAll("test")
	forced, final := false, false
	for _, e := range m.out {
		switch e := e.(type) {
		case ForceDrain:
			forced = e.Partitions.Len() == simPartitions
		case Revoke:
			final = e.Final && e.Partitions.Len() == simPartitions
		case SetLease:
			if !e.Lease.Draining.Empty() {
				t.Errorf("a Pong may extend deliveries of %v", e.Lease.Draining)
			}
		}
	}
	if !forced || !final || len(m.gates.drains) > 0 || m.gates.barred.Len() != simPartitions || m.gates.open.Len() > 0 {
		t.Errorf("effects %+v; %d drains wait, %d partitions are barred", m.out, len(m.gates.drains), m.gates.barred.Len())
	}
	m.out = nil
	m.setLease()
	if l := m.out[0].(SetLease).Lease; !l.Draining.Empty() {
		t.Errorf("a later lease extends deliveries of %v", l.Draining)
	}
	m.out = nil
	m.end("test", Exit{Reason: "test"})
	if n := len(m.out); n < 2 || m.out[n-1] != (Exit{Reason: "test"}) {
		t.Errorf("it ends with %+v", m.out)
	} else if l, ok := m.out[n-2].(SetLease); !ok || l.Lease.Until != 0 {
		t.Errorf("it ends with %+v, and keeps its lease", m.out)
	}
}

// TestHeardNeverFalls: a peer of whom there is nothing but evidence, or who was forgotten, counts as heard of no earlier than all
// others were at first.
func TestHeardNeverFalls(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	base, other := m.heardBase, Incarnation{0xF}
	m.handle(Evidence{other, ReachDead})
	if base == 0 || m.heard(other) != base {
		t.Errorf("with evidence alone it was heard at %v, want %v", m.heard(other), base)
	}
	late := base.Add(time.Hour)
	m.peer(other).heard, m.now = late, late.Add(2*time.Minute)
	m.forgetPeers()
	if m.peers[other] != nil || m.heard(other) != late {
		t.Errorf("forgotten: %t, heard at %v, want %v", m.peers[other] == nil, m.heard(other), late)
	}
	m.startAnyDeadlines(base)
	if m.heard(other) != late {
		t.Errorf("a record that was read before took it back to %v", m.heard(other))
	}
}

// TestDeadlinesAreThoseOfTheOwnersLease: the lease of the deposed counts, which may be longer than our own.
func TestDeadlinesAreThoseOfTheOwnersLease(t *testing.T) {
	m := quietWorld(t, 3, FastTiming(), 1).procs[0].m
	other, dep := Incarnation{0xF}, Position{Ledger: 90}
	m.state.Pending[0] = []Tenure{{Inc: other, Lease: LeaseMax, Dep: dep}}
	m.state.pending.add(0)
	m.startDeadlines(read{at: dep})
	if got, want := m.state.Pending[0][0].deadline, m.heard(other).Add(WaitFor(LeaseMax)); got != want {
		t.Errorf("deposed: deadline %v, want %v", got, want)
	}
	when := m.now.Add(time.Second)
	m.moveDeadlines(read{rec: Record{Inc: other}, when: when}, &Beat{Draining: SetOf(0)})
	if got, want := m.state.Pending[0][0].deadline, when.Add(WaitFor(LeaseMax)); got != want {
		t.Errorf("draining: deadline %v, want %v", got, want)
	}
}

// TestTimeNeverFalls: a clock that does would give a lapsed lease back.
func TestTimeNeverFalls(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	before := m.now
	if m.Step(before.Add(-time.Minute), Tick{}); m.now != before {
		t.Errorf("the machine's time is %v, want %v", m.now, before)
	}
}

// TestViewsAreBounded: a node that is so far behind that its epoch is not remembered any more has diverged from nothing.
func TestViewsAreBounded(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	old := Position{Ledger: 90}
	for i := range int64(acceptedMax + 1) {
		m.keepView(Position{Ledger: 90, Entry: i})
	}
	if len(m.accepted) != acceptedMax || m.diverged(read{at: Position{Ledger: 91}}, &Beat{Cur: old}) {
		t.Errorf("%d views are kept, want %d, and the oldest epoch counts as another history", len(m.accepted), acceptedMax)
	}
}

// TestPartitionIsCutByVotes: A and B cannot reach C, and C knows (attacks 20, 21).
func TestPartitionIsCutByVotes(t *testing.T) {
	for name, c := range map[string]struct {
		members int
		cut     [][2]int
		gone    []string
	}{
		"one of three":                        {3, [][2]int{{0, 2}, {1, 2}}, []string{"n2"}},
		"two of two: the smaller name stays":  {2, [][2]int{{0, 1}}, []string{"n1"}},
		"a single link between two of four":   {4, [][2]int{{0, 1}}, nil},
		"one of three, seen by one of others": {3, [][2]int{{0, 2}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := quietWorld(t, 7, DefaultTiming(), c.members)
			for _, pair := range c.cut {
				w.reach(w.procs[pair[0]], w.procs[pair[1]], ReachDead)
			}
			w.runUntil(w.now + 3500*time.Millisecond)
			m := w.procs[0].m
			var gone []string
			for _, p := range w.procs {
				if !m.state.IsMember(p.inc) {
					gone = append(gone, p.name)
				}
			}
			if !slices.Equal(gone, c.gone) || w.failure != "" {
				t.Errorf("gone: %v, want %v; %s", gone, c.gone, w.failure)
			}
			if len(c.gone) == 0 {
				return
			}
			w.servedAgain(t)
			w.runUntil(w.now + 20*time.Second)
			if m.state.IsMember(w.procs[len(w.procs)-1].inc) {
				t.Error("it came back though it is still cut off")
			}
			for _, pair := range c.cut {
				w.reach(w.procs[pair[0]], w.procs[pair[1]], ReachAlive)
			}
			w.runUntil(w.now + 5*time.Second)
			if !m.state.IsMember(w.procs[len(w.procs)-1].inc) || w.failure != "" {
				t.Errorf("it did not come back: %s", w.failure)
			}
		})
	}
}

// A full group takes in as many joining nodes as it has places for, in the order of their coming. A node that waits says so, and
// dead members go and are replaced.
func TestFullGroup(t *testing.T) {
	w := newWorld(1, DefaultTiming())
	w.idle = true
	w.place = func(names []string) ([]uint16, error) {
		if len(names) > ring.MembersMax {
			return nil, fmt.Errorf("%d members", len(names))
		}
		return simPlace(names)
	}
	w.start("n0")
	w.runUntil(12 * time.Second)
	m := w.procs[0].m
	var alive []Incarnation // members without a process: they only beat
	inLog := func(inc Incarnation, b Body) {
		w.land(Record{LogVersion: LogVersionMax, Group: "g", Inc: inc, Body: b})
	}
	beat := func(inc Incarnation) {
		newest := Position{Ledger: w.next.Ledger, Entry: w.next.Entry - 1}
		inLog(inc, &Beat{Applied: newest, Cur: m.state.Cur, ViewHash: m.state.ViewHash, Ready: true})
	}
	come := func(name string) {
		inc := Incarnation{0xF, byte(len(alive) >> 8), byte(len(alive))}
		alive = append(alive, inc)
		node := Node{Name: name, Inc: inc, Lease: LeaseMax, LogVersion: LogVersionMax, Topics: []string{"orders"}}
		inLog(inc, &Hello{Node: node, HashID: "h", Partitions: simPartitions})
		beat(inc)
	}
	turn := 0
	runFor := func(d time.Duration) {
		for until := w.now + d; w.now < until; w.runUntil(w.now + 500*time.Millisecond) {
			turn++
			for i, inc := range alive {
				if i%6 == turn%6 { // each every three seconds: the world reads about 200 records a second
					beat(inc)
				}
			}
		}
	}
	for i := range ring.MembersMax - 6 {
		come(fmt.Sprintf("p%03d", i)) // behind n0, whose rank is so 0
	}
	runFor(10 * time.Second)
	if got := len(m.state.Members); got != ring.MembersMax-5 {
		t.Fatalf("%d members, want all %d nodes; %s", got, ring.MembersMax-5, w.failure)
	}

	for i := range 9 { // in the reverse order of their names
		come(fmt.Sprintf("z%d", 9-i))
	}
	late := w.start("late")
	runFor(10 * time.Second)
	joined := func(name string) bool { return m.memberNamed(name) != nil }
	for i, want := range []bool{true, true, true, true, true, false, false, false, false} {
		if name := fmt.Sprintf("z%d", 9-i); joined(name) != want {
			t.Errorf("%s is a member: %t, want %t", name, !want, want)
		}
	}
	if got := len(m.state.Members); got != ring.MembersMax {
		t.Errorf("%d members, want %d", got, ring.MembersMax)
	}
	if st := late.m.Status(late.local(w.now)); st.Member || !st.Full {
		t.Errorf("the node that waits has the status %+v, want Full", st)
	}
	if w.stats[string(NoteGroupFull)] != 1 {
		t.Errorf("it has said %d times that the group is full, want once", w.stats[string(NoteGroupFull)])
	}

	alive = alive[5:] // five members die
	runFor(20 * time.Second)
	for _, name := range []string{"z4", "z3", "z2", "z1", "late"} {
		if !joined(name) {
			t.Errorf("%s did not join in the place of a dead member", name)
		}
	}
	if joined("p000") || len(m.state.Members) != ring.MembersMax {
		t.Errorf("%d members, among them one that died: %t", len(m.state.Members), joined("p000"))
	}
	if st := late.m.Status(late.local(w.now)); !st.Member || st.Full {
		t.Errorf("the node that has joined has the status %+v", st)
	}
	if n := w.stats[string(NotePlaceFailed)]; n > 0 || w.failure != "" {
		t.Errorf("%d tables could not be made; %s", n, w.failure)
	}
}

// A node whose name is too long for a table does not keep the members from taking over a dead one's partitions.
func TestNodeThatCannotBePlaced(t *testing.T) {
	w := newWorld(3, DefaultTiming())
	w.brief = true
	w.place = func(names []string) ([]uint16, error) {
		for _, name := range names {
			if len(name) > ring.MemberBytesMax {
				return nil, fmt.Errorf("a name of %d bytes", len(name))
			}
		}
		return simPlace(names)
	}
	for i := range 3 {
		w.start(fmt.Sprintf("n%d", i))
	}
	w.runUntil(20 * time.Second)
	m := w.procs[0].m
	if len(m.state.Members) != 3 {
		t.Fatalf("%d members, want 3; %s", len(m.state.Members), w.failure)
	}
	foreign, said := Incarnation{0xF}, w.stats[string(NoteBadRecord)]
	node := Node{Name: strings.Repeat("x", ring.MemberBytesMax+1), Inc: foreign, Lease: LeaseMax, LogVersion: LogVersionMax, Topics: []string{"orders"}}
	w.hear(foreign, &Hello{Node: node, HashID: "h", Partitions: simPartitions})
	for i := range 80 {
		if i == 40 {
			w.procs[2].kill(true)
		}
		w.hear(foreign, &Beat{Applied: Position{Ledger: w.next.Ledger, Entry: w.next.Entry - 1}, Cur: m.state.Cur, ViewHash: m.state.ViewHash, Ready: true})
	}
	if len(m.state.Members) != 2 || w.failure != "" {
		t.Errorf("%d members after one of 3 was killed, want 2; %s", len(m.state.Members), w.failure)
	}
	if w.stats[string(NoteBadRecord)] == said {
		t.Error("nobody says that the node cannot become a member")
	}
}

// Of a Beat that names far more unreachable nodes than a member would, only as many count: each is compared with those of the Beat before, which took
// seconds for 100,000.
func TestBeatWithManyUnreachable(t *testing.T) {
	w := quietWorld(t, 3, DefaultTiming(), 2)
	p, foreign := w.procs[0], Incarnation{0xF}
	list := make([]Incarnation, 100_000) // 2 MB
	for i := range list {
		list[i] = Incarnation{1, byte(i >> 16), byte(i >> 8), byte(i)}
	}
	said := w.stats[string(NoteBadRecord)]
	w.hear(foreign, &Beat{Applied: p.m.tail.last, Cur: p.m.state.Cur, ViewHash: p.m.state.ViewHash, Unreachable: list})
	if got := len(p.m.peers[foreign].beat.Unreachable); got != unreachableMax || w.failure != "" {
		t.Errorf("%d nodes count, want %d; %s", got, unreachableMax, w.failure)
	}
	if got := cap(p.m.peers[foreign].beat.Unreachable); got > 2*unreachableMax {
		t.Errorf("%d nodes are kept in memory for as long as the peer is followed", got)
	}
	if w.stats[string(NoteBadRecord)] == said {
		t.Error("nobody says that the rest of the list does not count")
	}
}

// Beats of ever new incarnations, which no Hello has announced, do not make a member remember more and more of them.
func TestBeatsOfStrangersAreBounded(t *testing.T) {
	w := quietWorld(t, 3, DefaultTiming(), 2)
	m := w.procs[0].m
	at, entry := m.tail.last, m.tail.last.Entry
	for i := range 4 * peersMax {
		entry++
		m.Step(m.now, RecordRead{Reader: m.tail.reader, At: Position{Ledger: at.Ledger, Entry: entry}, Record: Record{
			LogVersion: m.groupVersion(), Group: "g", Inc: Incarnation{0xF, byte(i >> 8), byte(i)}, Body: &Beat{Seq: 1, Applied: at},
		}})
	}
	if got := len(m.peers); got > peersMax+1 || m.over {
		t.Errorf("%d incarnations are followed, want at most %d; over: %v", got, peersMax, m.over)
	}
	if got := len(m.beating); got > len(m.peers) {
		t.Errorf("%d incarnations are recently heard, of %d that are followed", got, len(m.peers))
	}
	for _, p := range w.procs {
		if m.peers[p.inc] == nil {
			t.Errorf("member %s is not followed any more", p.name)
		}
	}
}

// BenchmarkHelloInAGroupOfManyTopics compares a Hello with the topics of all members of a group of full size with as
// many topics as can be configured. It must stay far below a lease: a rolling restart brings hundreds of Hellos, and a
// quadratic comparison took seconds for each.
func BenchmarkHelloInAGroupOfManyTopics(b *testing.B) {
	topics := make([]string, 3000) // 60 kB
	for i := range topics {
		topics[i] = fmt.Sprintf("persistent://t/n/%03x", i)
	}
	s := &State{}
	for i := range ring.MembersMax {
		n := Node{Inc: Incarnation{byte(i), 1}, Name: fmt.Sprint(i)}
		for _, topic := range topics {
			n.Topics = append(n.Topics, strings.Clone(topic))
		}
		s.Nodes, s.Members = append(s.Nodes, n), append(s.Members, n.Inc)
	}
	s.index()
	for b.Loop() {
		if reason := s.foreignTopics("new", topics[len(topics)-1:]); reason != "" {
			b.Fatal(reason)
		}
	}
}

// TestSecondProcessOfANameExits (attack 10).
func TestSecondProcessOfANameExits(t *testing.T) {
	w := quietWorld(t, 11, DefaultTiming(), 2)
	twin := w.start("n1")
	w.runUntil(w.now + 33*time.Second)
	if twin.ended != "exit" || w.procs[1].ended != "" || !w.procs[0].m.state.IsMember(w.procs[1].inc) {
		t.Errorf("twin %q, first %q", twin.ended, w.procs[1].ended)
	}
}

// BenchmarkBeatRead measures the cost of another member's Beat in a group of 100 at rest.
func BenchmarkBeatRead(b *testing.B) {
	const members = 100
	g := &Genesis{HashID: "h", Partitions: ring.Partitions, Table: make([]uint16, ring.Partitions)}
	for i := range members {
		g.Members = append(g.Members, Node{Name: fmt.Sprintf("n%03d", i), Inc: Incarnation{1, byte(i)}, Lease: 2 * time.Second})
	}
	for p := range g.Table {
		g.Table[p] = uint16(p % members)
	}
	m := New(Config{
		Group: "g", Name: "n000", Inc: Incarnation{1}, HashID: "h", Partitions: ring.Partitions, Timing: DefaultTiming(), LogVersion: LogVersionMax,
		Place: func(n []string) ([]uint16, error) { return g.Table, nil },
	})
	pos, now := Position{Ledger: 1}, clock.Instant(time.Hour)
	var mine []*Beat
	read := func(inc Incarnation, body Body) {
		pos.Entry++
		for _, e := range m.Step(now, RecordRead{Reader: 1, At: pos, Record: Record{LogVersion: 1, Group: "g", Inc: inc, Body: body}}) {
			if a, ok := e.(Append); ok {
				if beat, ok := a.Record.Body.(*Beat); ok {
					mine = append(mine, beat)
				}
			}
		}
	}
	m.Step(now, Tick{})
	m.Step(now, AppReady{true})
	m.Step(now, ReaderOpened{1})
	read(Incarnation{1, 1}, g)
	all := newSet(ring.Partitions)
	for p := range ring.Partition(ring.Partitions) {
		all.add(p)
	}
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range members {
			now += clock.Instant(5 * time.Millisecond)
			inc := Incarnation{1, byte(i)}
			if i == 0 && len(mine) > 0 {
				read(inc, mine[len(mine)-1])
				mine = nil
				continue
			}
			seq++
			read(inc, &Beat{Seq: seq, Applied: pos, Cur: m.state.Cur, ViewHash: m.state.ViewHash, Ready: true, Acquired: all})
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/members, "ns/beat")
}
