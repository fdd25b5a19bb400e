package source

import (
	"slices"

	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// copyQueue decides which copy for one topic is sent next. Copies are sent together, but for those that were not answered: the broker may refuse
// one of them, and then the client loses the receipts of all others of the same producer. So these are sent one at a time, by another producer.
// A copy that is not answered there, either, is probably refused, and comes after the others, since each such attempt takes CopyTimeout.
type copyQueue struct {
	copiesMax int

	waiting []outgoingEvent // to be sent together
	lone    []outgoingEvent // to be sent alone
	last    []outgoingEvent // to be sent alone after those: probably refused
	failed  []outgoingEvent // to be sent again after a pause

	flying, flyingBytes int  // of those that are sent together
	loneFlies           bool // it takes no room from the others
}

// refused stands for the producers of copies that were not answered when they were sent alone, so that none of these is kept in memory.
var refused = new(pulsarsend.Sender)

// retry ends the pause of the copies that have failed.
func (q *copyQueue) retry() {
	for _, out := range q.failed {
		switch out.after {
		case nil:
			q.waiting = append(q.waiting, out)
		case refused:
			q.last = append(q.last, out)
		default:
			q.lone = append(q.lone, out)
		}
	}
	clear(q.failed)
	q.failed = q.failed[:0]
}

// takeSafe removes the lone copies of which an earlier attempt was confirmed late: they need no turn.
func (q *copyQueue) takeSafe() (safe []outgoingEvent) {
	remove := func(out outgoingEvent) bool {
		isSafe := out.isSafe() // once, since a confirmation may come at any time
		if isSafe {
			safe = append(safe, out)
		}
		return isSafe
	}
	q.lone = slices.DeleteFunc(q.lone, remove)
	q.last = slices.DeleteFunc(q.last, remove)
	return safe
}

// next removes the next copy that may be sent now, if there is one.
func (q *copyQueue) next() (out outgoingEvent, some bool) {
	switch {
	case len(q.lone) > 0 && !q.loneFlies:
		return take(&q.lone), true
	case len(q.last) > 0 && !q.loneFlies:
		return take(&q.last), true
	case len(q.waiting) > 0 && q.flying < q.copiesMax && q.flyingBytes < copyBytesMax:
		return take(&q.waiting), true
	}
	return out, false
}

// fly notes that a copy is sent, and land that it has an outcome.
func (q *copyQueue) fly(out *outgoingEvent)  { q.count(out, 1) }
func (q *copyQueue) land(out *outgoingEvent) { q.count(out, -1) }

func (q *copyQueue) count(out *outgoingEvent, by int) {
	if out.after != nil {
		q.loneFlies = by > 0
		return
	}
	q.flying += by
	q.flyingBytes += by * out.weight()
}

func take(from *[]outgoingEvent) outgoingEvent {
	first := (*from)[0]
	(*from)[0] = outgoingEvent{}
	*from = (*from)[1:]
	return first
}
