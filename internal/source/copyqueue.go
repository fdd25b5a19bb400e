package source

import (
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// copyQueue decides which copy for one topic is sent next. Copies are sent together, except those that were not
// answered: the broker may have refused one of them, and then the client loses the receipts of all other copies of
// the same producer. So each of these is sent alone, by a producer that has no other copy under way. If it is not
// answered there either, it is probably refused: it then comes after the others, since each such attempt takes
// CopyTimeout.
type copyQueue struct {
	copiesMax int

	waiting []outgoingEvent // to be sent together
	lone    []outgoingEvent // to be sent alone
	last    []outgoingEvent // to be sent alone after those: probably refused
	failed  []outgoingEvent // to be sent again after a pause

	underWay, underWayBytes int           // copies that were sent together and have no result yet
	busy                    [loneMax]bool // by number of a producer: it has a lone copy under way, which takes no room from the others
	made                    int           // producers of lone copies that there may be: those with lower numbers
}

// loneMax bounds the copies for one topic that are sent alone at the same time, and the producers that a router then has there beside the common one.
// Fewer refused copies than that delay no others. More delay no others either if all are refused for their size, or all for their delay.
const loneMax = 3

// refused stands for the producers of copies that were not answered when they were sent alone, so that none of these is kept in memory.
var refused = new(pulsarsend.Sender)

// fail takes copies that have failed. A new event waits for no pause, since its sender waits for its one further attempt.
func (q *copyQueue) fail(lost []outgoingEvent) {
	for _, out := range lost {
		if out.answer != nil {
			q.lone = append(q.lone, out)
		} else {
			q.failed = append(q.failed, out)
		}
	}
}

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

// takeEnded removes the lone copies that need no turn: those of which an earlier attempt was confirmed late, and those that are too late for their senders.
func (q *copyQueue) takeEnded(now clock.Instant) (ended []copyResult) {
	remove := func(out outgoingEvent) bool {
		switch {
		case out.isSafe(): // asked once, since a confirmation may come at any time
			ended = append(ended, copyResult{outgoingEvent: out})
		case out.isTooLate(now):
			ended = append(ended, copyResult{out, pulsarsend.ErrTimeout})
		default:
			return false
		}
		return true
	}
	q.lone = slices.DeleteFunc(q.lone, remove)
	q.last = slices.DeleteFunc(q.last, remove)
	return ended
}

// next removes the next copy that may be sent now, if there is one.
func (q *copyQueue) next() (out outgoingEvent, some bool) {
	idle := slices.Index(q.busy[:], false)
	switch {
	case len(q.lone) > 0 && idle >= 0:
		out = takeLikeliest(&q.lone, idle)
		out.producer = idle
		return out, true
	case len(q.last) > 0 && !slices.Contains(q.busy[:], true): // one at a time, so that others find a producer
		out = take(&q.last)
		out.producer = idle
		return out, true
	case len(q.waiting) > 0 && q.underWay < q.copiesMax && q.underWayBytes < copyBytesMax:
		return take(&q.waiting), true
	}
	return out, false
}

// begin notes that a copy is sent, and end that it has a result.
func (q *copyQueue) begin(out *outgoingEvent) { q.count(out, 1) }
func (q *copyQueue) end(out *outgoingEvent)   { q.count(out, -1) }

func (q *copyQueue) count(out *outgoingEvent, by int) {
	if out.after != nil {
		q.busy[out.producer] = by > 0
		q.made = max(q.made, out.producer+1)
		return
	}
	q.underWay += by
	q.underWayBytes += by * out.weight()
}

// needed returns how many producers of lone copies there have to be: those with lower numbers. Copies that are probably refused need the first one alone.
func (q *copyQueue) needed() (n int) {
	if q.made == 0 {
		return 0
	}
	if len(q.lone) > 0 || slices.Contains(q.busy[1:], true) {
		return loneMax
	}
	if len(q.last) > 0 || q.busy[0] {
		n = 1
	}
	for i := range q.failed {
		switch q.failed[i].after {
		case nil:
		case refused:
			n = 1
		default:
			return loneMax
		}
	}
	return n
}

// takeLikeliest removes the copy that is the likeliest to be taken, since one that is refused takes CopyTimeout: for one of the producers the first of
// those with the shortest delay, for the others of those with the fewest bytes.
func takeLikeliest(from *[]outgoingEvent, producer int) outgoingEvent {
	at := 0
	for i := range *from {
		if one, least := &(*from)[i], &(*from)[at]; producer == 1 && one.delay < least.delay || producer != 1 && one.weight() < least.weight() {
			at = i
		}
	}
	out := (*from)[at]
	*from = slices.Delete(*from, at, at+1)
	return out
}

// take removes the first copy.
func take(from *[]outgoingEvent) outgoingEvent {
	first := (*from)[0]
	(*from)[0] = outgoingEvent{}
	*from = (*from)[1:]
	return first
}
