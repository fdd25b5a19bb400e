package ownership

import "slices"

// An owner that is cut off from the log cannot read of its deposition: events that others have sent to it stay there, though its lease has passed. The log
// says when they cannot begin there any more: apply rule (ii) removes a tenure of an owner from whom there is no Beat that knows its end.

// tellTakenOver names the tenures of other nodes that a Beat is about to prove dead by apply rule (ii), unless their owner has read of its deposition, by its own
// Beats: such an owner has given back what waited, and answers for what ran.
func (m *Machine) tellTakenOver(by Incarnation, b *Beat) {
	var all []TakenOver
	for p := range both(b.Acquired, m.state.pending) {
		acquired, ok := m.state.acquiredTenure(p, by, b)
		if !ok {
			continue
		}
		for _, t := range m.state.Pending[p] {
			if t.Inc != by && provenDead(t, acquired) && !m.knowsItsEnd(&t) {
				i := slices.IndexFunc(all, func(o TakenOver) bool { return o.Inc == t.Inc })
				if i < 0 {
					i = len(all)
					all = append(all, TakenOver{t.Inc, newSet(m.cfg.Partitions)})
				}
				all[i].Partitions.add(p)
			}
		}
	}
	for _, o := range all {
		m.emit(o)
	}
}

// knowsItsEnd reports whether the owner of a deposed tenure is known to have read of it. Nodes from before a Genesis have new incarnations or
// have lost theirs, so ANY has no owner to tell of.
func (m *Machine) knowsItsEnd(t *Tenure) bool {
	if t.Inc.IsZero() || t.Inc == m.cfg.Inc {
		return true
	}
	p := m.peers[t.Inc]
	return p != nil && !p.applied.Before(t.Dep)
}
