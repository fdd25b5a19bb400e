package source

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/invariant"
)

// EntryID is the broker's name of an entry: a producer's batch, or a message of its own.
type EntryID struct{ Ledger, Entry int64 }

// Counting is the unit in which the broker counts its allowance of unacked events.
//
//exhaustive:enforce
type Counting uint8

const (
	// CountEntries is a stock broker: an entry counts whole until all its events are acked.
	CountEntries Counting = iota + 1
	// CountEvents is a broker with acknowledgmentAtBatchIndexLevelEnabled.
	CountEvents
)

// Message is an event as it came from the broker, with the fields that keys are made of.
type Message struct {
	Event       *event.Event
	Key         string // the message key, "" when there is none
	OrderingKey string // the ordering key, "" when there is none
}

// Receipt is the delivery of one event by the broker.
type Receipt struct {
	*Message // the ledger's, if it is fresh

	Entry EntryID
	Total int32 // events in the entry, at least 1
	Index int32 // of this event, from 0
	// Origin numbers the topic partition that it came from, from 0. The events of an entry
	// come from one origin one after the other, without others between them.
	Origin int32
	Ref    any // the caller's reference for acking it
	// Copy says that it came from the retry topic.
	Copy bool
	// Unreadable is the reason why the event cannot be handed on; "" when it can.
	Unreadable string
}

// Ack names what the caller must acknowledge at the broker: a whole entry under CountEntries,
// one event of it under CountEvents.
type Ack struct {
	Entry  EntryID
	Total  int32
	Index  int32
	Origin int32
	Ref    any // of the event under CountEvents; of the entry's newest receipt otherwise
}

// Claimed is an event of which a copy is to be made, and the verdict that says so.
type Claimed struct {
	Message
	Verdict event.Verdict
}

// Reception is the meaning of a receipt.
//
//exhaustive:enforce
type Reception uint8

const (
	// Fresh events are handed on, under their new handle.
	Fresh Reception = iota + 1
	// Joined events are still open from an earlier receipt: their one verdict will
	// settle both, nothing is handed on.
	Joined
	// Repeated events were settled here, and their entry is still open: under
	// CountEntries they are acked with it, under CountEvents the ack was lost and
	// has to be sent again.
	Repeated
)

// OpenMax is the largest number of events that a [Ledger] can hold open.
const OpenMax = event.SlotsMax

// noEntry and noSlot end lists and mark absent entries and slots.
const (
	noEntry = int32(-1)
	noSlot  = int32(-1)
)

// Values of entry.state besides slot numbers.
const (
	unreceived = int32(-1)
	settled    = int32(-2)
)

// Stats is a ledger in numbers.
type Stats struct {
	Unsettled     int           // events that were received and have no end yet
	Bytes         int           // weight of the open entries; a settled event counts as long as its entry, whose memory it shares
	Entries       int           // open entries
	PinnedEntries int           // open entries of which some events are settled
	Pinned        int           // settled events in them, which the broker still counts as unacked
	Spilling      int           // unsettled events waiting for a copy, to free the events that they pin
	Allowance     int           // unacked events as the broker counts them, without those still in the reader's queue
	Torn          uint64        // entries that were given up because their delivery was cut in the middle, ever
	Oldest        clock.Instant // when the oldest open entry came; clock.Forever when there is none
}

// Ledger tracks the open entries and their open events.
//
// It is pure: no goroutine, clock, lock or I/O. It is not safe for concurrent use.
// Memory is reused, so that a receipt and its settlement allocate nothing in the
// long run.
type Ledger struct {
	counting Counting
	slots    slots
	found    []*slot // scratch of Settle
	entries  []entry
	spare    []int32 // free entry numbers
	byID     map[EntryID]int32
	origins  []originState
	oldest   int32 // list of entries by age
	newest   int32
	before   uint64 // generations that an earlier ledger of this node has used
	latest   uint64 // highest generation in use here
	batch    uint32 // number of the batch that is being received; earlier ones were handed on
	spill    spill
	stats    Stats
}

// originState is a ledger's state for one stream of the broker. The broker has a separate
// allowance for each.
type originState struct {
	current int32 // the entry that is being received, or noEntry
	unacked int   // events as the broker counts them
}

// claim names the part of the source that may settle an open event.
//
//exhaustive:enforce
type claim uint8

const (
	unclaimed claim = iota // its verdict
	spilling               // its verdict, or a spill copy that waits to be sent
	sending                // the verdict Done, or the spill copy that was sent
	claimed                // only the copy that its verdict asked for
)

// entry is one open entry.
type entry struct {
	id           EntryID
	state        []int32 // per index: unreceived, settled, or the slot of the open event
	received     clock.Instant
	ref          any // newest
	total        int32
	open         int32
	spilling     int32 // of the open ones, those of which a copy is to be made
	settled      int32
	origin       int32
	bytes        int
	older, newer int32
	torn         bool // its delivery was cut: the missing events come only with a whole redelivery
}

// NewLedger returns an empty ledger.
func NewLedger(counting Counting) *Ledger {
	return &Ledger{counting: counting, slots: slots{keepsRefs: counting == CountEvents}, byID: make(map[EntryID]int32), oldest: noEntry, newest: noEntry}
}

// ContinueAfter makes the handles of l differ from all handles of an earlier ledger of
// this node: a late verdict must never settle another event. Call it before the first
// receipt.
func (l *Ledger) ContinueAfter(earlier *Ledger) { l.before = max(earlier.before, earlier.latest) }

// Received takes one receipt in. Of a fresh event it returns the new handle, which
// it also writes into the event. The handle is 0 when the receipt is not fresh, and
// also when it makes no sense (Index outside of Total) or OpenMax events are open;
// such an event stays unacked at the broker.
func (l *Ledger) Received(now clock.Instant, r *Receipt) (event.Handle, Reception) {
	if r.Index < 0 || r.Index >= r.Total || l.stats.Unsettled == OpenMax {
		return 0, Joined
	}
	number := l.enter(now, r)
	e := &l.entries[number]
	if !invariant.Check(e.total == r.Total, "source: an entry changed its size") {
		return 0, Joined
	}
	e.ref = r.Ref
	switch at := e.state[r.Index]; at {
	case unreceived:
		return l.open(number, r), Fresh
	case settled:
		return 0, Repeated
	default:
		l.slots.setRef(at, r.Ref)
		return 0, Joined
	}
}

// enter finds or makes the entry of a receipt, and notices when the origin has left
// another entry unfinished.
func (l *Ledger) enter(now clock.Instant, r *Receipt) int32 {
	for int(r.Origin) >= len(l.origins) {
		l.origins = append(l.origins, originState{current: noEntry})
	}
	current := l.origins[r.Origin].current
	if current != noEntry && l.entries[current].id == r.Entry {
		return current
	}
	if current != noEntry {
		l.leave(current)
	}
	number, known := l.byID[r.Entry]
	if !known {
		number = l.add(now, r)
	}
	e := &l.entries[number]
	if known && e.origin != r.Origin {
		l.changeOrigin(number, r.Origin)
	}
	e.torn = false
	l.origins[r.Origin].current = number
	return number
}

// changeOrigin moves an entry that is redelivered from another origin.
func (l *Ledger) changeOrigin(number, to int32) {
	e := &l.entries[number]
	from := &l.origins[e.origin]
	if from.current == number {
		from.current = noEntry
	}
	unacked := l.unackedOf(e)
	from.unacked -= unacked
	l.origins[to].unacked += unacked
	e.origin = to
}

// unackedOf returns the number of unacked events that the broker counts for an entry.
func (l *Ledger) unackedOf(e *entry) int {
	if l.counting == CountEntries {
		return int(e.total)
	}
	return int(e.open)
}

// leave is called when the origin moves on to another entry.
func (l *Ledger) leave(number int32) {
	e := &l.entries[number]
	l.origins[e.origin].current = noEntry
	if e.open+e.settled < e.total {
		e.torn = true
		l.dropIfOver(number)
	}
}

func (l *Ledger) add(now clock.Instant, r *Receipt) int32 {
	var number int32
	if n := len(l.spare); n > 0 {
		number, l.spare = l.spare[n-1], l.spare[:n-1]
	} else {
		number = int32(len(l.entries))
		l.entries = append(l.entries, entry{})
	}
	e := &l.entries[number]
	state := e.state[:0]
	for range r.Total {
		state = append(state, unreceived)
	}
	*e = entry{id: r.Entry, state: state, received: now, total: r.Total, origin: r.Origin, older: l.newest, newer: noEntry}
	if l.newest == noEntry {
		l.oldest = number
	} else {
		l.entries[l.newest].newer = number
	}
	l.newest = number
	l.byID[r.Entry] = number
	l.stats.Entries++
	if l.counting == CountEntries {
		l.count(r.Origin, int(r.Total))
	}
	return number
}

// open gives a fresh event its slot and handle.
func (l *Ledger) open(number int32, r *Receipt) event.Handle {
	at := l.slots.take(l.stats.Unsettled)
	s := &l.slots.all[at]
	s.generation = max(s.generation, l.before) + 1
	l.latest = max(l.latest, s.generation)
	s.message, s.entry, s.index, s.batch = r.Message, number, r.Index, l.batch
	l.slots.setRef(at, r.Ref)
	e := &l.entries[number]
	e.state[r.Index] = at
	e.open++
	weight := r.Event.Bytes()
	e.bytes += weight
	l.stats.Bytes += weight
	l.stats.Unsettled++
	if l.counting == CountEvents {
		l.count(e.origin, 1)
	}
	handle := event.NewHandle(s.generation, at)
	r.Event.Handle = handle
	return handle
}

func (l *Ledger) slotOf(h event.Handle) *slot {
	at := h.Slot()
	if int(at) >= len(l.slots.all) {
		return nil
	}
	s := &l.slots.all[at]
	if s.message == nil || s.generation != h.Generation() {
		return nil
	}
	return s
}

// count adds to the broker's count of unacked events.
func (l *Ledger) count(origin int32, n int) {
	l.origins[origin].unacked += n
	l.stats.Allowance += n
}

// Settle takes final verdicts. An event that was done is settled, and the acks that are now
// due are appended to acks. Any other is claimed for a copy, and appended to copies: from now on
// only [Ledger.Copied] settles it. Settle ignores verdicts on events that are settled or
// claimed already; while a copy of an event is being sent, only Done is not ignored. It returns
// how many events were done.
func (l *Ledger) Settle(verdicts []event.Verdict, acks []Ack, copies []Claimed) (_ []Ack, _ []Claimed, done int) {
	l.found = l.found[:0]
	for i := range verdicts { // a loop of its own, so that the cache misses overlap
		l.found = append(l.found, l.slotOf(verdicts[i].Handle))
	}
	for i, s := range l.found {
		v := &verdicts[i]
		switch {
		case !invariant.Check(v.Kind.Final(), "source: settled by a verdict that is not final"):
		case s == nil, s.message == nil, s.claim == claimed: // or settled by an earlier one of these
		case v.Kind == event.Done:
			done++
			acks = l.settle(v.Handle.Slot(), s, acks)
		case s.claim != sending:
			l.endSpill(s)
			s.claim = claimed
			copies = append(copies, Claimed{*s.message, *v})
		}
	}
	l.spill.ended += uint64(done)
	return acks, copies, done
}

// Copied settles an event whose copy is safe, and appends the acks that are now due. It
// reports false when the event is settled already.
func (l *Ledger) Copied(h event.Handle, acks []Ack) ([]Ack, bool) {
	s := l.slotOf(h)
	if s == nil || !invariant.Check(s.claim == claimed || s.claim == sending, "source: an event was copied without a claim on it") {
		return acks, false
	}
	if s.claim == claimed {
		l.spill.ended++
	}
	return l.settle(h.Slot(), s, acks), true
}

// Close forgets everything that is open, because the broker takes it back with the
// subscription, and appends the handles of the open events to dst.
func (l *Ledger) Close(dst []event.Handle) []event.Handle {
	for at := range l.slots.all {
		if s := &l.slots.all[at]; s.message != nil {
			dst = append(dst, event.NewHandle(s.generation, int32(at)))
			l.vacate(int32(at), s)
		}
	}
	for l.oldest != noEntry {
		l.remove(l.oldest)
	}
	return dst
}

// settle ends the event in a slot.
func (l *Ledger) settle(at int32, s *slot, acks []Ack) []Ack {
	number, index, ref := s.entry, s.index, l.slots.ref(at)
	e := &l.entries[number]
	e.state[index] = settled
	e.settled++
	l.vacate(at, s)
	if l.counting == CountEvents {
		acks = append(acks, Ack{Entry: e.id, Total: e.total, Index: index, Origin: e.origin, Ref: ref})
		if e.open == 0 { // each ack is independent; events that the broker has omitted will not arrive
			l.remove(number)
		}
		return acks
	}
	l.stats.Pinned++
	if e.settled == 1 {
		l.stats.PinnedEntries++
	}
	if e.settled == e.total {
		acks = append(acks, Ack{Entry: e.id, Total: e.total, Index: index, Origin: e.origin, Ref: e.ref})
		l.remove(number)
		return acks
	}
	l.dropIfOver(number)
	return acks
}

// vacate frees a slot.
func (l *Ledger) vacate(at int32, s *slot) {
	e := &l.entries[s.entry]
	e.open--
	l.stats.Unsettled--
	if l.counting == CountEvents {
		l.count(e.origin, -1)
	}
	l.endSpill(s)
	l.slots.vacate(at)
}

// dropIfOver forgets a torn entry once none of its events is open. It is not acked: some
// of its events have not come, and the broker will deliver the whole entry again.
func (l *Ledger) dropIfOver(number int32) {
	e := &l.entries[number]
	if !e.torn || e.open > 0 {
		return
	}
	if l.counting == CountEntries {
		l.stats.Torn++
	}
	l.remove(number)
}

func (l *Ledger) remove(number int32) {
	e := &l.entries[number]
	if l.origins[e.origin].current == number {
		l.origins[e.origin].current = noEntry
	}
	if e.older == noEntry {
		l.oldest = e.newer
	} else {
		l.entries[e.older].newer = e.newer
	}
	if e.newer == noEntry {
		l.newest = e.older
	} else {
		l.entries[e.newer].older = e.older
	}
	delete(l.byID, e.id)
	l.stats.Entries--
	l.stats.Bytes -= e.bytes
	if l.counting == CountEntries {
		l.count(e.origin, -int(e.total))
		l.stats.Pinned -= int(e.settled)
		if e.settled > 0 {
			l.stats.PinnedEntries--
		}
	}
	e.ref = nil
	l.spare = append(l.spare, number)
}

// Stats returns the ledger in numbers, in constant time.
func (l *Ledger) Stats() Stats {
	s := l.stats
	s.Oldest = clock.Forever
	if l.oldest != noEntry {
		s.Oldest = l.entries[l.oldest].received
	}
	return s
}
