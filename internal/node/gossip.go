package node

import (
	"cmp"
	"maps"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// gossipMachine replaces ownership.Machine when gossip alone decides (Mode Gossip). Each node
// makes the table of the members that it believes alive, opens the gates of its own partitions
// at once, and renews its lease by itself. There is no agreement: two nodes have one partition
// open for as long as their views differ, and then until the handlers of the node that gives
// way have ended.
//
// It keeps only rules within one node: a partition that returns waits until its earlier
// deliveries have ended. Tokens are 0 and epochs zero positions, since nothing orders the
// tables of different nodes.
//
// It is pure, like the machine that it replaces: the result of members changes only between two
// Steps.
type gossipMachine struct {
	self    ownership.Node
	timing  ownership.Timing
	place   func(names []string) ([]uint16, error)
	members func() []membership.Member // all other members, in the order of their coming

	table   *ownership.Table // nil before the first
	gates   []ownership.Gate
	running map[ring.Partition]bool // revoked, and maybe not over
	revokes uint64
	forceAt clock.Instant // when the patience with them ends
	forced  bool          // it has ended

	began   clock.Instant // of the first Step
	lease   clock.Instant
	renewAt clock.Instant
	leaving bool
	over    bool

	now     clock.Instant
	effects []ownership.Effect
}

func newGossipMachine(cfg ownership.Config, members func() []membership.Member) *gossipMachine {
	return &gossipMachine{
		self:   ownership.Node{Name: cfg.Name, Inc: cfg.Inc, Lease: cfg.Timing.Lease, GRPCAddr: cfg.GRPCAddr, GossipAddr: cfg.GossipAddr},
		timing: cfg.Timing, place: cfg.Place, members: members,
		gates: make([]ownership.Gate, cfg.Partitions), running: make(map[ring.Partition]bool),
	}
}

// Step implements machine. Whatever the input is, it rereads the members.
func (m *gossipMachine) Step(now clock.Instant, in ownership.Input) []ownership.Effect {
	if m.over {
		return nil
	}
	m.now, m.effects = now, nil
	if m.began == 0 {
		m.began = now
	}
	ran := len(m.running)
	switch in := in.(type) {
	case ownership.Drained:
		m.drained(in.Partitions)
	case ownership.Leave:
		m.leaving = true
	default: // about the control log, which does not exist in this mode, or a Tick
	}
	table := m.follow()
	m.moveGates()
	if table != nil { // its gates are set
		m.emit(ownership.PublishTable{Table: table})
	}
	m.force()
	m.renew(ran != len(m.running))
	m.finish()
	return m.effects
}

// Next implements machine.
func (m *gossipMachine) Next() clock.Instant {
	switch {
	case m.over:
		return clock.Forever
	case m.table == nil:
		return min(m.renewAt, m.opensAt())
	case len(m.running) > 0 && !m.forced:
		return min(m.renewAt, m.forceAt)
	}
	return m.renewAt
}

// opensAt returns the instant by which an existing group would have been heard of.
func (m *gossipMachine) opensAt() clock.Instant { return m.began.Add(m.timing.JoinSettle) }

// follow returns the table of the present members, or nil if it is unchanged.
func (m *gossipMachine) follow() *ownership.Table {
	if m.now.Before(m.opensAt()) {
		return nil
	}
	nodes := m.present()
	same := func(a, b ownership.Node) bool { return a.Inc == b.Inc }
	if m.table != nil && slices.EqualFunc(nodes, m.table.Members, same) || len(nodes) == 0 {
		return nil // the last member leaves without a next owner
	}
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	owners, err := m.place(names)
	if err != nil {
		m.emit(ownership.Note{Kind: ownership.NotePlaceFailed, Reason: err.Error()})
		return nil
	}
	before := m.table
	m.table = &ownership.Table{Members: nodes, Owners: owners, Tokens: make([]ownership.Token, len(owners))}
	moved := 0
	for p := range ring.Partition(len(owners)) {
		if before == nil || before.Owner(p).Inc != m.table.Owner(p).Inc {
			moved++
		}
	}
	m.emit(ownership.Note{Kind: ownership.NoteEpoch, Count: moved, Reason: "gossip"})
	return m.table
}

// present returns the present members by name, including this node unless it leaves. Of several
// incarnations of a name the latest one counts: gossip takes seconds to notice that the earlier
// one is dead.
func (m *gossipMachine) present() []ownership.Node {
	var nodes []ownership.Node
	if !m.leaving {
		nodes = append(nodes, m.self)
	}
	others := m.members()
	for i, o := range others {
		replaced := func(later membership.Member) bool { return later.Name == o.Name }
		if o.Name != m.self.Name && !slices.ContainsFunc(others[i+1:], replaced) {
			nodes = append(nodes, ownership.Node{Name: o.Name, Inc: o.Inc, GRPCAddr: o.GRPCAddr, GossipAddr: o.GossipAddr})
		}
	}
	slices.SortFunc(nodes, func(a, b ownership.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// gate returns the required state of the gate of p. There is no waiting for other nodes.
func (m *gossipMachine) gate(p ring.Partition) ownership.Gate {
	ours := !m.leaving && m.table != nil && m.table.Owner(p).Inc == m.self.Inc
	switch {
	case ours && m.running[p]:
		return ownership.Waiting
	case ours:
		return ownership.Open
	case m.running[p]:
		return ownership.Draining
	}
	return ownership.Closed
}

func (m *gossipMachine) moveGates() {
	var changes []ownership.GateChange
	var revoked []ring.Partition
	for p := range ring.Partition(len(m.gates)) {
		gate := m.gate(p)
		if m.gates[p] == ownership.Open && gate != ownership.Open {
			revoked = append(revoked, p)
			m.running[p] = true // until we hear otherwise
			gate = m.gate(p)
		}
		if gate != m.gates[p] {
			m.gates[p] = gate
			changes = append(changes, ownership.GateChange{Partition: p, Gate: gate})
		}
	}
	if len(changes) > 0 {
		m.emit(ownership.SetGates{Gates: changes})
	}
	if len(revoked) > 0 {
		m.revokes++
		m.forceAt, m.forced = m.now.Add(m.timing.DrainTimeout), false
		m.emit(ownership.Revoke{Seq: m.revokes, Partitions: ownership.SetOf(revoked...)})
		m.emit(ownership.Note{Kind: ownership.NoteDeposed, Count: len(revoked)})
	}
}

func (m *gossipMachine) drained(partitions ownership.Set) {
	for p := range partitions.All() {
		delete(m.running, p)
	}
}

// force ends deliveries that outlast their partition by DrainTimeout.
func (m *gossipMachine) force() {
	if len(m.running) == 0 || m.forced || m.now.Before(m.forceAt) {
		return
	}
	m.forced = true
	m.emit(ownership.ForceDrain{Partitions: m.draining(), Reason: "drain timeout"})
	m.emit(ownership.Note{Kind: ownership.NoteForced, Count: len(m.running)})
}

// renew gives this node a lease that no other node has granted. It makes a paused node and its
// application stop, as a real lease would.
func (m *gossipMachine) renew(changed bool) {
	due := !m.now.Before(m.renewAt)
	if due {
		m.lease, m.renewAt = m.now.Add(m.timing.Lease), m.now.Add(m.timing.BeatEvery)
	}
	if !due && !changed {
		return
	}
	lease := ownership.Lease{Until: m.lease, Guard: m.timing.Guard}
	if !m.forced {
		lease.Draining = m.draining()
	}
	m.emit(ownership.SetLease{Lease: lease})
}

// draining returns where something revoked may run.
func (m *gossipMachine) draining() ownership.Set {
	return ownership.SetOf(slices.Collect(maps.Keys(m.running))...)
}

// finish ends a leave when no delivery runs. Other members learn of it by gossip's announcement.
func (m *gossipMachine) finish() {
	if m.leaving && len(m.running) == 0 {
		m.over = true
		m.emit(ownership.SetLease{})
		m.emit(ownership.Left{})
	}
}

// Status implements machine.
func (m *gossipMachine) Status(now clock.Instant) ownership.Status {
	s := ownership.Status{Phase: ownership.Current, Member: m.table != nil && !m.leaving, Lease: m.lease, Draining: len(m.running)}
	for _, g := range m.gates {
		switch g {
		case ownership.Open:
			s.Open++
		case ownership.Waiting:
			s.Waiting++
		case ownership.Closed, ownership.Draining:
		}
	}
	switch {
	case m.over:
		s.Phase = ownership.Ended
	case m.leaving:
		s.Phase = ownership.Leaving
	case m.table == nil:
		s.Phase = ownership.Joining
	case !now.Before(m.lease):
		s.Phase = ownership.Stale
	}
	return s
}

func (m *gossipMachine) emit(effect ownership.Effect) { m.effects = append(m.effects, effect) }
