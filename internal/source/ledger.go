package source

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/invariant"
)

// EntryID is the broker's name of an entry: a producer's batch, or a message of its own.
type EntryID struct{ Ledger, Entry int64 }

// Counting is how the broker counts its allowance of unacked events.
//
//exhaustive:enforce
type Counting uint8

const (
	// CountEntries is a stock broker: an entry counts whole until all its events are acked.
	CountEntries Counting = iota + 1
	// CountEvents is a broker with acknowledgmentAtBatchIndexLevelEnabled.
	CountEvents
)

// Message is an event as it came from the broker, with what a key can be made of.
type Message struct {
	Event       *event.Event
	Key         string // the message key, "" when there is none
	OrderingKey string // the ordering key, "" when there is none
}

// Receipt says that the broker delivered one event.
type Receipt struct {
	*Message // the ledger's, if it is fresh

	Entry EntryID
	Total int32 // events in the entry, at least 1
	Index int32 // of this one, from 0
	// Lane is the broker's stream that it came on, a small number. On one lane the
	// events of an entry come one after the other, with none of another entry between.
	Lane int32
	Ref  any // whatever the caller needs to ack it
	// Copy says that it came from the retry topic.
	Copy bool
	// Unreadable says why the event cannot be handed on; "" when it can.
	Unreadable string
}

// Ack tells the caller what to acknowledge at the broker: a whole entry under
// CountEntries, one event of it under CountEvents.
type Ack struct {
	Entry EntryID
	Total int32
	Index int32
	Lane  int32
	Ref   any // of the event under CountEvents; of the entry's newest receipt otherwise
}

// Reception is what a receipt means.
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

// noEntry and noSlot end lists and mark what is not there.
const (
	noEntry = int32(-1)
	noSlot  = int32(-1)
)

// What stands in entry.state besides slot numbers.
const (
	unreceived = int32(-1)
	settled    = int32(-2)
)

// Stats is a ledger in numbers.
type Stats struct {
	Unsettled     int           // events that were received and have no end yet
	Bytes         int           // what the open entries weigh; a settled event counts as long as its entry, whose memory it shares
	Entries       int           // open entries
	PinnedEntries int           // open entries of which some events are settled
	Pinned        int           // settled events in them: done for us, unacked for the broker
	Spilling      int           // unsettled events of which a copy is to be made, to free what they pin
	Allowance     int           // unacked events as the broker counts them, without those still in the client's queue
	Torn          uint64        // entries that were given up because their delivery was cut in the middle, ever
	Oldest        clock.Instant // when the oldest open entry came; clock.Forever when there is none
}

// Ledger knows the open entries and their open events.
//
// It is pure: no goroutine, clock, lock or I/O. It is not safe for concurrent use.
// Memory is reused, so that a receipt and its settlement allocate nothing in the
// long run.
type Ledger struct {
	counting Counting
	slots    slots
	found    []*slot // scratch of DoneAll
	entries  []entry
	spare    []int32 // free entry numbers
	byID     map[EntryID]int32
	lanes    []laneState
	oldest   int32 // list of entries by age
	newest   int32
	before   uint64 // generations that an earlier ledger of this node has used
	latest   uint64 // highest generation in use here
	batch    uint32 // number of the batch that is being received; earlier ones were handed on
	spill    spill
	stats    Stats
}

// laneState is what a ledger knows of one stream of the broker. The broker has an
// allowance of its own for each.
type laneState struct {
	current int32 // the entry that is being received, or noEntry
	unacked int   // events as the broker counts them
}

// claim says who settles an open event.
//
//exhaustive:enforce
type claim uint8

const (
	unclaimed claim = iota // its verdict
	spilling               // its verdict, or a copy that waits to be sent, to free what the event pins
	sending                // that it was done, or this copy, which is on its way to the broker
	claimed                // the copy that its verdict asked for, alone
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
	lane         int32
	bytes        int
	older, newer int32
	torn         bool // its delivery was cut: what is missing comes only with a whole redelivery
}

// NewLedger returns an empty ledger.
func NewLedger(counting Counting) *Ledger {
	return &Ledger{counting: counting, slots: slots{keepsRefs: counting == CountEvents}, byID: make(map[EntryID]int32), oldest: noEntry, newest: noEntry}
}

// ContinueAfter makes the handles of l differ from all that an earlier ledger of
// this node gave: a verdict that comes late must never settle another event. Call it
// before the first receipt.
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

// enter finds or makes the entry of a receipt, and notices when the lane has left
// another one behind unfinished.
func (l *Ledger) enter(now clock.Instant, r *Receipt) int32 {
	for int(r.Lane) >= len(l.lanes) {
		l.lanes = append(l.lanes, laneState{current: noEntry})
	}
	current := l.lanes[r.Lane].current
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
	if known && e.lane != r.Lane {
		l.changeLane(number, r.Lane)
	}
	e.torn = false
	l.lanes[r.Lane].current = number
	return number
}

// changeLane is for an entry that comes again by another way.
func (l *Ledger) changeLane(number, to int32) {
	e := &l.entries[number]
	from := &l.lanes[e.lane]
	if from.current == number {
		from.current = noEntry
	}
	unacked := l.unackedOf(e)
	from.unacked -= unacked
	l.lanes[to].unacked += unacked
	e.lane = to
}

// unackedOf is how many events of an entry the broker counts.
func (l *Ledger) unackedOf(e *entry) int {
	if l.counting == CountEntries {
		return int(e.total)
	}
	return int(e.open)
}

// leave is called when the lane goes on to another entry.
func (l *Ledger) leave(number int32) {
	e := &l.entries[number]
	l.lanes[e.lane].current = noEntry
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
	*e = entry{id: r.Entry, state: state, received: now, total: r.Total, lane: r.Lane, older: l.newest, newer: noEntry}
	if l.newest == noEntry {
		l.oldest = number
	} else {
		l.entries[l.newest].newer = number
	}
	l.newest = number
	l.byID[r.Entry] = number
	l.stats.Entries++
	if l.counting == CountEntries {
		l.count(r.Lane, int(r.Total))
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
		l.count(e.lane, 1)
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

// count adds to what the broker counts as unacked.
func (l *Ledger) count(lane int32, n int) {
	l.lanes[lane].unacked += n
	l.stats.Allowance += n
}

// Done settles an event that was done, and appends what may now be acked. It reports
// false, and changes nothing, when the event has its end already, or a claim on it.
func (l *Ledger) Done(h event.Handle, acks []Ack) ([]Ack, bool) {
	acks, n := l.DoneAll([]event.Handle{h}, acks)
	return acks, n == 1
}

// DoneAll is Done for many events. It returns how many of them it has settled.
func (l *Ledger) DoneAll(handles []event.Handle, acks []Ack) ([]Ack, int) {
	l.found = l.found[:0]
	for _, h := range handles { // a loop of its own, so that the cache misses overlap
		l.found = append(l.found, l.slotOf(h))
	}
	done := 0
	for i, s := range l.found {
		if s == nil || s.message == nil || s.claim == claimed { // or settled by an earlier one of these
			continue
		}
		done++
		acks = l.settle(handles[i].Slot(), s, acks) //nolint:gosec // found has an entry for each handle
	}
	l.spill.ended += uint64(done)
	return acks, done
}

// Claim takes an open event for copying: from now on only [Ledger.Copied] settles
// it. It reports false when the event has its end already, another claim on it, or
// another copy of it under way.
func (l *Ledger) Claim(h event.Handle) (Message, bool) {
	s := l.slotOf(h)
	if s == nil || s.claim == sending || s.claim == claimed {
		return Message{}, false
	}
	l.endSpill(s)
	s.claim = claimed
	return *s.message, true
}

// Copied settles an event whose copy is safe, and appends what may now be acked. It
// reports false when the event has its end already.
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
		acks = append(acks, Ack{Entry: e.id, Total: e.total, Index: index, Lane: e.lane, Ref: ref})
		if e.open == 0 { // each ack stands for itself; what the broker has left out will not come
			l.remove(number)
		}
		return acks
	}
	l.stats.Pinned++
	if e.settled == 1 {
		l.stats.PinnedEntries++
	}
	if e.settled == e.total {
		acks = append(acks, Ack{Entry: e.id, Total: e.total, Index: index, Lane: e.lane, Ref: e.ref})
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
		l.count(e.lane, -1)
	}
	l.endSpill(s)
	l.slots.vacate(at)
}

// dropIfOver forgets a torn entry once nothing of it is open. It is not acked:
// some of its events have not come, and the broker has it, whole, for somebody.
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
	if l.lanes[e.lane].current == number {
		l.lanes[e.lane].current = noEntry
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
		l.count(e.lane, -int(e.total))
		l.stats.Pinned -= int(e.settled)
		if e.settled > 0 {
			l.stats.PinnedEntries--
		}
	}
	e.ref = nil
	l.spare = append(l.spare, number)
}

// Stats returns the ledger in numbers. It costs nothing.
func (l *Ledger) Stats() Stats {
	s := l.stats
	s.Oldest = clock.Forever
	if l.oldest != noEntry {
		s.Oldest = l.entries[l.oldest].received
	}
	return s
}
