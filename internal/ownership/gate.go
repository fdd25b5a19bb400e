package ownership

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

// Gate says whether this node may dispatch for a partition, apart from its lease.
//
//exhaustive:enforce
type Gate uint8

// The gates of a partition.
const (
	Closed   Gate = iota // not ours, and nothing of ours runs
	Waiting              // ours, but an earlier tenure may still run
	Open                 // ours, acquired
	Draining             // no longer ours, and a delivery of ours still runs
)

// String returns the name of the gate, as metrics and logs have it.
func (g Gate) String() string {
	switch g {
	case Closed:
		return "closed"
	case Waiting:
		return "waiting"
	case Open:
		return "open"
	case Draining:
		return "draining"
	}
	return "unknown"
}

// MayDispatch reports whether a delivery may start now (rule 6): the gate is open, and the lease lasts longer than
// the guard. This is where exclusivity is decided for each delivery. The caller holds the lock under which the gate
// changes, and has read now under it.
func (l Lease) MayDispatch(g Gate, now clock.Instant) bool {
	return g == Open && now.Add(l.Guard).Before(l.Until)
}

// gates are this node's gates and its knowledge of running deliveries.
type gates struct {
	open    Set // ours and acquired
	waiting Set // ours and not acquired
	running Set // where a delivery of ours may run, of another tenure than the open one
	barred  Set // part of running: no Pong may extend these deliveries any more

	busy     map[ring.Partition][]ring.KeyHash // of running: the keys that run; absent: any key may run
	withheld map[ring.Partition][]ring.KeyHash // of open: the withheld keys, ascending; absent: none is

	since   []clock.Instant // by partition: when the record that began its wait or drain was read
	revoked []uint64        // by partition: Seq of the newest Revoke that closed its open gate; 0: none

	seq        uint64        // Seq of the newest Revoke
	answered   uint64        // Seq of the newest Revoke that Drained has answered
	revokedAt  clock.Instant // when the newest Revoke went out
	drains     []drain       // those that may have to be forced, oldest first
	recheck    bool          // something changed that rule 5 reads
	nextPassed clock.Instant // when the next deadline of a waiting partition passes
	confirm    clock.Instant // the latest deadline that has passed and needs an own Beat sent after it
	stopped    bool          // this node closed its gates by itself, for good
}

// drain is a batch of partitions that were deposed together.
type drain struct {
	at         clock.Instant // when the deposing record was read
	seq        uint64        // of its Revoke
	partitions Set
}

func newGates(partitions int, running Set) gates {
	g := gates{
		open: newSet(partitions), waiting: newSet(partitions),
		running: newSet(partitions), barred: newSet(partitions),
		busy: map[ring.Partition][]ring.KeyHash{}, withheld: map[ring.Partition][]ring.KeyHash{},
		since: make([]clock.Instant, partitions), revoked: make([]uint64, partitions),
	}
	g.running.addAll(running)
	g.barred.addAll(running) // LOST: none is ever listed
	return g
}

func (g *gates) gate(p ring.Partition) Gate {
	switch {
	case g.open.Has(p):
		return Open
	case g.waiting.Has(p):
		return Waiting
	case g.running.Has(p):
		return Draining
	}
	return Closed
}

// shut takes p out of the open gates. The caller puts it into another set and emits its SetGates.
func (m *Machine) shut(p ring.Partition) {
	g := &m.gates
	g.open.remove(p)
	delete(g.withheld, p)
	m.covers.leave(p)
}

// change returns the gate of p as the sets say now, for SetGates.
func (m *Machine) change(p ring.Partition) GateChange {
	c := GateChange{Partition: p, Gate: m.gates.gate(p), Withheld: m.gates.withheld[p]}
	if c.Gate == Open || c.Gate == Waiting {
		c.Token = m.state.Token(p)
	}
	if c.Gate == Open {
		c.Reserved = m.reservedKeys(p)
	}
	return c
}

// setGates emits SetGates, unless nothing changes.
func (m *Machine) setGates(changes []GateChange) {
	if len(changes) > 0 {
		m.emit(SetGates{changes})
	}
}

// moveGates follows the tenures that began with the record at r (rule 3): a gate that was open
// for an earlier tenure leaves Open and is revoked; a partition that is now ours waits.
func (m *Machine) moveGates(r read) {
	g := &m.gates
	revoked := newSet(m.cfg.Partitions)
	var touched []ring.Partition
	for p := range ring.Partition(m.cfg.Partitions) {
		ours := m.state.Owner(p) == m.cfg.Inc
		if m.state.Start[p] != r.at || !ours && !g.open.Has(p) && !g.waiting.Has(p) {
			continue
		}
		touched = append(touched, p)
		if g.open.Has(p) {
			m.shut(p)
			revoked.add(p)
		}
		g.waiting.remove(p)
		if ours {
			g.waiting.add(p)
		} else {
			m.beats.changed = true // even if nothing runs: the new owner waits to hear it
		}
		g.since[p] = r.when
	}
	m.markRevoked(revoked, r.when)
	changes := make([]GateChange, 0, len(touched))
	for _, p := range touched {
		changes = append(changes, m.change(p))
	}
	m.setGates(changes)
	m.revoke(revoked, false)
	g.recheck = true
}

// claimGates sets to waiting the gates of partitions that an adopted state gives us: those of a
// Genesis of our own that we never read.
func (m *Machine) claimGates(when clock.Instant) {
	var changes []GateChange
	for p := range ring.Partition(m.cfg.Partitions) {
		if m.state.Owner(p) == m.cfg.Inc {
			m.gates.waiting.add(p)
			m.gates.since[p] = when
			changes = append(changes, m.change(p))
		}
	}
	m.setGates(changes)
}

// markRevoked notes that on these partitions, whose gates were open, deliveries may run until Drained says otherwise. The
// next Revoke must name them.
func (m *Machine) markRevoked(revoked Set, when clock.Instant) {
	if revoked.Empty() {
		return
	}
	g := &m.gates
	g.running.addAll(revoked)
	for p := range revoked.All() {
		g.revoked[p] = g.seq + 1
		g.since[p] = when
		delete(g.busy, p) // these notes belong to earlier tenures
	}
	g.drains = append(g.drains, drain{when, g.seq + 1, revoked})
	m.emit(Note{Kind: NoteDeposed, Count: revoked.Len()})
}

// revoke emits the next Revoke, unless there are no partitions. final is as in Revoke.
func (m *Machine) revoke(partitions Set, final bool) {
	if partitions.Empty() {
		return
	}
	m.gates.seq++
	m.gates.revokedAt = m.now
	m.emit(Revoke{Seq: m.gates.seq, Partitions: partitions.Clone(), Final: final})
	m.beats.changed = true
}

// stopAll revokes every delivery that runs or may start here, for good: no deadline is extended any more (Genesis,
// LOST, exit).
func (m *Machine) stopAll(reason string) {
	g := &m.gates
	revoked := g.open.Clone()
	for p := range revoked.All() {
		m.shut(p)
		g.waiting.add(p) // until moveGates or closeGates decides whose it is
	}
	m.markRevoked(revoked, m.now)
	if g.running.Empty() {
		return
	}
	g.barred.addAll(g.running)
	g.drains = nil
	var changes []GateChange
	for p := range revoked.All() {
		changes = append(changes, GateChange{Partition: p, Gate: Draining})
	}
	m.setGates(changes)
	m.revoke(g.running, true)
	m.emit(ForceDrain{Partitions: g.running.Clone(), Reason: reason})
	m.setLease() // lists none of them
}

// nameOf returns the name of an incarnation, "" if it is unknown.
func (m *Machine) nameOf(inc Incarnation) string {
	n, _ := m.state.Node(inc)
	return n.Name
}

// closeGates closes the waiting gates, and opens none from now on.
func (m *Machine) closeGates() {
	g := &m.gates
	waiting := g.waiting.Clone()
	clear(g.waiting)
	g.stopped = true
	var changes []GateChange
	for p := range waiting.All() {
		changes = append(changes, m.change(p))
	}
	m.setGates(changes)
}

// drained takes the news that deliveries of closed tenures are over.
func (m *Machine) drained(in Drained) {
	g := &m.gates
	if in.Seq > g.seq {
		return // the answer to a Revoke of an earlier machine
	}
	g.answered = max(g.answered, in.Seq)
	var changes []GateChange
	var longest time.Duration
	count := 0
	m.noteOwnBusy(in)
	for p := range both(in.Partitions, g.running) {
		if in.Seq < g.revoked[p] {
			continue // told before the newest revocation: deliveries came in between
		}
		g.running.remove(p)
		g.barred.remove(p)
		delete(g.busy, p)
		count++
		longest = max(longest, m.now.Sub(g.since[p]))
		if !g.waiting.Has(p) {
			changes = append(changes, m.change(p))
		}
	}
	if count == 0 {
		return
	}
	m.setGates(changes)
	m.emit(Note{Kind: NoteDrained, Count: count, Took: longest})
	m.beats.changed = true
	g.recheck = true
}

// forceDrains stops extending the deadlines of deliveries that outlive their tenure by DrainTimeout.
func (m *Machine) forceDrains() {
	g := &m.gates
	for len(g.drains) > 0 && m.due(g.drains[0].at.Add(m.cfg.Timing.DrainTimeout)) {
		d := g.drains[0]
		g.drains = slices.Delete(g.drains, 0, 1)
		left := newSet(m.cfg.Partitions)
		for p := range both(d.partitions, g.running) {
			if g.revoked[p] == d.seq {
				left.add(p)
			}
		}
		if left.Empty() {
			continue
		}
		g.barred.addAll(left)
		m.emit(Note{Kind: NoteForced, Count: left.Len()})
		m.emit(ForceDrain{Partitions: left.Clone(), Reason: "drain timeout"})
		m.setLease()
	}
}

// mayAcquire reports whether the gate of p may open (rule 5): the table gives p to us, we have a lease, nothing of
// our own earlier tenures runs, and every tenure of others is proven over, or runs only on keys that its owner has
// listed, which we withhold.
func (m *Machine) mayAcquire(p ring.Partition) bool {
	return m.state.Owner(p) == m.cfg.Inc && m.isFresh() && !m.gates.running.Has(p) &&
		!slices.ContainsFunc(m.state.Pending[p], func(t Tenure) bool { return !t.noted && !m.provenOver(t) })
}

// provenOver is the core of rule 5. It reports whether the deadline of a foreign tenure lies before the sending of an own
// Beat that was read back. A passed deadline alone is not enough: a Beat of the owner that stands earlier in the log than ours,
// and that we had not read, may have moved it. For own tenures it reports true: mayAcquire checks gates.running instead.
func (m *Machine) provenOver(t Tenure) bool {
	return t.Inc == m.cfg.Inc || t.deadline.Before(m.fresh)
}

// acquire opens every gate that rule 5 allows. It looks at the waiting partitions
// only when something has changed or a deadline has passed.
func (m *Machine) acquire() {
	g := &m.gates
	if !g.recheck && !m.due(g.nextPassed) {
		return
	}
	g.recheck, g.nextPassed, g.confirm = false, clock.Forever, 0
	if g.stopped {
		return
	}
	var opened []ring.Partition
	for p := range g.waiting.All() {
		if m.mayAcquire(p) {
			opened = append(opened, p)
		}
		m.watchDeadlines(p)
	}
	m.updateWithheld()
	m.due(g.nextPassed) // asks for a Step then
	m.openGates(opened)
}

// watchDeadlines finds when a waiting partition's next deadline passes, and the
// latest one that has passed and that no own Beat confirms yet.
func (m *Machine) watchDeadlines(p ring.Partition) {
	for _, t := range m.state.Pending[p] {
		switch {
		case m.provenOver(t):
		case t.deadline.Before(m.now):
			m.gates.confirm = max(m.gates.confirm, t.deadline)
		default:
			m.gates.nextPassed = min(m.gates.nextPassed, t.deadline.Add(1))
		}
	}
}

// openGates opens gates that rule 5 allows, except for the keys that have to wait.
func (m *Machine) openGates(opened []ring.Partition) {
	if len(opened) == 0 {
		return
	}
	g := &m.gates
	changes := make([]GateChange, 0, len(opened))
	var waited, silent time.Duration
	silentCount := 0
	for _, p := range opened {
		g.waiting.remove(p)
		g.open.add(p)
		m.withhold(p)
		m.awaitHolders(p)
		changes = append(changes, m.change(p))
		waited = max(waited, m.now.Sub(g.since[p]))
		for _, t := range m.state.Pending[p] {
			if t.Inc != m.cfg.Inc {
				silent = max(silent, m.now.Sub(m.heard(t.Inc)))
				silentCount++
				break
			}
		}
	}
	m.setGates(changes)
	m.emit(Note{Kind: NoteAcquired, At: m.state.Cur, Count: len(opened), Took: waited})
	if silentCount > 0 {
		m.emit(Note{Kind: NoteTakeover, At: m.state.Cur, Count: silentCount, Took: silent})
	}
	m.beats.changed = true
}
