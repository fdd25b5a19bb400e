package ownership

import (
	"maps"
	"slices"

	"github.com/ringfence/router/ring"
)

// A partition need not move as a whole. Its old owner names the keys on which its deliveries
// still run; the new owner opens its gate and withholds only these keys, so that a slow handler
// delays only its own key (rule 8).
//
// For a key that is not named, a Beat that names other keys means the same as a Beat without
// the partition in Draining: no delivery of the tenure runs on the key, and none starts. So
// each single key follows rules 1 to 7, as if it had its own partition.

// noteOwnBusy takes from the driver the keys on which deliveries of closed tenures run. A list
// from before the newest revocation of a partition says nothing about the tenure that this
// revocation closed.
func (m *Machine) noteOwnBusy(in Drained) {
	g := &m.gates
	for _, b := range in.Busy {
		p := b.Partition
		if !g.running.Has(p) || in.Seq < g.revoked[p] {
			continue
		}
		if was, known := g.busy[p]; !known || !slices.Equal(was, b.Keys) {
			g.busy[p] = b.Keys
			m.beats.changed = true // others wait for keys that are no longer busy
		}
	}
}

// busy is the list of keys in a Beat's Draining, as far as there is room.
func (m *Machine) busy() []Busy {
	var list []Busy
	room := BusyKeysMax
	for p := range m.gates.running.All() {
		keys, known := m.gates.busy[p]
		if known && len(keys) <= room {
			list = append(list, Busy{p, keys})
			room -= len(keys)
		}
	}
	return list
}

// acquired returns the partitions on which every earlier tenure is proven over: other members
// conclude that from it (apply rule ii), while on withheld keys one may still run.
func (m *Machine) acquired() Set {
	s := m.gates.open.Clone()
	for p := range m.gates.withheld { // the order does not matter
		s.remove(p)
	}
	return s
}

// noteBusy notes, from another node's Beat, the running keys of its tenures that it knows to be
// over. They start no more deliveries: of two notes the later one is a subset of the earlier
// one, and a Beat without a note retracts nothing.
func (m *Machine) noteBusy(inc Incarnation, b *Beat) {
	for _, busy := range b.Busy {
		if int(busy.Partition) >= m.cfg.Partitions || !b.Draining.Has(busy.Partition) {
			continue
		}
		for i := range m.state.Pending[busy.Partition] {
			t := &m.state.Pending[busy.Partition][i]
			if t.Inc != inc || b.Applied.Before(t.Dep) {
				continue
			}
			keys := busy.Keys
			if t.noted {
				keys = common(t.busy, keys)
			}
			t.noted, t.busy = true, keys
			m.gates.recheck = true
		}
	}
}

// common returns the intersection of two ascending lists.
func common(a, b []ring.KeyHash) []ring.KeyHash {
	var keys []ring.KeyHash
	for _, k := range a {
		if _, found := slices.BinarySearch(b, k); found {
			keys = append(keys, k)
		}
	}
	return keys
}

// withhold computes which keys of p, whose gate is open, have to wait, and reports
// whether these are others than before.
func (m *Machine) withhold(p ring.Partition) (changed bool) {
	g := &m.gates
	var keys []ring.KeyHash
	for _, t := range m.state.Pending[p] {
		if !m.provenOver(t) {
			keys = append(keys, t.busy...)
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	if slices.Equal(keys, g.withheld[p]) {
		return false
	}
	if len(keys) == 0 {
		delete(g.withheld, p)
		m.beats.changed = true // p counts as acquired from now on
	} else {
		g.withheld[p] = keys
	}
	return true
}

// updateWithheld opens the gates for withheld keys that no longer need to wait. Like mayAcquire it requires a lease:
// without one this node may have lost the partition without knowing it.
func (m *Machine) updateWithheld() {
	if !m.isFresh() {
		return
	}
	var changes []GateChange
	for _, p := range slices.Sorted(maps.Keys(m.gates.withheld)) {
		if m.withhold(p) {
			changes = append(changes, m.change(p))
		}
		m.watchDeadlines(p)
	}
	m.setGates(changes)
}
