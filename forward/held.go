package forward

import (
	"cmp"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Place is the state of a held event. Every held event is in exactly one place.
//
//exhaustive:enforce
type Place uint8

// The places of a held event.
const (
	Queued   Place = iota // for its owner's stream to take
	Relaying              // for a third member's stream to take, since its owner cannot be reached
	Sent                  // at a mailbox: the local one, or that of a peer with a live stream
	Parked                // its key's mailbox was full; waits for a credit or a delay
	Delayed               // its owner has not read our epoch yet; waits for a delay
	Refused               // no known owner accepts it; waits for a newer route
	places
)

// String returns the name of the place, as metrics and logs have it.
func (p Place) String() string {
	switch p {
	case Queued:
		return "queued"
	case Relaying:
		return "relaying"
	case Sent:
		return "sent"
	case Parked:
		return "parked"
	case Delayed:
		return "delayed"
	case Refused:
		return "refused"
	case places:
	}
	return "unknown"
}

// held is one event until its verdict. It is at most a cache line of 64 bytes, since cache
// misses are most of the cost of a call.
type held struct {
	handle event.Handle // a copy, since event is usually not cached when its verdict comes
	event  *event.Event // nil: nothing is held here
	bytes  uint32
	number uint32  // in its cohort
	cohort *cohort // the events of the same call to Hold

	on *list // the list that holds it
	at int   // its position there

	extra *extra // nil: nothing
}

// extra holds rarely needed data of an event, so that held stays below one cache line.
type extra struct {
	past     []Peer // earlier holders: their final verdicts count too
	relayed  bool   // relayed to us by its consumer node: it never waits here, see HoldRelayed
	viaThird bool   // Sent: to a third member, to be relayed
	released bool   // Queued: out of its key's parking; it does not go back there before it was sent

	refuser   Peer           // Refused: the peer that refused it
	refusedAt event.Position // Refused: the epoch that the refuser had applied
	due       clock.Instant  // Refused: when it is retried without a newer route

	told                  bool   // its owner has reported failures and keeps retrying:
	attempts, crashes     uint32 // reported counts
	firstError, lastError string
}

// ensureExtra returns h.extra and allocates it on first use.
func (h *held) ensureExtra() *extra {
	if h.extra == nil {
		h.extra = new(extra)
	}
	return h.extra
}

func (h *held) isRelayed() bool  { return h.extra != nil && h.extra.relayed }
func (h *held) isViaThird() bool { return h.extra != nil && h.extra.viaThird }
func (h *held) isReleased() bool { return h.extra != nil && h.extra.released }

// isWith reports whether peer has the event now, as far as we know.
func (h *held) isWith(peer Peer) bool { return h.on.place == Sent && h.on.lane.peer == peer }

// had reports whether peer has or once had the event.
func (h *held) had(peer Peer) bool {
	return h.isWith(peer) || h.extra != nil && slices.Contains(h.extra.past, peer)
}

// given notes that the event was sent, to its owner or to a third member.
func (h *held) given(relayed bool) {
	if relayed || h.extra != nil {
		r := h.ensureExtra()
		r.viaThird, r.released = relayed, false
	}
}

// markPast records the current peer as an earlier holder.
func (h *held) markPast() {
	r := h.ensureExtra()
	if peer := h.on.lane.peer; !slices.Contains(r.past, peer) {
		r.past = append(r.past, peer)
	}
	r.viaThird = false
}

// note keeps the failures that the owner reports.
func (h *held) note(v *event.Verdict) {
	r, d := h.ensureExtra(), v.DetailOrZero()
	if !r.told {
		r.told, r.firstError = true, d.Reason
	}
	if d.FirstError != "" {
		r.firstError = d.FirstError
	}
	r.attempts, r.crashes, r.lastError = max(r.attempts, d.Attempts), max(r.crashes, d.Crashes), d.Reason
}

// refresh adds the reported failures to the event, and cuts long errors, so that they
// never make an event too large for a frame. It copies the event, since another owner may
// still read it.
func (h *held) refresh() {
	r := h.extra
	news := r.told && (r.attempts > h.event.Attempts || r.crashes > h.event.Crashes)
	if !news && len(h.event.FirstError) <= textMax && len(h.event.LastError) <= textMax {
		return
	}
	ev := *h.event
	if news {
		ev.Attempts, ev.Crashes, ev.LastError = max(r.attempts, ev.Attempts), max(r.crashes, ev.Crashes), r.lastError
		if ev.FirstError == "" {
			ev.FirstError = r.firstError
		}
	}
	ev.FirstError, ev.LastError = clip(ev.FirstError), clip(ev.LastError)
	h.event, r.told, r.attempts, r.crashes, r.firstError, r.lastError = &ev, false, 0, 0, "", ""
}

// list is a queue of held events in one place. It is an array, not a linked list, so that
// the cache misses of consecutive events overlap. Sent events are only counted, since
// verdicts come in no order; see [shelf.on].
type list struct {
	place Place
	lane  *lane // Queued, Relaying, Sent: the lane of the peer
	n     int

	items []*held // nil where an event was removed; items[head] is not nil
	head  int     // items before it were removed
	first int     // position of items[0]; positions move only with prepend
}

func (l *list) push(h *held) {
	h.on = l
	l.n++
	if l.place == Sent {
		return
	}
	if len(l.items) == cap(l.items) && l.head > len(l.items)/2 {
		l.first += l.head
		l.items = slices.Delete(l.items, 0, l.head)
		l.head = 0
	}
	h.at = l.first + len(l.items)
	l.items = append(l.items, h)
}

// prepend puts events before all others, in their order.
func (l *list) prepend(events []*held) {
	l.items = slices.Concat(events, l.items[l.head:])
	l.first += l.head - len(events)
	l.head = 0
	l.n += len(events)
	for i, h := range events {
		h.on, h.at = l, l.first+i
	}
}

func (l *list) remove(h *held) {
	h.on = nil
	l.n--
	if l.place == Sent {
		return
	}
	if at := h.at - l.first; at != l.head {
		l.items[at] = nil
		return
	}
	l.dropFront()
}

// pop removes the first event, which front has returned. Unlike remove it does not read
// the event, and so avoids the cache miss.
func (l *list) pop(h *held) {
	h.on = nil
	l.n--
	l.dropFront()
}

func (l *list) dropFront() {
	l.items[l.head] = nil
	if l.n == 0 {
		l.first += len(l.items)
		l.items, l.head = l.items[:0], 0
		return
	}
	for l.head++; l.items[l.head] == nil; l.head++ {
	}
}

// front returns the first event, nil when there is none.
func (l *list) front() *held {
	if l.n == 0 {
		return nil
	}
	return l.items[l.head]
}

// all returns the events in a new slice.
func (l *list) all() []*held {
	events := make([]*held, 0, l.n)
	for _, h := range l.items[l.head:] {
		if h != nil {
			events = append(events, h)
		}
	}
	return events
}

// cohort is the events of one call to Hold that are still held.
type cohort struct {
	since          clock.Instant
	serial         uint64 // older ones have lower ones
	given          uint32 // numbers given to its events, from 0
	n              int    // events of it that are held
	older, younger *cohort
}

// ages lists the cohorts by age.
type ages struct {
	oldest, youngest *cohort
	serial           uint64
}

// begin starts a cohort.
func (a *ages) begin(now clock.Instant) *cohort {
	a.serial++
	c := &cohort{since: now, serial: a.serial, older: a.youngest}
	if a.youngest == nil {
		a.oldest = c
	} else {
		a.youngest.younger = c
	}
	a.youngest = c
	return c
}

// add makes h the youngest event of c.
func (c *cohort) add(h *held) {
	h.cohort, h.number = c, c.given
	c.given++
	c.n++
}

// remove takes an event out of its cohort.
func (a *ages) remove(h *held) {
	c := h.cohort
	c.n--
	a.endIfEmpty(c)
}

func (a *ages) endIfEmpty(c *cohort) {
	if c.n > 0 {
		return
	}
	if c.older == nil {
		a.oldest = c.younger
	} else {
		c.older.younger = c.younger
	}
	if c.younger == nil {
		a.youngest = c.older
	} else {
		c.younger.older = c.older
	}
}

// byAge orders events by the time at which they were held.
func byAge(a, b *held) int {
	return cmp.Or(cmp.Compare(a.cohort.serial, b.cohort.serial), cmp.Compare(a.number, b.number))
}

// lane holds the events that wait for one peer and those that the peer has.
type lane struct {
	peer   Peer
	up     bool
	since  clock.Instant // when it came up, went down, or was first heard of
	owner  uint16        // its number among the owners of partitions, 0 when the route gives it none
	queued list
	relays list // for other owners, which cannot be reached
	sent   list
}

func newLane(peer Peer, now clock.Instant) *lane {
	l := &lane{peer: peer, since: now}
	l.queued = list{place: Queued, lane: l}
	l.relays = list{place: Relaying, lane: l}
	l.sent = list{place: Sent, lane: l}
	return l
}

func (l *lane) empty() bool { return l.queued.n+l.relays.n+l.sent.n == 0 }

// owners is the route as lanes by partition, so that the look-up for each event needs
// neither the route nor a search for the lane, and stays in the cache.
type owners struct {
	lanes       []*lane // by number; nil for 0
	byPartition [ring.Partitions]uint16
}

// of returns the lane of the owner of p, nil when there is none.
func (o *owners) of(p ring.Partition) *lane {
	if len(o.lanes) == 0 { // no route yet
		return nil
	}
	return o.lanes[o.byPartition[p]]
}

// wait is a pause for some events: those of one parked key, or those that were
// delayed until the same instant.
type wait struct {
	due    clock.Instant
	index  int // in waits, -1 when it is not there
	events list

	// Parked events only.
	key     event.Key
	refuser Peer
	asked   time.Duration // how long the refuser asked to wait
	delay   time.Duration // how long to wait without a credit; grows with each refusal
	burst   int           // number of events to send when it is due
	probing bool          // a burst is out and no event of it was refused yet
	drained bool          // nothing is parked; new events pass until one is refused
}

// waits is a heap of waits by due time, for container/heap.
type waits []*wait

func (w waits) Len() int           { return len(w) }
func (w waits) Less(i, j int) bool { return w[i].due < w[j].due }
func (w waits) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].index, w[j].index = i, j
}

// Push implements heap.Interface.
func (w *waits) Push(x any) {
	e := x.(*wait)
	e.index = len(*w)
	*w = append(*w, e)
}

// Pop implements heap.Interface.
func (w *waits) Pop() any {
	old := *w
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	e.index = -1
	return e
}
