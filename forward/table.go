package forward

import (
	"fmt"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// Table holds the events of one consumer node until their verdicts, and decides where
// each of them goes next. It is pure: the same calls give the same moves. The source
// bounds the number of held events by ceasing to read.
//
// A key's events (except relayed ones, which never wait) are sent in the order in which [Table.Hold] took them: none while an
// earlier one waits in any place but Sent. An event that is refused goes back before the
// later ones. Those that were sent after it cannot be called back, so a refusal may still
// let the owner have them first.
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

	local   *lane
	nobody  *lane   // for the events of partitions without an owner
	lanes   []*lane // in the order of their coming
	waiting map[event.Key]*wait
	waits   waits // the same by due time
	turn    int   // whose turn it is to relay
	ignored uint64
	resent  uint64
}

// NewTable returns an empty table without a route: held events wait for one. The
// configuration must be valid.
func NewTable(config Config) *Table {
	local, nobody := newLane(Local, 0), newLane(Peer{}, 0)
	local.up = true
	nobody.queued = list{place: Refused}
	return &Table{
		config:  config,
		shelf:   shelf{beside: make(map[event.Handle]*held)},
		local:   local,
		nobody:  nobody,
		owners:  owners{lanes: []*lane{nobody}},
		waiting: make(map[event.Key]*wait),
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
		t.hold(ev, c, relayed, out)
	}
	c.n--
	t.ages.endIfEmpty(c)
}

func (t *Table) hold(ev *event.Event, c *cohort, relayed bool, out *Moves) {
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
	t.ages.add(c, h)
	t.bytes += weight
	t.send(h, out)
}

// Take moves events that wait for peer to Sent and appends them to dst: up to eventsMax
// events, and up to bytesMax bytes if there is more than one. It returns no events when
// the peer is down. The peer must relay a batch with relay set to other owners.
func (t *Table) Take(now clock.Instant, peer Peer, eventsMax, bytesMax int, dst []*event.Event) (batch []*event.Event, relay bool) {
	l, n := t.find(peer), len(dst)
	if l == nil || !l.up {
		return dst, false
	}
	for _, unreachable := range t.lanes {
		if unreachable.via == l {
			if dst = t.take(&unreachable.queued, l, eventsMax, bytesMax, dst); len(dst) > n {
				return dst, true
			}
		}
	}
	return t.take(&l.queued, l, eventsMax, bytesMax, dst), false
}

func (t *Table) take(from *list, by *lane, eventsMax, bytesMax int, dst []*event.Event) []*event.Event {
	for bytes := 0; from.n > 0 && len(dst) < eventsMax; {
		h := from.front()
		if w := t.behind(h); w != nil && !h.isRelayed() {
			t.move(h, &w.events)
			continue
		}
		t.refresh(h)
		if bytes += int(h.bytes); bytes > bytesMax && len(dst) > 0 {
			break
		}
		from.pop(h)
		t.count[from.place]--
		t.move(h, &by.sent)
		h.given(from != &by.queued)
		dst = append(dst, h.event)
	}
	return dst
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
	l, owner, detail := h.on.lane, t.owners.of(h.event.Partition), v.DetailOrZero()
	viaThird := h.isViaThird()
	h.markPast()
	t.resent++
	switch {
	case viaThird: // it could not relay the event; another one is tried later
		if owner.via == l {
			owner.via = nil
		}
		t.strand(now, h, l.peer, event.Position{})
	case v.Kind == event.Overloaded:
		t.awaitRoom(now, h, l.peer, t.clamp(detail.Delay))
	case v.Kind == event.NotOwner && owner != l:
		t.send(h, out)
	case v.Kind == event.NotOwner:
		t.strand(now, h, l.peer, detail.Epoch)
	default: // NotYet, and kinds of later versions
		t.stop(now, t.waitOf(h.event.Key), h, Delayed, l.peer, t.clamp(detail.Delay))
	}
}

// Credit says that from has room again: for events many of each of the keys, or a burst
// if events is 0; without keys, for a burst of every key that it refused. These events
// are sent at once.
func (t *Table) Credit(now clock.Instant, from Peer, keys []event.Key, events int, out *Moves) {
	if len(keys) == 0 {
		for _, w := range slices.Clone(t.waits) {
			t.redeem(now, from, w, 0, out)
		}
	}
	for _, key := range keys {
		t.redeem(now, from, t.waiting[key], events, out)
	}
}

// SetRoute replaces the route and this node's incarnation. Waiting events follow the new
// route; events that a peer has stay with it until it answers or its stream breaks, even
// if it was deposed: it may be running them.
func (t *Table) SetRoute(now clock.Instant, self Peer, route Route, out *Moves) {
	t.self, t.route = self, route
	t.markOwners(now)
	for _, l := range slices.Concat([]*lane{t.nobody}, t.lanes) {
		t.resend(slices.DeleteFunc(l.queued.all(), func(h *held) bool { return t.owners.of(h.event.Partition) == l }), out)
	}
	t.follow(now, out)
	t.prune()
}

// PeerUp says that the stream to peer works.
func (t *Table) PeerUp(now clock.Instant, peer Peer, out *Moves) {
	l := t.lane(now, peer)
	if l.up {
		return
	}
	l.up, l.since, l.via = true, now, nil
	if l.queued.n > 0 {
		out.wake(peer)
	}
}

// PeerDown says that the stream to peer is broken. Events that peer has not answered are
// queued again for the owner that the route names. If they still run there, their owner
// joins them by message id. It returns their number.
func (t *Table) PeerDown(now clock.Instant, peer Peer, out *Moves) (unanswered int) {
	l := t.find(peer)
	if l == nil || l == t.local || !l.up {
		return 0
	}
	l.up, l.since = false, now
	for _, other := range t.lanes {
		if other.via == l {
			other.via = nil
		}
	}
	lost := t.shelf.on(&l.sent)
	for _, h := range lost {
		h.markPast()
	}
	unanswered = len(lost)
	t.resent += uint64(unanswered)
	lost = append(lost, l.queued.all()...)
	slices.SortFunc(lost, byAge)
	t.resend(lost, out)
	t.prune()
	return unanswered
}

// Tick does the work that is due at now. Call it at [Table.Next], or later.
func (t *Table) Tick(now clock.Instant, out *Moves) {
	for len(t.waits) > 0 && !t.waits[0].due.After(now) {
		t.release(now, t.waits[0], t.waits[0].burst, out)
	}
	for _, l := range t.lanes {
		if !t.relayAt(l).After(now) {
			l.via = t.third(l)
			t.turn = slices.Index(t.lanes, l.via) + 1
			out.wake(l.via.peer)
		}
	}
}

// Next is the instant at which Tick has something to do, [clock.Forever] when there is none.
func (t *Table) Next() clock.Instant {
	next := clock.Forever
	if len(t.waits) > 0 {
		next = t.waits[0].due
	}
	for _, l := range t.lanes {
		next = min(next, t.relayAt(l))
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
	Events   int
	Bytes    int           // by event.Event.Bytes and the topic
	In       [places]int   // events by Place
	FullKeys int           // keys whose mailbox was full
	Oldest   clock.Instant // when the oldest event was held; zero when there is none
	Resent   uint64        // events that were refused, or lost with their stream
	Ignored  uint64        // verdicts on events that are not held
}

// Stats returns a snapshot of the table. It visits the keys that wait.
func (t *Table) Stats() Stats {
	s := Stats{Events: t.shelf.n, Bytes: t.bytes, In: t.count, Resent: t.resent, Ignored: t.ignored}
	for _, w := range t.waits {
		if w.isFull() {
			s.FullKeys++
		}
	}
	if t.ages.oldest != nil {
		s.Oldest = t.ages.oldest.since
	}
	return s
}

// send moves an event towards its owner, or to the place where it has to wait. A relayed
// event that would have to wait is refused back to its sender.
func (t *Table) send(h *held, out *Moves) {
	w, l := t.behind(h), t.owners.of(h.event.Partition)
	switch {
	case (w != nil || !l.up) && h.isRelayed():
		t.settle(h, event.Verdict{Handle: h.handle, Kind: event.NotYet, Detail: &event.Detail{Delay: t.config.DelayMin}}, out)
	case w != nil:
		t.move(h, &w.events)
	case l == t.local:
		t.refresh(h)
		t.move(h, &l.sent)
		h.given(false)
		out.Local = append(out.Local, h.event)
	default:
		t.move(h, &l.queued)
		if !l.up {
			l = l.via
		}
		if l != nil {
			out.wake(l.peer)
		}
	}
}

// resend sends events again, in their order.
func (t *Table) resend(events []*held, out *Moves) {
	for _, h := range events { // first, so that lists need not be merged
		t.unlink(h)
	}
	for _, h := range events {
		t.send(h, out)
	}
}

func (t *Table) settle(h *held, v event.Verdict, out *Moves) {
	out.settle(h.event, v)
	t.forget(h)
}

// refresh updates an event before it is sent again.
func (t *Table) refresh(h *held) {
	if h.extra == nil || h.extra.past == nil {
		return // no earlier holder
	}
	t.renew(h)
}

func (t *Table) renew(h *held) {
	h.refresh()
	weight := weightOf(h.event)
	t.bytes += weight - int(h.bytes)
	h.bytes = uint32(weight)
}

func (t *Table) forget(h *held) {
	t.unlink(h)
	t.ages.remove(h)
	t.bytes -= int(h.bytes)
	t.shelf.remove(h)
}

// move takes an event from where it is to l.
func (t *Table) move(h *held, l *list) {
	t.unlink(h)
	t.count[l.place]++
	l.push(h)
}

func (t *Table) unlink(h *held) {
	if h.on != nil {
		t.count[h.on.place]--
		h.on.remove(h)
	}
}

// weightOf returns an event's weight in frames: never less than its encoding.
func weightOf(ev *event.Event) int { return ev.Bytes() + len(ev.Topic) }
