package forward

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Peer is one incarnation of a member, as the control log names it.
type Peer [16]byte

// String returns the first four bytes in hex, enough for people.
func (p Peer) String() string { return hex.EncodeToString(p[:4]) }

// MarshalText makes logs show the peer as String does.
func (p Peer) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Local is this node's own mailbox, independent of its incarnation.
var Local Peer

// Route maps partitions to owners, as of one epoch. It is immutable.
type Route interface {
	// Locate returns the owner of p, or false when there is none.
	Locate(p ring.Partition) (owner Peer, ok bool)
	// Owners yields all owners, in a fixed order.
	Owners() iter.Seq[Peer]
	// Epoch is the position of the table's epoch.
	Epoch() event.Position
}

// Moves collects the effects of a call. The caller owns it, performs it and calls Reset
// before it passes it again.
type Moves struct {
	Local []*event.Event // for the local mailbox
	Wake  []Peer         // peers whose streams have events to take

	// Verdicts end the journeys of Settled, the events in the same order. They are final (see
	// [event.VerdictKind.Final]), except those of relayed events, see [Table.HoldRelayed].
	// Read Settled only if you need it: each event is a cache miss.
	Verdicts []event.Verdict
	Settled  []*event.Event
}

// Reset empties m and keeps its memory.
func (m *Moves) Reset() {
	clear(m.Local)
	clear(m.Verdicts)
	clear(m.Settled)
	m.Local, m.Wake, m.Verdicts, m.Settled = m.Local[:0], m.Wake[:0], m.Verdicts[:0], m.Settled[:0]
}

// Empty reports whether there is nothing to do.
func (m *Moves) Empty() bool { return len(m.Local)+len(m.Wake)+len(m.Settled) == 0 }

func (m *Moves) settle(ev *event.Event, v event.Verdict) {
	m.Verdicts, m.Settled = append(m.Verdicts, v), append(m.Settled, ev)
}

func (m *Moves) wake(peer Peer) {
	if !slices.Contains(m.Wake, peer) {
		m.Wake = append(m.Wake, peer)
	}
}

// Table holds the events of one consumer node until their verdicts, and decides where
// each of them goes next. It is pure: the same calls give the same moves. The source
// bounds the number of held events by ceasing to read.
//
// Calls must not overlap, and their instants must not go back. A call takes time in
// proportion to its own events; only SetRoute visits all waiting events, and PeerDown all
// events.
type Table struct {
	config Config
	self   Peer
	route  Route // nil before the first SetRoute
	owners owners

	shelf shelf
	found []*held // scratch of holdAll and Settle
	ages  ages
	bytes int
	count [places]int

	local      *lane
	lanes      []*lane             // in the order of their coming
	parked     map[event.Key]*wait // parked keys, each kept for one pause after its last event was sent
	parkedKeys int                 // those that are not drained
	waits      waits
	lastDelay  *wait // the newest wait of delayed events
	refused    list  // by due time
	turn       int   // whose turn it is to relay
	ignored    uint64
	resent     uint64
}

// NewTable returns an empty table without a route: held events wait for one. The
// configuration must be valid.
func NewTable(config Config) *Table {
	local := newLane(Local, 0)
	local.up = true
	return &Table{
		config:  config,
		shelf:   shelf{beside: make(map[event.Handle]*held)},
		local:   local,
		parked:  make(map[event.Key]*wait),
		refused: list{place: Refused},
	}
}

// Hold takes events from the source and keeps each until its verdict. Handles must be
// new; an event whose handle is already held is ignored. An event too large for a frame is
// settled at once as rejected.
func (t *Table) Hold(now clock.Instant, events []*event.Event, out *Moves) {
	t.holdAll(now, events, false, out)
}

// HoldRelayed takes events that a consumer node has relayed to this node because it
// cannot reach their owner. They carry handles of this node. A relayed event is passed on
// once and never waits: instead it is settled with a verdict that is not final (NotOwner,
// NotYet or Overloaded), which goes back to its consumer node.
func (t *Table) HoldRelayed(now clock.Instant, events []*event.Event, out *Moves) {
	t.holdAll(now, events, true, out)
}

func (t *Table) holdAll(now clock.Instant, events []*event.Event, relayed bool, out *Moves) {
	c := t.ages.begin(now)
	c.n++ // keeps it until the end of the call
	t.found = t.found[:0]
	for _, ev := range events { // a loop of its own, so that the cache misses overlap
		t.found = append(t.found, t.shelf.find(ev.Handle))
	}
	for i, ev := range events {
		if t.found[i] != nil {
			t.ignored++
			continue
		}
		t.hold(now, ev, c, relayed, out)
	}
	c.n--
	t.ages.endIfEmpty(c)
}

func (t *Table) hold(now clock.Instant, ev *event.Event, c *cohort, relayed bool, out *Moves) {
	weight := weightOf(ev)
	if eventMax := t.config.FrameMax - frameOverheadMax; weight > eventMax {
		out.settle(ev, event.Verdict{Handle: ev.Handle, Kind: event.Rejected, Detail: &event.Detail{
			Attempts: ev.Attempts,
			Reason:   fmt.Sprintf("the event weighs %d bytes, a frame carries %d", weight, eventMax),
		}})
		return
	}
	h := t.shelf.add(ev.Handle)
	if h == nil { // twice in one call
		t.ignored++
		return
	}
	h.event, h.bytes = ev, uint32(weight)
	if relayed {
		h.ensureExtra().relayed = true
	}
	c.add(h)
	t.bytes += weight
	t.send(now, h, out)
}

// Take moves events that wait for peer to Sent and appends them to dst: up to eventsMax
// events, and up to bytesMax bytes if there is more than one. It returns no events when
// the peer is down. The peer must relay a batch with relay set to other owners.
func (t *Table) Take(now clock.Instant, peer Peer, eventsMax, bytesMax int, dst []*event.Event) (batch []*event.Event, relay bool) {
	l := t.find(peer)
	if l == nil || !l.up {
		return dst, false
	}
	from := &l.queued
	if l.relays.n > 0 {
		from, relay = &l.relays, true
	}
	for bytes := 0; from.n > 0 && len(dst) < eventsMax; {
		h := from.front()
		if parking := t.parkingOf(h); parking != nil && !h.isReleased() && !h.isRelayed() {
			t.move(h, &parking.events)
			continue
		}
		t.refresh(h)
		if bytes += int(h.bytes); bytes > bytesMax && len(dst) > 0 {
			break
		}
		t.count[from.place]--
		from.pop(h)
		t.move(h, &l.sent)
		h.given(relay)
		dst = append(dst, h.event)
	}
	return dst, relay
}

// Settle takes verdicts of from, the local mailbox or a peer. A final verdict settles its
// event if from has or once had it; a refusal counts only from the present holder. Other
// verdicts are ignored: they are normal after a broken stream.
func (t *Table) Settle(now clock.Instant, from Peer, verdicts []event.Verdict, out *Moves) {
	t.found = t.found[:0]
	for i := range verdicts { // a loop of its own, so that the cache misses overlap
		t.found = append(t.found, t.shelf.find(verdicts[i].Handle))
	}
	for i, h := range t.found {
		v := &verdicts[i] //nolint:gosec // found has an entry for each verdict
		switch {
		case h == nil, h.event == nil: // or settled by an earlier verdict of these
			t.ignored++
		case v.Kind.Final() && h.had(from):
			t.settle(h, *v, out)
		case !h.isWith(from):
			t.ignored++
		case v.Kind == event.Attempted:
			h.note(v)
		default:
			t.refuse(now, h, v, out)
		}
	}
}

// refuse moves an event that its peer has refused to where it waits.
func (t *Table) refuse(now clock.Instant, h *held, v *event.Verdict, out *Moves) {
	if h.isRelayed() {
		t.settle(h, *v, out)
		return
	}
	l, relayed, detail := h.on.lane, h.isViaThird(), v.DetailOrZero()
	h.markPast()
	t.resent++
	switch {
	case relayed: // the third member could not relay it; another one is tried later
		t.strand(now, h, l.peer, event.Position{})
	case v.Kind == event.Overloaded:
		t.park(now, h, l.peer, detail.Delay)
	case v.Kind == event.NotOwner:
		if owner := t.owners.of(h.event.Partition); owner != nil && owner != l {
			t.send(now, h, out)
			return
		}
		t.strand(now, h, l.peer, detail.Epoch)
	default: // NotYet, and kinds of later versions
		t.delay(now, h, detail.Delay)
	}
}

// Credit says that from has room again: for events many of each of the keys, or a burst
// if events is 0; without keys, for a burst of every key that it refused. These events
// are sent at once.
func (t *Table) Credit(now clock.Instant, from Peer, keys []event.Key, events int, out *Moves) {
	if len(keys) == 0 {
		for _, parking := range t.parkedWhere(func(parking *wait) bool { return parking.refuser == from }) {
			t.redeem(now, parking, parking.burst, out)
		}
		return
	}
	for _, key := range keys {
		if parking := t.parked[key]; parking != nil && parking.refuser == from {
			t.redeem(now, parking, cmp.Or(events, parking.burst), out)
		}
	}
}

// redeem releases events of a parked key for a credit.
func (t *Table) redeem(now clock.Instant, parking *wait, events int, out *Moves) {
	if parking.drained {
		return // nothing is parked
	}
	parking.delay = parking.asked
	t.release(now, parking, events, out)
}

// SetRoute replaces the route and this node's incarnation. Waiting events follow the new
// route; events that a peer has stay with it until it answers or its stream breaks, even
// if it was deposed: it may be running them.
func (t *Table) SetRoute(now clock.Instant, self Peer, route Route, out *Moves) {
	t.self, t.route = self, route
	t.markOwners(now)
	for _, l := range t.lanes {
		t.resendIf(now, &l.queued, out, func(h *held) bool {
			return t.owners.of(h.event.Partition) != l
		})
		t.resendIf(now, &l.relays, out, func(*held) bool { return true })
	}
	t.resendIf(now, &t.refused, out, func(h *held) bool {
		owner := t.owners.of(h.event.Partition)
		return owner != nil && (owner.peer != h.extra.refuser || !route.Epoch().Before(h.extra.refusedAt))
	})
	moved := t.parkedWhere(func(parking *wait) bool {
		if parking.events.n == 0 {
			return false
		}
		owner := t.owners.of(parking.events.front().event.Partition)
		return owner != nil && owner.peer != parking.refuser
	})
	for _, parking := range moved {
		t.release(now, parking, parking.events.n, out)
	}
	t.prune()
}

// PeerUp says that the stream to peer works.
func (t *Table) PeerUp(now clock.Instant, peer Peer, out *Moves) {
	l := t.lane(now, peer)
	if l.up {
		return
	}
	l.up, l.since = true, now
	if l.queued.n > 0 {
		out.wake(peer)
	}
}

// PeerDown says that the stream to peer is broken. Events that peer has not answered are
// queued again for the owner that the route names. If they still run there, their owner
// joins them by message id.
func (t *Table) PeerDown(now clock.Instant, peer Peer, out *Moves) {
	l := t.find(peer)
	if l == nil || l == t.local || !l.up {
		return
	}
	l.up, l.since = false, now
	var same, other []*held
	for _, h := range t.shelf.on(&l.sent) {
		h.markPast()
		if t.owners.of(h.event.Partition) == l && !h.isRelayed() {
			t.unlink(h)
			same = append(same, h)
		} else {
			other = append(other, h)
		}
	}
	t.resent += uint64(len(same) + len(other))
	t.count[Queued] += len(same)
	l.queued.prepend(same) // before events that came later
	for _, h := range other {
		t.send(now, h, out)
	}
	t.resendIf(now, &l.relays, out, func(*held) bool { return true })
	t.prune()
}

// Tick does the work that is due at now. Call it at [Table.Next], or later.
func (t *Table) Tick(now clock.Instant, out *Moves) {
	for len(t.waits) > 0 && !t.waits[0].due.After(now) {
		t.wakeUp(now, t.waits[0], out)
	}
	for h := t.refused.front(); h != nil && !h.extra.due.After(now); h = t.refused.front() {
		t.send(now, h, out)
	}
	for _, l := range t.lanes {
		if t.unreachable(now, l) && l.queued.n > 0 && t.third(l) != nil {
			t.resendIf(now, &l.queued, out, func(*held) bool { return true })
		}
	}
}

// Next is the instant at which Tick has something to do, [clock.Forever] when there is none.
func (t *Table) Next() clock.Instant {
	next := clock.Forever
	if len(t.waits) > 0 {
		next = t.waits[0].due
	}
	if h := t.refused.front(); h != nil {
		next = min(next, h.extra.due)
	}
	for _, l := range t.lanes {
		if !l.up && l.queued.n > 0 && t.third(l) != nil {
			next = min(next, l.since.Add(t.config.UnreachableHoldMax))
		}
	}
	return next
}

// Drop forgets events that their source has settled another way. Unknown handles are
// ignored, and so are later verdicts on dropped events.
func (t *Table) Drop(handles []event.Handle) {
	for _, handle := range handles {
		if h := t.shelf.find(handle); h != nil {
			t.forget(h)
		}
	}
}

// Newest returns a held event with all failures that its owners have reported, or nil.
func (t *Table) Newest(handle event.Handle) *event.Event {
	h := t.shelf.find(handle)
	if h == nil {
		return nil
	}
	if h.extra != nil {
		t.renew(h)
	}
	return h.event
}

// Has returns the place of an event and whether it is held.
func (t *Table) Has(handle event.Handle) (Place, bool) {
	h := t.shelf.find(handle)
	if h == nil {
		return 0, false
	}
	return h.on.place, true
}

// Unanswered returns the number of events that peer has not answered.
func (t *Table) Unanswered(peer Peer) int {
	if l := t.find(peer); l != nil {
		return l.sent.n
	}
	return 0
}

// Len returns the number of held events.
func (t *Table) Len() int { return t.shelf.n }

// Stats is a snapshot of a table.
type Stats struct {
	Events     int
	Bytes      int           // by event.Event.Bytes and the topic
	In         [places]int   // events by Place
	ParkedKeys int           // keys whose mailbox was full
	Oldest     clock.Instant // when the oldest event was held; zero when there is none
	Resent     uint64        // events that were refused, or lost with their stream
	Ignored    uint64        // verdicts on events that are not held
}

// Stats returns a snapshot of the table, in constant time.
func (t *Table) Stats() Stats {
	s := Stats{Events: t.shelf.n, Bytes: t.bytes, In: t.count, ParkedKeys: t.parkedKeys, Resent: t.resent, Ignored: t.ignored}
	if t.ages.oldest != nil {
		s.Oldest = t.ages.oldest.since
	}
	return s
}
