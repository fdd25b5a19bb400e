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

// Peer is whom an event is sent to: one incarnation of a member, as the control log
// names it.
type Peer [16]byte

// String returns the first four bytes in hex, enough for people.
func (p Peer) String() string { return hex.EncodeToString(p[:4]) }

// MarshalText makes logs show the peer as String does.
func (p Peer) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Local is this node's own mailbox, whatever its incarnation is.
var Local Peer

// Route says who owns which partition, as of one epoch. It is immutable.
type Route interface {
	// Locate returns the owner of p, or false when there is none.
	Locate(p ring.Partition) (owner Peer, ok bool)
	// Owners yields everybody who owns a partition, in a fixed order.
	Owners() iter.Seq[Peer]
	// Epoch is the position of the table's epoch.
	Epoch() event.Position
}

// Settlement is the end of one event's journey at its consumer node. Its verdict is
// final (see [event.VerdictKind.Final]), except that of a guest, see [Table.HoldGuest].
type Settlement struct {
	Event   *event.Event
	Verdict event.Verdict
}

// Moves is what a call has made ready. The caller owns it, performs it and calls
// Reset before it passes it again.
type Moves struct {
	Local   []*event.Event // for the local mailbox
	Wake    []Peer         // streams that have something to take
	Settled []Settlement   // but what was done

	// Done is the handles of what was done, as most events are, and DoneEvents the events,
	// one for each: reading them costs a cache miss, so it is for who must know more.
	Done       []event.Handle
	DoneEvents []*event.Event
}

// Reset empties m and keeps its memory.
func (m *Moves) Reset() {
	clear(m.Local)
	clear(m.Settled)
	clear(m.DoneEvents)
	m.Local, m.Wake, m.Settled = m.Local[:0], m.Wake[:0], m.Settled[:0]
	m.Done, m.DoneEvents = m.Done[:0], m.DoneEvents[:0]
}

// Empty reports whether there is nothing to do.
func (m *Moves) Empty() bool { return len(m.Local)+len(m.Wake)+len(m.Settled)+len(m.Done) == 0 }

func (m *Moves) wake(peer Peer) {
	if !slices.Contains(m.Wake, peer) {
		m.Wake = append(m.Wake, peer)
	}
}

// Table holds the events of one consumer node until their verdicts, and decides
// where each of them goes next. It is pure: the same calls give the same moves. How
// many events it holds is bounded by its source, which stops reading.
//
// Calls must not overlap, and their instants must not go back. All take time in
// proportion to the events that they are about; only SetRoute looks at all events
// that wait, and PeerDown at all events.
type Table struct {
	config Config
	self   Peer
	route  Route // nil before the first SetRoute
	owners owners

	shelf shelf
	found []*held // scratch of holdAll, Settle and Done
	ages  ages
	bytes int
	count [places]int

	local   *lane
	lanes   []*lane             // in the order of their coming
	lots    map[event.Key]*wait // parked keys, and such as were a moment ago
	parked  int                 // lots that are not open
	waits   waits
	nap     *wait // the newest wait of delayed events
	refused list  // by due time
	turn    int   // whose turn it is to relay
	ignored uint64
	resent  uint64
}

// NewTable returns an empty table without a route: what it is given waits. The
// configuration must be valid.
func NewTable(config Config) *Table {
	local := newLane(Local, 0)
	local.up = true
	return &Table{
		config:  config,
		shelf:   shelf{beside: make(map[event.Handle]*held)},
		local:   local,
		lots:    make(map[event.Key]*wait),
		refused: list{place: Refused},
	}
}

// Hold takes events from the source and keeps each until its verdict. Handles must
// be new; an event with a handle that is held already is ignored. One that no frame
// can carry is settled at once as rejected.
func (t *Table) Hold(now clock.Instant, events []*event.Event, out *Moves) {
	t.holdAll(now, events, false, out)
}

// HoldGuest takes events that a consumer node has sent here because it cannot reach
// their owner. They carry handles of this node. A guest is passed on once and never
// waits: where another event would, it is settled with a verdict that is not final
// (NotOwner, NotYet or Overloaded), which goes back to its consumer node.
func (t *Table) HoldGuest(now clock.Instant, events []*event.Event, out *Moves) {
	t.holdAll(now, events, true, out)
}

func (t *Table) holdAll(now clock.Instant, events []*event.Event, guests bool, out *Moves) {
	c := t.ages.begin(now)
	c.n++ // it stays at least as long as this takes
	t.found = t.found[:0]
	for _, ev := range events { // first this alone: then their cache misses overlap
		t.found = append(t.found, t.shelf.find(ev.Handle))
	}
	for i, ev := range events {
		if t.found[i] != nil {
			t.ignored++
			continue
		}
		t.hold(now, ev, c, guests, out)
	}
	c.n--
	t.ages.endIfEmpty(c)
}

func (t *Table) hold(now clock.Instant, ev *event.Event, c *cohort, guest bool, out *Moves) {
	weight := weightOf(ev)
	if eventMax := t.config.FrameMax - frameOverheadMax; weight > eventMax {
		out.Settled = append(out.Settled, Settlement{Event: ev, Verdict: event.Verdict{
			Handle:   ev.Handle,
			Kind:     event.Rejected,
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
	if guest {
		h.unusual().guest = true
	}
	c.add(h)
	t.bytes += weight
	t.send(now, h, out)
}

// Take moves what waits for peer to what peer has, and appends it to dst: up to
// eventsMax events, and up to bytesMax bytes if there is more than one. It returns
// nothing when the peer is down. A batch with relay set is for other owners, and
// the peer shall pass it on.
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
		if lot := t.lot(h); lot != nil && !h.isReleased() && !h.isGuest() {
			t.move(h, &lot.events)
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

// Settle takes verdicts of from, the local mailbox or a peer. A final one settles
// its event if from ever had it; a refusal counts only from whom has it now. What
// counts for nothing is ignored: that is normal after a stream broke.
func (t *Table) Settle(now clock.Instant, from Peer, verdicts []event.Verdict, out *Moves) {
	t.found = t.found[:0]
	for i := range verdicts { // first this alone: then their cache misses overlap
		t.found = append(t.found, t.shelf.find(verdicts[i].Handle))
	}
	for i, h := range t.found {
		v := &verdicts[i] //nolint:gosec // found has an entry for each verdict
		switch {
		case h == nil, h.event == nil: // or settled by an earlier verdict of these
			t.ignored++
		case v.Kind == event.Done && h.had(from):
			t.done(h, out)
		case v.Kind.Final() && h.had(from):
			t.settle(h, v, out)
		case !h.isWith(from):
			t.ignored++
		case v.Kind == event.Attempted:
			h.note(v)
		default:
			t.refuse(now, h, v, out)
		}
	}
}

// Done is Settle for verdicts that all say done, as almost all do. Of verdicts that come
// together, those that say something else come first: what was told of an event before it
// was done is no news any more.
func (t *Table) Done(from Peer, handles []event.Handle, out *Moves) {
	t.found = t.found[:0]
	for _, handle := range handles { // first this alone, as in Settle
		t.found = append(t.found, t.shelf.find(handle))
	}
	for _, h := range t.found {
		if h == nil || h.event == nil || !h.had(from) {
			t.ignored++
			continue
		}
		t.done(h, out)
	}
}

// refuse puts an event aside whose peer does not take it.
func (t *Table) refuse(now clock.Instant, h *held, v *event.Verdict, out *Moves) {
	if h.isGuest() {
		t.settle(h, v, out)
		return
	}
	l, relayed := h.on.lane, h.isRelayed()
	h.leave()
	t.resent++
	switch {
	case relayed: // the third member could not help; maybe the next one can, but not at once
		t.strand(now, h, l.peer, event.Position{})
	case v.Kind == event.Overloaded:
		t.park(now, h, l.peer, v.Delay)
	case v.Kind == event.NotOwner:
		if owner := t.owners.of(h.event.Partition); owner != nil && owner != l {
			t.send(now, h, out)
			return
		}
		t.strand(now, h, l.peer, v.Epoch)
	default: // NotYet, and whatever a later version may say
		t.delay(now, h, v.Delay)
	}
}

// Credit says that from has room again for some events of each of the keys, as many
// as a burst if that is 0; or for a burst of all that it refused when there are no
// keys. They are sent at once.
func (t *Table) Credit(now clock.Instant, from Peer, keys []event.Key, events int, out *Moves) {
	if len(keys) == 0 {
		for _, lot := range t.lotsWhere(func(lot *wait) bool { return lot.refuser == from }) {
			t.redeem(now, lot, lot.burst, out)
		}
		return
	}
	for _, key := range keys {
		if lot := t.lots[key]; lot != nil && lot.refuser == from {
			t.redeem(now, lot, cmp.Or(events, lot.burst), out)
		}
	}
}

// redeem releases events of a parked key for a credit.
func (t *Table) redeem(now clock.Instant, lot *wait, events int, out *Moves) {
	if lot.open {
		return // nothing waits for it
	}
	lot.delay = lot.asked
	t.release(now, lot, events, out)
}

// SetRoute replaces the route and says who this node is. Events that wait go where
// the new route sends them; those that a peer has stay with it until it answers or
// its stream breaks, even if it was deposed: it may be running them.
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
		return owner != nil && (owner.peer != h.rare.refuser || !route.Epoch().Before(h.rare.refusedAt))
	})
	moved := t.lotsWhere(func(lot *wait) bool {
		if lot.events.n == 0 {
			return false
		}
		owner := t.owners.of(lot.events.front().event.Partition)
		return owner != nil && owner.peer != lot.refuser
	})
	for _, lot := range moved {
		t.release(now, lot, lot.events.n, out)
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

// PeerDown says that the stream to peer is broken. What peer had without an answer
// is queued again for whom the route names; that the peer may still be working on
// it is its owner's business: a message id that it knows joins what runs.
func (t *Table) PeerDown(now clock.Instant, peer Peer, out *Moves) {
	l := t.find(peer)
	if l == nil || l == t.local || !l.up {
		return
	}
	l.up, l.since = false, now
	var same, other []*held
	for _, h := range t.shelf.on(&l.sent) {
		h.leave()
		if t.owners.of(h.event.Partition) == l && !h.isGuest() {
			t.unlink(h)
			same = append(same, h)
		} else {
			other = append(other, h)
		}
	}
	t.resent += uint64(len(same) + len(other))
	t.count[Queued] += len(same)
	l.queued.prepend(same) // before what came later
	for _, h := range other {
		t.send(now, h, out)
	}
	t.resendIf(now, &l.relays, out, func(*held) bool { return true })
	t.prune()
}

// Tick does what is due at now. Call it at [Table.Next], or later.
func (t *Table) Tick(now clock.Instant, out *Moves) {
	for len(t.waits) > 0 && !t.waits[0].due.After(now) {
		t.wakeUp(now, t.waits[0], out)
	}
	for h := t.refused.front(); h != nil && !h.rare.due.After(now); h = t.refused.front() {
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
		next = min(next, h.rare.due)
	}
	for _, l := range t.lanes {
		if !l.up && l.queued.n > 0 && t.third(l) != nil {
			next = min(next, l.since.Add(t.config.UnreachableHoldMax))
		}
	}
	return next
}

// Drop forgets events that their source has settled another way. Unknown handles
// are ignored, and so is what peers will say about them.
func (t *Table) Drop(handles []event.Handle) {
	for _, handle := range handles {
		if h := t.shelf.find(handle); h != nil {
			t.forget(h)
		}
	}
}

// Newest returns a held event with all that its owners have told about its failures,
// or nil.
func (t *Table) Newest(handle event.Handle) *event.Event {
	h := t.shelf.find(handle)
	if h == nil {
		return nil
	}
	if h.rare != nil {
		t.renew(h)
	}
	return h.event
}

// Has reports whether an event is held, and where.
func (t *Table) Has(handle event.Handle) (Place, bool) {
	h := t.shelf.find(handle)
	if h == nil {
		return 0, false
	}
	return h.on.place, true
}

// Unanswered is how many events peer has without an answer.
func (t *Table) Unanswered(peer Peer) int {
	if l := t.find(peer); l != nil {
		return l.sent.n
	}
	return 0
}

// Len is how many events are held.
func (t *Table) Len() int { return t.shelf.n }

// Stats is a picture of a table.
type Stats struct {
	Events     int
	Bytes      int           // by event.Event.Bytes and the topic
	In         [places]int   // events by Place
	ParkedKeys int           // keys whose mailbox was full
	Oldest     clock.Instant // when the oldest event was held; zero when there is none
	Resent     uint64        // events that were refused, or lost with their stream
	Ignored    uint64        // verdicts about nothing that is held
}

// Stats returns a picture of the table, in constant time.
func (t *Table) Stats() Stats {
	s := Stats{Events: t.shelf.n, Bytes: t.bytes, In: t.count, ParkedKeys: t.parked, Resent: t.resent, Ignored: t.ignored}
	if t.ages.oldest != nil {
		s.Oldest = t.ages.oldest.since
	}
	return s
}
