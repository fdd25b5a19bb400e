package forward

import (
	"cmp"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// Place is the state of a held event. Every held event is in exactly one place.
//
//exhaustive:enforce
type Place uint8

// The places of a held event.
const (
	Queued  Place = iota // for its owner's stream to take, or that of a third member if its owner cannot be reached
	Sent                 // at a mailbox: the local one, or that of a peer with a live stream
	Full                 // its key's mailbox was full; waits for a credit or a delay
	Delayed              // its key's owner has not read our epoch yet; waits for a delay
	Refused              // no known owner accepts its key; waits for a newer route
	places
)

// String returns the name of the place, as metrics and logs have it.
func (p Place) String() string {
	switch p {
	case Queued:
		return "queued"
	case Sent:
		return "sent"
	case Full:
		return "full"
	case Delayed:
		return "delayed"
	case Refused:
		return "refused"
	case places:
	}
	return "unknown"
}

// record is an entry of which events are held. Each of them is in one of the shares, or else in the wait of its key.
type record struct {
	entry        *event.Entry
	age          uint64 // later records have greater ages
	since        clock.Instant
	events       event.Bits // those that are held
	n            int        // number of events, one more during Hold
	shares       []*share
	older, newer *record
}

// toOwner is the value of share.relay for events that are not relayed.
const toOwner = false

// share is the events of a record that are queued for a lane's peer, or that were sent to it.
type share struct {
	record       *record
	lane         *lane
	relay        bool // sent, for the peer to pass them on to their owner
	isQueued     bool // in the lane's queue
	queued, sent event.Bits
	queuedN      int
	sentN        int
}

// held names a held event.
type held struct {
	*record
	index int
}

func (h held) handle() event.Handle { return h.entry.Handle(h.index) }
func (h held) key() event.Key       { return h.entry.Key(h.index) }
func (h held) isRelayed() bool      { return h.entry.First.IsRelayed() }
func (h held) isCall() bool         { return h.entry.First.IsCall() }
func (h held) isReservation() bool  { return h.isCall() && h.entry.Call(h.index).Reservation }

// order is the place of h among all events that were ever held: earlier ones come first.
func (h held) order() uint64 { return h.age*event.EntryEventsMax + uint64(h.index) }

func byOrder(a, b held) int { return cmp.Compare(a.order(), b.order()) }

// share returns the share of a lane, and makes it if there is none.
func (r *record) share(l *lane, relay bool) *share {
	var unused *share
	for _, s := range r.shares {
		if s.lane == l && s.relay == relay {
			return s
		}
		if s.queuedN+s.sentN == 0 && !s.isQueued {
			unused = s
		}
	}
	if unused != nil {
		unused.lane, unused.relay = l, relay
		return unused
	}
	words := len(r.events)
	both := make(event.Bits, 2*words)
	s := &share{record: r, lane: l, relay: relay, queued: both[:words:words], sent: both[words:]}
	r.shares = append(r.shares, s)
	return s
}

// sentTo returns the share by which an event was sent, nil if it is in another place.
func (h held) sentTo() *share {
	for _, s := range h.shares {
		if s.sentN > 0 && s.sent.Has(h.index) {
			return s
		}
	}
	return nil
}

// queuedFor returns the share by which an event is queued, nil if it is in another place.
func (h held) queuedFor() *share {
	for _, s := range h.shares {
		if s.queuedN > 0 && s.queued.Has(h.index) {
			return s
		}
	}
	return nil
}

// extra holds the fields that only a few events need.
type extra struct {
	past []Peer // peers that had the event before: their final verdicts count too, except on reservations

	// The failures that the owner has reported since the event was last sent. It retries the event itself.
	told                  bool // there are some
	attempts, crashes     uint32
	firstError, lastError string

	// newer takes the place of the entry's event, nil if it does not: it has the failures that were reported before the
	// event was last sent, or marks a granted reservation as one to be resumed.
	newer *event.Event

	mayRun  bool     // of a call: the stream on which it was sent broke, or its owner has reported that it began
	granted bool     // of a reservation: its present owner has granted it
	release *release // of a reservation that was released
}

// extraOf returns the extra fields of an event, nil if it has none.
func (t *Table) extraOf(h held) *extra {
	if len(t.extras) == 0 {
		return nil
	}
	return t.extras[h.handle()]
}

// ensureExtra returns the extra fields of an event, which it adds if there are none.
func (t *Table) ensureExtra(h held) *extra {
	x := t.extras[h.handle()]
	if x == nil {
		x = new(extra)
		t.extras[h.handle()] = x
	}
	return x
}

// had reports whether a verdict of peer on an event counts although the event was sent again since: the peer had it
// before, and may have run it. On a reservation it does not count: the end of a turn at that peer says nothing about the
// turn at the present owner, which would get no Cancel.
func (t *Table) had(h held, peer Peer) bool {
	x := t.extraOf(h)
	return x != nil && slices.Contains(x.past, peer) && !h.isReservation()
}

// markPast records an earlier holder.
func (t *Table) markPast(h held, peer Peer) {
	if x := t.ensureExtra(h); !slices.Contains(x.past, peer) {
		x.past = append(x.past, peer)
	}
}

// note keeps the failures that the owner reports, until the event is sent again. For a call the report says that it has
// begun.
func (t *Table) note(h held, v *event.Verdict) {
	x, d := t.ensureExtra(h), v.DetailOrZero()
	if h.isCall() {
		x.mayRun = true
		return
	}
	if !x.told {
		x.told, x.firstError = true, d.Reason
	}
	if d.FirstError != "" {
		x.firstError = d.FirstError
	}
	x.attempts, x.crashes, x.lastError = max(x.attempts, d.Attempts), max(x.crashes, d.Crashes), d.Reason
}

// ref returns an event as other packages see it.
func (t *Table) ref(h held) event.Ref {
	ref := event.Ref{Entry: h.entry, Index: int32(h.index)}
	if x := t.extraOf(h); x != nil {
		ref.Object = x.newer
	}
	return ref
}

// refreshed is ref with the reported failures, for an event that is sent again. Long errors are cut, so that they
// never make an event too large for a frame.
func (t *Table) refreshed(h held) event.Ref {
	ref := t.ref(h)
	x := t.extraOf(h)
	if x == nil {
		return ref
	}
	old := ref.Event()
	unseen := x.told && (x.attempts > old.Attempts || x.crashes > old.Crashes)
	if !unseen && len(old.FirstError) <= textMax && len(old.LastError) <= textMax {
		return ref
	}
	ev := *old // another owner may still read it
	if unseen {
		ev.Attempts, ev.Crashes, ev.LastError = max(x.attempts, ev.Attempts), max(x.crashes, ev.Crashes), x.lastError
		if ev.FirstError == "" {
			ev.FirstError = x.firstError
		}
	}
	ev.FirstError, ev.LastError = clip(ev.FirstError), clip(ev.LastError)
	x.newer, x.told, x.attempts, x.crashes, x.firstError, x.lastError = &ev, false, 0, 0, "", ""
	ref.Object = x.newer
	return ref
}
