package ownership

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

// Phase is the state of a node in the group.
type Phase string

// The phases of a node.
const (
	Joining Phase = "joining" // no state yet
	Stale   Phase = "stale"   // state, no lease
	Current Phase = "current" // state and a valid lease; member or not
	Leaving Phase = "leaving"
	Ended   Phase = "left" // lost, exited or left
)

// Status is a picture of a machine, for health and the admin page.
type Status struct {
	Phase    Phase
	Member   bool
	Lease    clock.Instant
	Applied  Position // newest record taken in
	Gen      uint32
	Open     int // gates
	Waiting  int
	Draining int
	Pending  int         // partitions, of anybody, with a tenure that is not proven dead
	Withheld int         // keys of partitions with an open gate that wait for an earlier owner's delivery
	Awaited  int         // keys of partitions with an open gate that wait for the holder of a covered reservation
	Reserved int         // keys of the group with a covered reservation, by the log
	Rival    Incarnation // a member that sends Beats under our name; zero: none is known
	Full     bool        // this node is ready, and the group has no place for another member
}

// Status returns the picture at time now.
func (m *Machine) Status(now clock.Instant) Status {
	st := Status{
		Member: m.isMember(), Lease: m.lease, Applied: m.tail.last,
		Open: m.gates.open.Len(), Waiting: m.gates.waiting.Len(), Draining: m.gates.running.Len(),
		Full: m.groupFull(),
	}
	if rival := m.knownRival(); rival != nil {
		st.Rival = rival.Inc
	}
	for _, keys := range m.gates.withheld { // a sum: the order does not matter
		st.Withheld += len(keys)
	}
	st.Awaited = len(m.covers.until)
	if m.state != nil {
		st.Reserved = len(m.state.Reserved)
		st.Gen, st.Pending = m.state.Gen, m.state.pending.Len()
	}
	switch {
	case m.over:
		st.Phase = Ended
	case m.state == nil:
		st.Phase = Joining
	case m.leaving:
		st.Phase = Leaving
	case now.Before(m.lease):
		st.Phase = Current
	default:
		st.Phase = Stale
	}
	return st
}

// State returns the replicated state, nil while there is none. It belongs to the machine:
// callers must not write to it, and it is valid until the next Step.
func (m *Machine) State() *State { return m.state }

// Gate returns the gate of p.
func (m *Machine) Gate(p ring.Partition) Gate { return m.gates.gate(p) }

// Stopped reports whether this node has closed its gates for good, because it leaves and no
// node can take its partitions. None of them opens again.
func (m *Machine) Stopped() bool { return m.gates.stopped }

// Blocker is one reason why a gate waits.
type Blocker struct {
	Inc      Incarnation   // the owner of the tenure; zero: any, from before a Genesis
	Start    Position      // of the tenure
	Deadline clock.Instant // the time at which it is over if no further Beat comes; an own Beat must confirm it then
}

// Why lists the reasons why a partition waits; Running means that a delivery of our own earlier
// tenure runs.
func (m *Machine) Why(p ring.Partition) (blockers []Blocker, running bool) {
	if m.state == nil {
		return nil, m.gates.running.Has(p)
	}
	for _, t := range m.state.Pending[p] {
		if !m.provenOver(t) {
			blockers = append(blockers, Blocker{t.Inc, t.Start, t.deadline})
		}
	}
	return blockers, m.gates.running.Has(p)
}
