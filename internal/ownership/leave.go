package ownership

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// noteAsked notes the request of a member whose proposal to leave lost against another one. The next proposal of any member removes it. Else each of
// many that leave at once would need an epoch of its own, and all would compete for each of them.
func (m *Machine) noteAsked(r read, e *Epoch) {
	n := m.state.node(r.rec.Inc)
	if n == nil || !m.state.IsMember(n.Inc) || slices.Contains(e.Members, n.Inc) {
		return
	}
	if e.Prev.Before(n.Since) {
		return // of an earlier membership of the same incarnation
	}
	m.peer(n.Inc).asked = r.at
}

// asksOut reports whether a member has asked to leave and wants no partitions. One that is not heard is judged by its silence.
func (m *Machine) asksOut(n *Node) bool {
	p := m.peers[n.Inc]
	return p != nil && !p.asked.IsZero() && m.seenFresh(n) && !p.beat.Ready
}

// turnToLeave is the additional wait of this member, compared with a member that leaves alone, before it proposes
// again: any proposal of those before it by name removes it, too. The first proposal goes out at once, also when others
// leave.
func (m *Machine) turnToLeave() time.Duration {
	place := 0
	for i, inc := range m.state.Members {
		if n := m.state.member(i); inc != m.cfg.Inc && n.Name < m.cfg.Name && m.asksOut(n) {
			place++
		}
	}
	return time.Duration(place) * m.cfg.Timing.RankDelay
}

// finishLeaving ends a graceful leave once we are not a member (or no node can take over),
// nothing runs, and the log shows it.
func (m *Machine) finishLeaving() {
	if !m.leaving {
		return
	}
	if !m.gates.stopped && m.isMember() && m.isFresh() && m.nobodyTakesOver() {
		m.emit(Note{Kind: NoteNoOtherMember})
		m.stopAlone()
	}
	done := m.state == nil || m.gates.stopped || !m.isMember() && !m.hasPending()
	if done && m.gates.running.Empty() {
		m.over = true
		m.next = clock.Forever
		m.emit(SetLease{})
		m.emit(Left{})
	}
}

// nobodyTakesOver reports whether no epoch without us is possible: no other node is FRESH and
// ready, or for a whole lease no such node could become a member.
func (m *Machine) nobodyTakesOver() bool {
	if _, ok := m.plan(); ok {
		return false
	}
	ready := slices.ContainsFunc(m.beating, func(inc Incarnation) bool {
		n := m.state.node(inc)
		return n != nil && inc != m.cfg.Inc && m.seenReady(n)
	})
	return !ready || m.due(m.leaveAt.Add(m.cfg.Timing.Lease))
}

func (m *Machine) leave() {
	if !m.leaving {
		m.leaving, m.leaveAt = true, m.now
	}
}

// hasPending reports whether a tenure of ours is still pending: the log does not
// know yet that it is over.
func (m *Machine) hasPending() bool {
	for p := range m.state.pending.All() {
		if slices.ContainsFunc(m.state.Pending[p], func(t Tenure) bool { return t.Inc == m.cfg.Inc }) {
			return true
		}
	}
	return false
}

// stopAlone closes our gates without an epoch, because no node can take the partitions.
func (m *Machine) stopAlone() {
	g := &m.gates
	revoked := g.open.Clone()
	for p := range revoked.All() {
		m.shut(p)
	}
	m.markRevoked(revoked, m.now)
	m.closeGates()
	changes := make([]GateChange, 0, revoked.Len())
	for p := range revoked.All() {
		changes = append(changes, m.change(p))
	}
	m.setGates(changes)
	m.revoke(revoked, false)
}
