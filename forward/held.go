package forward

import (
	"slices"

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

// isWith reports whether peer has the event now, as far as we know.
func (h *held) isWith(peer Peer) bool { return h.on.place == Sent && h.on.lane.peer == peer }

// had reports whether peer has or once had the event.
func (h *held) had(peer Peer) bool {
	return h.isWith(peer) || h.extra != nil && slices.Contains(h.extra.past, peer)
}

// given notes that the event was sent, to its owner or to a third member.
func (h *held) given(relayed bool) {
	if relayed || h.extra != nil {
		h.ensureExtra().viaThird = relayed
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
