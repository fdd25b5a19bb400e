package forward

import (
	"fmt"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
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
// proportion to its own events; only SetRoute visits all waiting events, and PeerDown and TakenOver all
// events.
type Table struct {
	config Config
	epoch  event.Position // of the route
	owners owners

	records        map[event.Handle]*record // by Entry.First
	oldest, newest *record                  // the records are a list by age
	extras         map[event.Handle]*extra
	ageNewest      uint64     // record.age of the newest record, held or not
	n              int        // held events
	bytes          int        // of all records
	relayedBytes   int        // of the records of relayed events
	left           event.Bits // scratch of Done

	local   *lane
	nobody  *lane   // for the events of partitions without an owner, and the reservations that wait for an owner that takes them
	lanes   []*lane // in the order of their coming
	waiting map[waiter]*wait
	waits   waits  // the values of waiting, as a heap by due time
	viaNext int    // index in lanes at which the search for the next third member begins, so that they take turns
	ignored uint64 // verdicts that do not count, see Settle; and events of entries that are held already
	missed  uint64 // of ignored: failures and rejections of events that are not held
	resent  uint64 // see Stats.Resent
	// relayedRefused counts the relayed events that were refused because of Config.RelayedBytesMax.
	relayedRefused uint64

	releases releases
}

// NewTable returns an empty table without a route: held events wait for one. The
// configuration must be valid.
func NewTable(config Config) *Table {
	nobody := new(lane)
	return &Table{
		config:  config,
		records: make(map[event.Handle]*record), extras: make(map[event.Handle]*extra),
		local:   &lane{peer: Local, up: true, calls: true},
		nobody:  nobody,
		owners:  owners{lanes: []*lane{nobody}},
		waiting: make(map[waiter]*wait),
	}
}

// Hold takes the fresh events of an entry, and keeps each until its verdict. They are of the source, or of a consumer node that has relayed
// them to this node because it cannot reach their owner. An entry that is held already is ignored. An event too large for a frame is
// settled at once as rejected.
//
// A relayed event is passed on once and never waits: instead it is settled with a verdict that is not final (NotOwner,
// NotYet or Overloaded), which goes back to its consumer node.
func (t *Table) Hold(now clock.Instant, e *event.Entry, out *Moves) {
	if t.records[e.First] != nil {
		t.ignored += uint64(e.Fresh.Len())
		return
	}
	if e.First.IsRelayed() && t.relayedBytes > 0 && t.relayedBytes+e.Bytes > t.config.RelayedBytesMax {
		t.relayedRefused += uint64(e.Fresh.Len())
		for i := range e.Fresh.All() {
			out.settle(event.Ref{Entry: e, Index: int32(i)}, t.notYet(e.Handle(i)))
		}
		return
	}
	r := &record{entry: e, since: now, events: event.NewBits(e.Len()), n: 1} // so that it exists until the end of the call
	t.enter(r)
	for i := range e.Fresh.All() {
		h := held{r, i}
		ref := t.ref(h)
		if weight, eventMax := weightOf(&ref), t.config.FrameMax-frameOverheadMax; weight > eventMax {
			out.settle(ref, tooLarge(h, weight, eventMax))
			continue
		}
		r.events.Add(i)
		r.n++
		t.n++
		t.send(h, out)
	}
	r.n--
	t.removeIfEmpty(r)
}

// tooLarge returns the verdict on an event that no frame carries.
func tooLarge(h held, weight, eventMax int) event.Verdict {
	if h.isCall() {
		return event.NotRun(h.handle(), event.CodeTooLarge, fmt.Sprintf("the call weighs %d bytes, a frame carries %d", weight, eventMax))
	}
	return event.Verdict{Handle: h.handle(), Kind: event.Rejected, Detail: &event.Detail{
		Attempts: h.entry.Event(h.index).Attempts,
		Reason:   fmt.Sprintf("the event weighs %d bytes, a frame carries %d", weight, eventMax),
	}}
}

// Take moves events that wait for peer to Sent and appends them to dst: up to eventsMax
// events, and up to bytesMax bytes if there is more than one. It returns no events when
// the peer is down. With relay set, the peer is not the owner of these events and must pass them on.
func (t *Table) Take(peer Peer, eventsMax, bytesMax int, dst []event.Ref) (batch []event.Ref, relay bool) {
	l, n := t.find(peer), len(dst)
	if l == nil || !l.up {
		return dst, false
	}
	for _, unreachable := range t.lanes {
		if unreachable.via == l {
			if dst = t.take(unreachable, l, eventsMax, bytesMax, dst); len(dst) > n {
				return dst, true
			}
		}
	}
	return t.take(l, l, eventsMax, bytesMax, dst), false
}

// take sends events that are queued for the lane from by way of the lane by, which is another one only for events that
// its peer relays.
func (t *Table) take(from, by *lane, eventsMax, bytesMax int, dst []event.Ref) []event.Ref {
	begin, bytes := len(dst), 0
	for s := from.queue.front(); s != nil; s = from.queue.front() {
		for i := range s.queued.All() {
			h := held{s.record, i}
			if w := t.behind(h); w != nil && !h.isRelayed() {
				s.dequeue(i)
				w.events.add(h)
				continue
			}
			ref := t.refreshed(h)
			bytes += weightOf(&ref)
			if n := len(dst) - begin; n == eventsMax || bytes > bytesMax && n > 0 {
				return dst
			}
			s.dequeue(i)
			h.give(by, from != by)
			dst = append(dst, ref)
		}
	}
	return dst
}

// Done takes the verdict of from, the local mailbox or a peer, that events are done. It settles those that from
// has or once had. Others are ignored: they are normal after a broken stream.
func (t *Table) Done(from Peer, set event.Set, out *Moves) {
	r, l := t.records[set.First], t.find(from)
	if r == nil {
		t.ignored += uint64(set.Events.Len())
		return
	}
	t.left = append(t.left[:0], set.Events...)
	done := event.NewBits(r.entry.Len())
	n := 0
	for _, s := range r.shares {
		if l != nil && s.lane == l && s.sentN > 0 {
			sent := s.sent.Take(t.left, done)
			s.takenBack(sent)
			n += sent
		}
	}
	t.left.RemoveAll(done)
	for i := range t.left.All() {
		if h := (held{r, i}); r.events.Has(i) && t.had(h, from) {
			t.lift(h)
			done.Add(i)
			n++
			continue
		}
		t.ignored++
	}
	if n > 0 {
		out.Done = append(out.Done, event.Set{First: r.entry.First, Events: done, Entry: r.entry})
		t.forget(r, done, n)
	}
}

// Settle takes verdicts of from, the local mailbox or a peer. A final verdict settles its
// event if from has or once had it; a refusal, and any verdict on a reservation, counts only from the present holder. Other
// verdicts are ignored: they are normal after a broken stream.
func (t *Table) Settle(now clock.Instant, from Peer, verdicts []event.Verdict, out *Moves) {
	for i := range verdicts {
		v := &verdicts[i]
		h, ok := t.lookUp(v.Handle)
		if !ok {
			t.ignored++
			if v.Kind == event.Failed || v.Kind == event.Rejected {
				t.missed++
			}
			continue
		}
		sent := h.sentTo()
		with := sent != nil && sent.lane.peer == from
		switch {
		case v.Kind == event.Answered && !h.isCall(), v.Kind == event.Granted && !h.isReservation():
			t.ignored++
		case v.Kind == event.Done && (with || t.had(h, from)):
			t.done(h, out)
		case v.Kind.Final() && (with || t.had(h, from)):
			t.settle(h, *v, out)
		case !with:
			t.ignored++
		case v.Kind == event.Attempted:
			t.note(h, v)
			if h.isRelayed() {
				out.Attempted = append(out.Attempted, *v)
			}
		case v.Kind == event.Granted:
			t.grant(h, v, out)
		default:
			t.refuse(now, h, sent, v, out)
		}
	}
}

// lookUp finds a held event.
func (t *Table) lookUp(handle event.Handle) (held, bool) {
	r := t.records[handle.First()]
	return held{r, handle.Index()}, r != nil && r.events.Has(handle.Index())
}

// refuse moves an event that its peer has refused to where it waits.
func (t *Table) refuse(now clock.Instant, h held, sent *share, v *event.Verdict, out *Moves) {
	if h.isRelayed() {
		t.settle(h, *v, out)
		return
	}
	l, owner, detail := sent.lane, t.ownerOf(h), v.DetailOrZero()
	t.markPast(h, l.peer)
	sent.takeBack(h.index)
	if h.isCall() && !t.mayRepeat(h, out) {
		return
	}
	t.resent++
	switch {
	case sent.relay: // that peer could not relay the event; another peer is tried later
		if owner.via == l {
			owner.via = nil
		}
		t.strand(now, h, l.peer, event.Position{})
	case h.isCall() && v.Kind == event.Overloaded && !t.isReleased(h):
		t.settle(h, overloaded(h.handle(), detail.Delay), out)
	case !h.isCall() && v.Kind == event.Overloaded:
		t.awaitRoom(now, h, l.peer, t.clamp(detail.Delay))
	case v.Kind == event.NotOwner && owner != l:
		t.send(h, out)
	case v.Kind == event.NotOwner:
		t.strand(now, h, l.peer, detail.Epoch)
	default: // NotYet, no room for a released reservation, and kinds of later versions
		t.stop(now, t.waitOf(h), h, Delayed, l.peer, t.clamp(detail.Delay))
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
		t.redeem(now, from, t.waiting[waiter{key: key}], events, out)
	}
}

// SetRoute replaces the route and this node's incarnation. Waiting events follow the new
// route; events that a peer has stay with it, even if it was deposed: it may be running them. They leave it when
// it answers, when its stream breaks, or by TakenOver.
func (t *Table) SetRoute(now clock.Instant, self Peer, route Route, out *Moves) {
	t.epoch = route.Epoch()
	t.markOwners(now, self, route)
	for _, l := range slices.Concat([]*lane{t.nobody}, t.lanes) {
		t.resend(l, func(owner *lane) bool { return owner != l }, out)
	}
	t.follow(now, out)
	t.prune()
}

// PeerUp says that the stream to peer works, and whether the peer takes calls.
func (t *Table) PeerUp(now clock.Instant, peer Peer, calls bool, out *Moves) {
	l := t.lane(now, peer)
	if l.up {
		return
	}
	l.up, l.calls, l.since, l.via = true, calls, now, nil
	if !calls {
		t.refuseCalls(l, "the owner's release takes no calls", out)
	}
	t.resend(t.nobody, func(owner *lane) bool { return owner == l }, out)
	if l.queuedN > 0 {
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
	lost := t.lostOn(l, nil)
	unanswered = len(lost)
	for _, h := range l.queue.all() {
		t.lift(h)
		lost = append(lost, h)
	}
	l.queue.compact()
	t.repeat(lost, out)
	t.prune()
	return unanswered
}

// TakenOver reports that other members have taken partitions over from a peer that did not release them: none of its
// deliveries runs there now. The peer may be cut off from the control log alone, and then it keeps its stream and
// answers nothing. Its events of these partitions that it has not answered are sent again, as if the stream were
// broken. It returns their number.
func (t *Table) TakenOver(peer Peer, over func(ring.Partition) bool, out *Moves) (unanswered int) {
	l := t.find(peer)
	if l == nil || l == t.local || l.sentN == 0 {
		return 0
	}
	lost := t.lostOn(l, over)
	t.repeat(lost, out)
	if l.up {
		out.wake(peer) // its stream may have been kept for these events alone
	}
	return len(lost)
}

// repeat sends events again, in their order, that are in no place: their streams are broken, or their owners have lost the keys.
func (t *Table) repeat(lost []held, out *Moves) {
	slices.SortFunc(lost, byOrder)
	for _, h := range lost {
		if h.isCall() && !t.mayRepeat(h, out) {
			continue
		}
		t.send(h, out)
	}
}

// Tick does the work that is due at now. Call it at [Table.Next], or later.
func (t *Table) Tick(now clock.Instant, out *Moves) {
	for len(t.waits) > 0 && !t.waits[0].due.After(now) {
		t.sendWaiting(now, t.waits[0], t.waits[0].burst, out)
	}
	t.expireReleases(now, out)
	for _, l := range t.lanes {
		if !t.relayAt(l).After(now) {
			t.refuseCalls(l, "the owner of the key cannot be reached", out)
			if l.via = t.third(l); l.via == nil {
				continue // of a group of two; its events wait
			}
			t.viaNext = slices.Index(t.lanes, l.via) + 1
			out.wake(l.via.peer)
		}
	}
}

// Next is the instant at which Tick has something to do, [clock.Forever] when there is none.
func (t *Table) Next() clock.Instant {
	next := clock.Forever
	if len(t.releases.all) > 0 {
		next = t.releases.all[0].due
	}
	if len(t.waits) > 0 {
		next = min(next, t.waits[0].due)
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
		if h, ok := t.lookUp(handle); ok {
			t.end(h)
		}
	}
}

// Newest returns a held event with all failures that its owners have reported, or nil.
func (t *Table) Newest(handle event.Handle) *event.Event {
	h, ok := t.lookUp(handle)
	if !ok {
		return nil
	}
	ref := t.refreshed(h)
	return ref.Event()
}

// Unanswered returns the number of events that peer has not answered.
func (t *Table) Unanswered(peer Peer) int {
	if l := t.find(peer); l != nil {
		return l.sentN
	}
	return 0
}

// Stats is a snapshot of a table.
type Stats struct {
	Events         int
	Bytes          int           // of their entries
	Relayed        int           // bytes of the entries that other members have sent here to be passed on
	In             [places]int   // events by Place
	FullKeys       int           // keys whose mailbox was full
	Oldest         clock.Instant // when the oldest event was held; zero when there is none
	Resent         uint64        // events that were refused, lost with their stream, or not answered before a takeover
	RelayedRefused uint64        // relayed events that were refused because of Config.RelayedBytesMax
	Ignored        uint64        // verdicts on events that are not held
	MissedFailures uint64        // of these, failures and rejections, mostly of events that were spilled: they come back without them
	Forgotten      uint64        // releases of reservations that were forgotten before an owner had confirmed them
}

// Stats returns a snapshot of the table. It visits the keys that wait.
func (t *Table) Stats() Stats {
	s := Stats{Events: t.n, Bytes: t.bytes, Relayed: t.relayedBytes, Resent: t.resent, RelayedRefused: t.relayedRefused, Ignored: t.ignored, MissedFailures: t.missed, Forgotten: t.releases.forgotten}
	s.In[Sent], s.In[Refused] = t.local.sentN, t.nobody.queuedN
	for _, l := range t.lanes {
		s.In[Queued] += l.queuedN
		s.In[Sent] += l.sentN
	}
	for _, w := range t.waits {
		s.In[w.place] += len(w.events)
		if w.isFull() {
			s.FullKeys++
		}
	}
	if t.oldest != nil {
		s.Oldest = t.oldest.since
	}
	return s
}

// send moves an event, which is in no place, towards its owner, or to the place where it has to wait. A relayed
// event that would have to wait is refused back to its sender.
func (t *Table) send(h held, out *Moves) {
	w, l := t.behind(h), t.ownerOf(h)
	if x := t.extraOf(h); x != nil {
		x.granted = false
	}
	switch {
	case (w != nil || !l.up) && h.isRelayed():
		t.settle(h, t.notYet(h.handle()), out)
	case w != nil:
		w.events.add(h)
	case h.isCall() && (l.up && !l.calls || l.via != nil):
		t.refuseCall(h, "the owner of the key cannot be reached, or its release takes no calls", out)
	case l == t.local:
		h.give(l, toOwner)
		out.Local = append(out.Local, t.refreshed(h))
	default:
		h.enqueue(l)
		if !l.up {
			l = l.via
		}
		if l != nil {
			out.wake(l.peer)
		}
	}
}

// resend sends queued events of a lane again, those whose owners are due.
func (t *Table) resend(from *lane, due func(owner *lane) bool, out *Moves) {
	var events []held
	for _, h := range from.queue.all() { // first, so that they need not be sorted in
		if due(t.ownerOf(h)) {
			t.lift(h)
			events = append(events, h)
		}
	}
	from.queue.compact()
	t.repeat(events, out)
}

// settle ends a held event with a verdict.
func (t *Table) settle(h held, v event.Verdict, out *Moves) {
	if h.isCall() {
		v = t.corrected(h, v)
	}
	out.settle(t.ref(h), v)
	t.end(h)
}

// done settles one event that is done, with others of its entry.
func (t *Table) done(h held, out *Moves) {
	n := len(out.Done)
	if n == 0 || out.Done[n-1].Entry != h.entry {
		out.Done = append(out.Done, event.Set{First: h.entry.First, Events: event.NewBits(h.entry.Len()), Entry: h.entry})
		n++
	}
	out.Done[n-1].Events.Add(h.index)
	t.end(h)
}

// end takes an event out of its place, and forgets it.
func (t *Table) end(h held) {
	t.lift(h)
	h.events.Remove(h.index)
	h.n--
	t.n--
	t.dropExtra(h)
	t.removeIfEmpty(h.record)
}

// weightOf returns an event's weight in frames: never less than its encoding.
func weightOf(ref *event.Ref) int { return ref.Weight() + len(ref.Topic()) }

// notYet returns the verdict on a relayed event that cannot be passed on now: its sender keeps it.
func (t *Table) notYet(h event.Handle) event.Verdict {
	return event.Verdict{Handle: h, Kind: event.NotYet, Detail: &event.Detail{Delay: t.config.DelayMin}}
}
