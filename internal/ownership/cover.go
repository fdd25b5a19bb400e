package ownership

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

// The local half of rule 9. A turn of a reservation is covered once this node, as the owner, has applied an own take that
// counts and that was sent during the turn. A gate that opens withholds the keys with an entry for as long as a
// former owner may have promised them, and lets the holder alone resume.

const (
	// answerMax is the greatest age of the newest own take, counted from its sending, at which a promise is given. The longest promise on it ends before
	// the anchor passes the take, see AnchorBehindMin.
	answerMax = 4 * time.Minute
	// PromiseMax is how long after the sending of a take a promise on it may end.
	PromiseMax = answerMax + TTLMost
	// retakeEvery leaves a take the time to be repeated.
	retakeEvery = answerMax / 2
	// changesSentMax bounds the own records of takes that are remembered until they are read back.
	changesSentMax = 16
	// memoryOfReserved is how long an earlier incarnation's knowledge of reservations counts.
	memoryOfReserved = 10 * time.Minute
)

// AnchorBehindMin is the least Timing.AnchorBehind, in whole seconds: an author of a Genesis without a state reads only what is behind
// the anchor, and must find there each take with a promise that has not ended. The clocks of the owner and of the holder, which measure the
// promise, and that of the member that moves the anchor may differ as in WaitFor.
func AnchorBehindMin() time.Duration {
	return (WaitFor(PromiseMax) + time.Second - 1).Truncate(time.Second)
}

// The reasons why a turn is not covered.
const (
	RefusedVersion   = "a router of the group does not know covered reservations: the control log is in an older version"
	RefusedFull      = "the group has too many covered reservations"
	RefusedCollision = "a reservation of another key with the same hash is covered"
	RefusedMoving    = "the key is moving to another member"
	RefusedTTL       = "the time to live is out of range"
)

// covers holds the turns that are or will be covered, and the keys that wait for their holders.
type covers struct {
	turns   map[KeyAt]*turn         // on open partitions
	until   map[KeyAt]clock.Instant // on open partitions: when the wait for the holder of the entry ends
	seq     uint64                  // of the newest own Reservations
	sent    []sentChanges           // not read back, oldest first
	onWay   bool                    // the newest is neither read back nor given up
	sentAt  clock.Instant           // of the newest
	failed  bool                    // the log did not take the newest
	touched Set                     // partitions whose waiting keys, or their holders, have changed since the last SetGates
	crowded clock.Instant           // when a stretch with too many reservations was first read; zero: none was
}

// turn is a turn of a reservation at this owner.
type turn struct {
	Take
	number uint64        // the caller's
	at     Position      // of the newest own take that counts and was sent in this turn; zero: not covered
	sent   clock.Instant // when that was sent
}

// sentChanges is an own record on its way.
type sentChanges struct {
	seq   uint64
	at    clock.Instant // before Send
	turns map[KeyAt]uint64
}

func newCovers(partitions int) covers {
	return covers{turns: map[KeyAt]*turn{}, until: map[KeyAt]clock.Instant{}, touched: newSet(partitions)}
}

// leave ends the turns and the waits of a partition whose gate has closed. Their holders keep what they were promised.
func (c *covers) leave(p ring.Partition) {
	maps.DeleteFunc(c.turns, func(k KeyAt, _ *turn) bool { return k.Partition == p })
	maps.DeleteFunc(c.until, func(k KeyAt, _ clock.Instant) bool { return k.Partition == p })
}

// cover handles the request to cover a running turn.
func (m *Machine) cover(in Cover) {
	c := &m.covers
	t := c.turns[in.KeyAt]
	refused := ""
	switch {
	case !validTTL(in.TTL) || in.ID == ReservationID{}:
		refused = RefusedTTL
	case m.groupVersion() < logVersionReserved:
		refused = RefusedVersion
	case !m.gates.open.Has(in.Partition):
		refused = RefusedMoving
	case t != nil && t.number != in.Turn:
		refused = RefusedCollision
	case t != nil:
		return // asked for before
	default:
		if _, found := m.state.reservedOf(in.KeyAt); !found && len(m.state.Reserved) >= ReservedMax {
			refused = RefusedFull
		}
	}
	if refused != "" {
		m.emit(Covered{KeyAt: in.KeyAt, Turn: in.Turn, Refused: refused})
		return
	}
	c.turns[in.KeyAt] = &turn{Take: in.Take, number: in.Turn}
}

// uncover handles the end of a turn at this owner. Its entry is dropped once no turn needs it, see changes.
func (m *Machine) uncover(in Drop) {
	c := &m.covers
	if t := c.turns[in.KeyAt]; t != nil && t.number == in.Turn {
		delete(c.turns, in.KeyAt)
	}
	if _, waits := c.until[in.KeyAt]; !in.Released || !waits {
		return
	}
	// The holder has stopped, so the promises of all owners to it are void. If the entry has several ids, the holder
	// of another one may still rely on its promise.
	if e, found := m.state.reservedOf(in.KeyAt); found && slices.Equal(e.IDs, []ReservationID{in.ID}) {
		delete(c.until, in.KeyAt)
		c.touched.add(in.Partition)
	}
}

// awaitHolders withholds the keys with an entry on a partition whose gate opens now. Every promise of a former owner was computed
// before, under an open gate, so it ends before the wait for its ttl does, by our clock.
func (m *Machine) awaitHolders(p ring.Partition) {
	for _, r := range m.state.reservedOn(p) {
		m.covers.until[r.KeyAt] = m.now.Add(WaitFor(r.TTL))
	}
}

// reservedKeys returns the keys of a partition with an open gate that wait for their holders, ascending.
func (m *Machine) reservedKeys(p ring.Partition) (keys []ReservedKey) {
	for k := range m.covers.until { // sorted below
		if k.Partition != p {
			continue
		}
		one := ReservedKey{Key: k.Key}
		if e, found := m.state.reservedOf(k); found && len(e.IDs) == 1 {
			one.ID = e.IDs[0]
		}
		keys = append(keys, one)
	}
	slices.SortFunc(keys, func(a, b ReservedKey) int { return cmp.Compare(a.Key, b.Key) })
	return keys
}

// letGo releases the keys whose holders did not come back, and reports other changes. Like release it requires a lease:
// without one this node may have lost the partition without knowing it. A lease that lapses and comes back within a
// tenure does not affect the waits themselves.
func (m *Machine) letGo() {
	c := &m.covers
	if !m.isFresh() {
		return
	}
	for k, until := range c.until { // each is judged alone: the order does not matter
		if m.due(until) {
			delete(c.until, k)
			c.touched.add(k.Partition)
		}
	}
	var changes []GateChange
	for p := range both(c.touched, m.gates.open) {
		changes = append(changes, m.change(p))
	}
	clear(c.touched)
	m.setGates(changes)
}

// keepCovers appends the takes and the drops that are due. Only one record is in flight: changes that come up
// meanwhile go into the next one.
func (m *Machine) keepCovers() {
	c := &m.covers
	m.letGo()
	if len(c.turns)+len(m.state.Reserved) == 0 || !m.isFresh() || m.groupVersion() < logVersionReserved {
		return
	}
	if c.onWay && !c.failed && !m.due(c.sentAt.Add(m.cfg.Timing.Lease)) || c.sentAt != 0 && !m.due(c.sentAt.Add(m.cfg.Timing.BeatSpacing)) {
		return
	}
	b, turns := m.changes()
	if len(b.Take)+len(b.Drop) == 0 {
		return
	}
	c.seq++
	b.Seq, b.Applied = c.seq, m.tail.last
	c.onWay, c.failed, c.sentAt = true, false, m.now
	c.sent = append(c.sent, sentChanges{b.Seq, m.now, turns})
	if len(c.sent) > changesSentMax {
		c.sent = slices.Delete(c.sent, 0, 1)
	}
	m.append(b)
	m.due(m.now.Add(m.cfg.Timing.Lease))
}

// changes returns the takes that turns need, and drops for the entries on open partitions that have neither a turn
// here nor a wait for a holder.
func (m *Machine) changes() (b *Reservations, turns map[KeyAt]uint64) {
	b, turns = &Reservations{}, map[KeyAt]uint64{}
	for _, k := range slices.SortedFunc(maps.Keys(m.covers.turns), compareKeys) {
		t := m.covers.turns[k]
		if (t.at.IsZero() || m.due(t.sent.Add(retakeEvery))) && len(b.Take) < changesMax {
			b.Take = append(b.Take, t.Take)
			turns[k] = t.number
		}
	}
	for _, r := range m.state.Reserved {
		_, waits := m.covers.until[r.KeyAt]
		if !waits && m.covers.turns[r.KeyAt] == nil && m.gates.open.Has(r.Partition) && len(b.Take)+len(b.Drop) < changesMax {
			b.Drop = append(b.Drop, r.KeyAt)
		}
	}
	return b, turns
}

// applyReservations takes a record of takes and drops.
func (m *Machine) applyReservations(r read, b *Reservations) {
	if err := m.state.applyReservations(r.at, b); err != nil {
		m.emit(Note{Kind: NoteBadRecord, At: r.at, Inc: r.rec.Inc, Reason: "reservations: " + err.Error()})
		return
	}
	if r.rec.Inc == m.cfg.Inc {
		m.ownChanges(r, b)
	}
	for k, t := range m.covers.turns { // each is judged alone: the order does not matter
		if e, _ := m.state.reservedOf(k); !t.at.IsZero() && e.At != t.at {
			t.at = Position{} // another take has replaced the turn's own: promise nothing until an own take counts again
			m.emit(Covered{KeyAt: k, Turn: t.number})
		}
	}
	for _, t := range b.Take {
		if _, waits := m.covers.until[t.KeyAt]; waits {
			m.covers.touched.add(t.Partition) // its withheld holders change
		}
	}
	for _, k := range b.Drop {
		if _, waits := m.covers.until[k]; waits {
			m.covers.touched.add(k.Partition)
		}
	}
}

// ownChanges takes an own record that was read back: turns are covered by its takes that count.
func (m *Machine) ownChanges(r read, b *Reservations) {
	c := &m.covers
	i := slices.IndexFunc(c.sent, func(s sentChanges) bool { return s.seq == b.Seq })
	if i < 0 {
		return // a duplicate
	}
	sent := c.sent[i]
	c.sent = slices.Delete(c.sent, i, i+1)
	if b.Seq == c.seq {
		c.onWay = false
	}
	for _, take := range b.Take {
		t := c.turns[take.KeyAt]
		if t == nil || t.number != sent.turns[take.KeyAt] {
			continue // that turn is over
		}
		e, found := m.state.reservedOf(take.KeyAt)
		switch {
		case found && e.At == r.at:
			t.at, t.sent = r.at, sent.at
			m.emit(Covered{KeyAt: take.KeyAt, Turn: t.number, Until: sent.at.Add(answerMax)})
		case !found && t.at.IsZero():
			delete(c.turns, take.KeyAt)
			m.emit(Covered{KeyAt: take.KeyAt, Turn: t.number, Refused: RefusedFull})
		}
	}
}

// changesDone takes the answer to an append: a record whose append failed may still be in the log.
func (m *Machine) changesDone(seq uint64, failed bool) {
	if c := &m.covers; seq == c.seq {
		c.failed = failed
	}
}

// ---- for a Genesis of ours ----

// newestTake returns the position of the newest take. A Genesis is void if its author had not read that take.
func (m *Machine) newestTake() Position {
	if m.state != nil {
		return m.state.LastTake
	}
	return m.join.take
}

// knowsTakes reports whether all takes up to the newest Hello are known. The answer to ReadFirst must reach the first
// own Hello that was read back, from which on this node reads the takes itself, and the newest take that it has read
// since: the answer may be late, and end before that take.
func (m *Machine) knowsTakes() bool {
	j := &m.join
	return !j.since.IsZero() && !m.readTo.Before(j.since) && !m.readTo.Before(j.take)
}

// reservedNow is the list of a Genesis of ours.
func (m *Machine) reservedNow() []Reserved {
	list := slices.Clone(m.reserved)
	if k := &m.memory; len(k.Reserved) > 0 && m.now.Sub(k.ReservedAt) < memoryOfReserved {
		list = mergeReserved(list, k.Reserved)
	}
	return list[:min(len(list), listedMax)]
}

// tooManyReserved reports whether a Genesis must wait for the end of all promises: the log has more reservations than
// a Genesis can list, which no group writes, or records of a later log version, as after a downgrade.
func (m *Machine) tooManyReserved() (wait bool) {
	c := &m.covers
	if c.crowded == 0 {
		c.crowded = m.now
		m.emit(Note{Kind: NoteBadRecord, Reason: fmt.Sprintf("more than %d keys with reservations since the anchor, or records of a later log version than %d: no first table before their promises have ended", listedMax, LogVersionMax)})
	}
	return !m.due(c.crowded.Add(WaitFor(TTLMost)))
}
