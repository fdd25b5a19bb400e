package source

import (
	"slices"

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

// Receipt is the delivery of one entry by the broker, or of those of its events that are not acked yet.
type Receipt struct {
	Entry *event.Entry // belongs to the ledger from then on, if one of its events is fresh
	ID    EntryID
	// Cluster tells entries of several clusters apart: a topic can move to another one, which may use the ids again.
	Cluster uint64
	Has     event.Bits // the events that were delivered, at least one
	// Origin numbers the topic partition that it came from, from 0.
	Origin int32
	Ref    any // the caller's reference for acking it
	// Copy says that it came from the retry or the timer topic.
	Copy  bool
	early held // set for a copy that is not due yet, whose until is not 0; else zero
	// Unreadable is the reason why its one event cannot be handed on; "" when it can.
	Unreadable string
}

// Ack names what the caller must acknowledge at the broker: a whole entry under CountEntries,
// some events of it under CountEvents.
type Ack struct {
	Entry  EntryID
	Events event.Bits // nil: all
	Total  int        // events in the entry
	Ref    any        // of the entry's newest receipt
}

// Claimed is an event of which a copy is to be made, and the verdict that says so.
type Claimed struct {
	event.Message
	Verdict event.Verdict
}

// Reception counts what an entry brought.
type Reception struct {
	// Fresh events are handed on: those of Entry.Fresh.
	Fresh int
	// Joined events are still open from an earlier receipt: their one verdict will
	// settle both, nothing is handed on.
	Joined int
	// Repeated events were settled here, and their entry is still open: under
	// CountEntries they are acked with it, under CountEvents the ack was lost and
	// is sent again.
	Repeated int
}

// Stats is a ledger in numbers.
type Stats struct {
	Unsettled     int           // events that were received and have no end yet
	Bytes         int           // size of the open entries; a settled event counts as long as its entry, whose memory it shares
	Entries       int           // open entries
	PinnedEntries int           // open entries of which some events are settled
	Pinned        int           // settled events in them, which the broker still counts as unacked
	Spilling      int           // unsettled events waiting for a copy, to free the events that they pin
	Allowance     int           // unacked events as the broker counts them, without those still in the reader's queue
	Oldest        clock.Instant // when the oldest open entry came; clock.Forever when there is none
}

// Ledger tracks the open entries and their open events.
//
// It is pure: no goroutine, clock, lock or I/O. It is not safe for concurrent use. A call costs time by its entries and
// by the verdicts other than Done, not by events.
type Ledger struct {
	counting Counting
	byID     map[entryKey]*openEntry
	bySerial map[uint64]*openEntry
	claims   map[event.Handle]claim // of open events; mostly empty
	origins  []int                  // by origin: unacked events as the broker counts them, which has a separate allowance for each
	oldest   *openEntry             // the entries are a list by age
	newest   *openEntry
	serial   uint64        // given to the newest entry
	batch    uint32        // number of the batch that is being received; earlier ones were handed on
	now      clock.Instant // of the latest Received or Spill
	spill    spill
	stats    Stats
	hit      event.Bits // see scratch
}

// claim names the part of the source that may settle an open event.
//
//exhaustive:enforce
type claim uint8

// The claims, and what they let settle the event.
const (
	unclaimed claim = iota // any verdict
	spilling               // any verdict, or a spill copy that waits to be sent
	sending                // the verdict Done, or the spill copy that was sent
	claimed                // only the copy that its verdict asked for
)

// entryKey names an entry among those of all clusters.
type entryKey struct {
	id      EntryID
	cluster uint64
}

// openEntry is an entry with open events.
type openEntry struct {
	entry        *event.Entry
	key          entryKey
	got          event.Bits // the events that were received, open or settled
	events       event.Bits // those of got that are open
	n            int        // number of events
	total        int        // number of got
	received     clock.Instant
	late         clock.Instant // from then on the open events are spilled, see lateFactor; Forever until they pin many others
	ref          any           // of the newest receipt
	origin       int32
	batch        uint32 // number of the batch that it came with
	held         bool   // it is not due yet, and was not handed on
	claims       int    // number of its events in Ledger.claims
	spilling     int    // number of these that have the claim spilling or sending
	older, newer *openEntry
	others       *openEntry // the same entry again, with other events that came later: under CountEvents only
}

// NewLedger returns an empty ledger.
func NewLedger(counting Counting) *Ledger {
	return &Ledger{counting: counting, byID: make(map[entryKey]*openEntry), bySerial: make(map[uint64]*openEntry), claims: make(map[event.Handle]claim)}
}

// ContinueAfter makes the handles of l differ from all handles of an earlier ledger of
// this node: a late verdict must never settle another event. Call it before the first
// receipt.
func (l *Ledger) ContinueAfter(earlier *Ledger) { l.serial = earlier.serial }

// Received takes an entry in, gives its events their handles, and sets the fresh ones. Under CountEvents it appends the acks that
// were lost to acks.
func (l *Ledger) Received(now clock.Instant, r *Receipt, acks []Ack) (Reception, []Ack) {
	l.now = now
	if !invariant.Check(r.Entry.Len() <= event.EntryEventsMax, "source: an entry with more events than handles can name") {
		return Reception{}, acks
	}
	r.Entry.Fresh = r.Has
	key := entryKey{r.ID, r.Cluster}
	known := l.byID[key]
	if known == nil {
		l.byID[key] = l.open(now, r, key, r.Has)
		return Reception{Fresh: r.Entry.Fresh.Len()}, acks
	}
	left, joined := slices.Clone(r.Has), event.NewBits(r.Entry.Len())
	for o := known; o != nil; o = o.others {
		if !invariant.Check(o.entry.Len() == r.Entry.Len(), "source: an entry changed its size") {
			return Reception{Joined: r.Has.Len()}, acks
		}
		o.ref = r.Ref
		l.changeOrigin(o, r.Origin)
		left.Take(o.events, joined)
	}
	c := Reception{Joined: joined.Len()}
	repeated := event.NewBits(r.Entry.Len())
	for o := known; o != nil; o = o.others {
		left.Take(o.got, repeated)
	}
	c.Repeated, c.Fresh = repeated.Len(), left.Len()
	if c.Repeated > 0 && l.counting == CountEvents {
		acks = append(acks, Ack{Entry: r.ID, Events: repeated, Total: r.Entry.Len(), Ref: r.Ref})
	}
	if !invariant.Check(c.Fresh == 0 || l.counting == CountEvents, "source: an entry that the broker counts whole came in parts") {
		c.Fresh = 0
	}
	r.Entry.Fresh = left
	if c.Fresh > 0 {
		o := l.open(now, r, key, left)
		o.others = known
		l.byID[key] = o
	}
	return c, acks
}

// open enters an entry with events that are fresh.
func (l *Ledger) open(now clock.Instant, r *Receipt, key entryKey, fresh event.Bits) *openEntry {
	l.serial++
	r.Entry.SetFirst(event.NewHandle(l.serial, 0))
	o := &openEntry{
		entry: r.Entry, key: key, got: fresh, events: slices.Clone(fresh), n: fresh.Len(), received: now, late: clock.Forever, ref: r.Ref,
		origin: r.Origin, batch: l.batch, held: r.early.until != 0, older: l.newest,
	}
	o.total = o.n
	if l.newest == nil {
		l.oldest = o
	} else {
		l.newest.newer = o
	}
	l.newest = o
	l.bySerial[l.serial] = o
	l.stats.Unsettled += o.n
	l.stats.Bytes += r.Entry.Bytes
	l.count(r.Origin, o.n)
	return o
}

// count adds to the broker's count of unacked events.
func (l *Ledger) count(origin int32, n int) {
	for int(origin) >= len(l.origins) {
		l.origins = append(l.origins, 0)
	}
	l.origins[origin] += n
	l.stats.Allowance += n
}

// changeOrigin moves an entry that is redelivered from another origin.
func (l *Ledger) changeOrigin(o *openEntry, to int32) {
	if o.origin == to {
		return
	}
	unacked := l.unackedOf(o)
	l.count(o.origin, -unacked)
	l.count(to, unacked)
	o.origin = to
}

// unackedOf returns the number of unacked events that the broker counts for an entry.
func (l *Ledger) unackedOf(o *openEntry) int {
	if l.counting == CountEntries {
		return o.total
	}
	return o.n
}

// find returns the entry of an open event, or nil.
func (l *Ledger) find(h event.Handle) *openEntry {
	if o := l.bySerial[h.Serial()]; o != nil && !h.IsRelayed() && o.events.Has(h.Index()) {
		return o
	}
	return nil
}

// Done settles events that were done, and appends the acks that are now due to acks. It ignores events that are settled,
// or claimed for a copy. It returns how many were done.
func (l *Ledger) Done(set event.Set, acks []Ack) (_ []Ack, done int) {
	o := l.bySerial[set.First.Serial()]
	if o == nil || set.First.IsRelayed() {
		return acks, 0
	}
	hit := l.scratch(o)
	done = o.events.Take(set.Events, hit)
	if o.claims > 0 {
		for i := range hit.All() {
			if h := o.entry.Handle(i); l.claims[h] == claimed {
				hit.Remove(i)
				o.events.Add(i)
				done--
			} else {
				l.endClaim(o, h)
			}
		}
	}
	if done == 0 {
		return acks, 0
	}
	l.spill.ended += uint64(done)
	return l.settled(o, hit, done, acks), done
}

// Settle takes final verdicts. An event that was done is settled, see [Ledger.Done]. Any other is claimed for a copy, and
// returned in copies: from now on only [Ledger.Copied] settles it. Settle ignores verdicts on events that are settled or
// claimed already; while a copy of an event is being sent, only Done is not ignored. It appends the acks that are now due
// to acks, and returns how many events were done.
func (l *Ledger) Settle(verdicts []event.Verdict, acks []Ack) (_ []Ack, copies []Claimed, done int) {
	for i := range verdicts {
		v := &verdicts[i]
		o := l.find(v.Handle)
		if o == nil || !invariant.Check(v.Kind.Final(), "source: settled by a verdict that is not final") {
			continue
		}
		claim := l.claims[v.Handle]
		switch {
		case claim == claimed: // perhaps by an earlier one of these
		case v.Kind == event.Done:
			done++
			l.spill.ended++
			acks = l.settleOne(o, v.Handle, acks)
		case claim != sending:
			l.claim(o, v.Handle, claimed)
			copies = append(copies, Claimed{o.entry.Message(v.Handle.Index()), *v})
		}
	}
	return acks, copies, done
}

// Copied settles an event whose copy is safe, and appends the acks that are now due. It
// reports false when the event is settled already.
func (l *Ledger) Copied(h event.Handle, acks []Ack) ([]Ack, bool) {
	o, claim := l.find(h), l.claims[h]
	if o == nil || !invariant.Check(claim == claimed || claim == sending, "source: an event was copied without a claim on it") {
		return acks, false
	}
	if claim == claimed {
		l.spill.ended++
	}
	return l.settleOne(o, h, acks), true
}

// Close forgets everything that is open, and returns the handles of the open events. The broker takes these events
// back when the subscription ends, and delivers them again.
func (l *Ledger) Close() (open []event.Handle) {
	for o := l.oldest; o != nil; o = o.newer {
		for i := range o.events.All() {
			h := o.entry.Handle(i)
			l.endClaim(o, h)
			open = append(open, h)
		}
		l.stats.Unsettled -= o.n
		if l.counting == CountEvents {
			l.count(o.origin, -o.n)
		}
		l.remove(o)
	}
	return open
}

func (l *Ledger) settleOne(o *openEntry, h event.Handle, acks []Ack) []Ack {
	l.endClaim(o, h)
	o.events.Remove(h.Index())
	one := l.scratch(o)
	one.Add(h.Index())
	return l.settled(o, one, 1, acks)
}

// scratch returns an empty set for events of an entry. Under CountEvents it is a new one, since an ack keeps it;
// otherwise the next call reuses its memory.
func (l *Ledger) scratch(o *openEntry) event.Bits {
	words := len(o.events)
	if l.counting == CountEvents || cap(l.hit) < words {
		l.hit = event.NewBits(o.entry.Len())
		return l.hit
	}
	l.hit = l.hit[:words]
	clear(l.hit)
	return l.hit
}

// settled accounts for events of an entry, n of them, that the caller has removed from its open ones, and appends the
// ack that is now due.
func (l *Ledger) settled(o *openEntry, events event.Bits, n int, acks []Ack) []Ack {
	first := o.n == o.total // until now no event of the entry was settled
	o.n -= n
	l.stats.Unsettled -= n
	if l.counting == CountEvents {
		l.count(o.origin, -n)
		if o.n == 0 && o.total == o.entry.Len() {
			events = nil // a broker forgets that an entry is unacked at an ack of the whole
		}
		acks = append(acks, Ack{Entry: o.key.id, Events: events, Total: o.entry.Len(), Ref: o.ref})
		if o.n == 0 { // each ack is independent; events that the broker has omitted will not arrive
			l.remove(o)
		}
		return acks
	}
	if first {
		l.stats.PinnedEntries++
	}
	l.stats.Pinned += n
	if o.late == clock.Forever && l.pinsMany(o) {
		o.late = o.received.Add(lateFactor * l.now.Sub(o.received))
	}
	if o.n == 0 {
		acks = append(acks, Ack{Entry: o.key.id, Total: o.entry.Len(), Ref: o.ref})
		l.remove(o)
	}
	return acks
}

// claim replaces the claim on an open event: what may settle it from now on.
func (l *Ledger) claim(o *openEntry, h event.Handle, to claim) {
	l.endClaim(o, h)
	l.claims[h] = to
	o.claims++
	if to != claimed {
		o.spilling++
		l.stats.Spilling++
	}
}

func (l *Ledger) endClaim(o *openEntry, h event.Handle) {
	if o.claims == 0 {
		return
	}
	was, is := l.claims[h]
	if !is {
		return
	}
	delete(l.claims, h)
	o.claims--
	if was != claimed {
		o.spilling--
		l.stats.Spilling--
	}
}

func (l *Ledger) remove(o *openEntry) {
	if o.older == nil {
		l.oldest = o.newer
	} else {
		o.older.newer = o.newer
	}
	if o.newer == nil {
		l.newest = o.older
	} else {
		o.newer.older = o.older
	}
	delete(l.bySerial, o.entry.First.Serial())
	l.forgetID(o)
	l.stats.Bytes -= o.entry.Bytes
	if l.counting == CountEntries {
		l.count(o.origin, -o.total)
		l.stats.Pinned -= o.total - o.n
		if o.n < o.total {
			l.stats.PinnedEntries--
		}
	}
}

// forgetID takes an entry out of those of its id.
func (l *Ledger) forgetID(o *openEntry) {
	at := l.byID[o.key]
	if at != o {
		for at.others != o {
			at = at.others
		}
		at.others = o.others
		return
	}
	if o.others != nil {
		l.byID[o.key] = o.others
		return
	}
	delete(l.byID, o.key)
}

// Stats returns the ledger in numbers, in constant time.
func (l *Ledger) Stats() Stats {
	s := l.stats
	s.Entries = len(l.bySerial)
	s.Oldest = clock.Forever
	if l.oldest != nil {
		s.Oldest = l.oldest.received
	}
	return s
}
