package ownership

import (
	"slices"

	"github.com/ringfence/router/ring"
)

// An owner that is cut off from the log cannot read of its deposition: events that others have sent to it remain
// there, although its lease has passed. The log shows the others when no delivery can start there any more: apply
// rule (ii) then removes a tenure although no Beat of its owner reports its end.

// takenOver is a tenure that another node has proven dead.
type takenOver struct {
	inc Incarnation
	p   ring.Partition
	dep Position
}

// noteTakenOver notes the tenures of other nodes that a Beat is about to prove dead by apply rule (ii).
func (m *Machine) noteTakenOver(by Incarnation, b *Beat) {
	for p := range both(b.Acquired, m.state.pending) {
		acquired, ok := m.state.acquiredTenure(p, by, b)
		if !ok {
			continue
		}
		for _, t := range m.state.Pending[p] {
			if t.Inc != by && provenDead(t, acquired) {
				m.taken = append(m.taken, takenOver{t.Inc, p, t.Dep})
			}
		}
	}
}

// tellTakenOver names the owners of these tenures, unless they have read of their deposition, by their own Beats: such
// an owner has given back what waited, and answers for what ran. Without a lease this node may be far behind in the
// log, and the owner may be back and own the partition again.
func (m *Machine) tellTakenOver() {
	if len(m.taken) == 0 || !m.isFresh() {
		return
	}
	var all []TakenOver
	for _, t := range m.taken {
		if m.knowsItsEnd(t) {
			continue
		}
		i := slices.IndexFunc(all, func(o TakenOver) bool { return o.Inc == t.inc })
		if i < 0 {
			i = len(all)
			all = append(all, TakenOver{t.inc, newSet(m.cfg.Partitions)})
		}
		all[i].Partitions.add(t.p)
	}
	m.taken = nil
	for _, o := range all {
		m.emit(o)
	}
}

// knowsItsEnd reports whether the owner of a tenure is known to have read of its end, or needs not be named: it is this
// node, or the tenure is of ANY (see Tenure), which stands for owners from before a Genesis that no peer is.
func (m *Machine) knowsItsEnd(t takenOver) bool {
	if t.inc.IsZero() || t.inc == m.cfg.Inc {
		return true
	}
	p := m.peers[t.inc]
	return p != nil && !p.applied.Before(t.dep)
}
