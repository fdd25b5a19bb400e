package entries

import (
	"cmp"
	"math"

	"github.com/ringfence/router/internal/broker/entries/wire"
)

// permits counts the events that a broker may still send to one subscription of a consumer, and those that it counts as unacked. Both sides
// add the permits of FLOW commands and subtract the cost of each entry. Both counts go below zero with an entry of many events. Pure.
//
// A broker blocks a consumer that has too many unacked events, and all consumers of a subscription that has too many.
// So permits are given only as far as these limits cannot be reached.
type permits struct {
	queue      int             // events that may be unread, at least 1
	queueMost  int             // the largest queue so far: the broker may have permits of that time
	unackedMax int             // events that may be unacked; those that the broker may still send count, too
	granted    int             // by FLOW commands, minus the cost of arrived entries
	entries    int             // that arrived and were not taken
	owed       int             // cost of taken entries that no FLOW has returned yet; below zero after a smaller queue
	unacked    int             // cost of the arrived entries that were not acked, without their acked events
	costs      map[wire.ID]int // of each of them; nil: none is counted, as of an exclusive subscription, whose consumer brokers do not bound
}

// overrunMax bounds the entries that a broker may send beyond the permits. A broker estimates the events of an entry, and sends several
// entries (dispatcherMaxRoundRobinBatchSize, 20) before it counts again.
const overrunMax = 1024

func newPermits(queue, unackedMax int) permits {
	p := permits{queue: queue, queueMost: queue, costs: make(map[wire.ID]int)}
	p.bound(unackedMax)
	return p
}

// resize changes the queue. The broker keeps the permits that it has; those beyond a smaller queue do not return to it.
func (p *permits) resize(queue int) {
	p.owed += queue - p.queue
	p.queue, p.queueMost = queue, max(p.queueMost, queue)
}

// bound changes the bound of unacked events; 0: none.
func (p *permits) bound(unackedMax int) {
	p.unackedMax = cmp.Or(unackedMax, math.MaxInt/2)
}

// first returns the permits of the first FLOW command of a subscription.
func (p *permits) first() int {
	p.owed = p.queue
	return p.rest()
}

// arrived counts an entry, and reports whether the broker respects the permits. An entry that arrives again is unacked once.
func (p *permits) arrived(id wire.ID, cost int) bool {
	if p.entries >= p.queueMost+overrunMax {
		return false
	}
	p.entries++
	p.granted -= cost
	if p.costs != nil {
		p.unacked += cost - p.costs[id]
		p.costs[id] = cost
	}
	return true
}

// taken counts an entry that was taken, and returns the permits to return now. They are returned from half a queue on: the broker never
// waits for a reader that keeps up, and not every entry needs a FLOW.
func (p *permits) taken(cost int) (flow int) {
	p.entries--
	p.owed += cost
	if p.owed < max(1, p.queue/2) {
		return 0
	}
	return p.rest()
}

// acked counts an ack that is sent.
func (p *permits) acked(ack wire.AckID) {
	cost, known := p.costs[ack.ID]
	if !known {
		return // it arrived in an earlier session, or was acked before
	}
	events := cost
	if ack.AckSet != nil {
		events = min(cost, int(ack.BatchSize)-unacked(ack.AckSet))
	}
	p.unacked -= events
	if cost == events {
		delete(p.costs, ack.ID)
		return
	}
	p.costs[ack.ID] = cost - events
}

// portionPart is the part of unackedMax that is given at once when unackedMax holds permits back: for each FLOW with a few permits, the
// broker would look for entries.
const portionPart = 8

// rest returns all owed permits, however few, as far as unackedMax allows. There is always a permit if nothing is unacked.
func (p *permits) rest() (flow int) {
	room := p.room()
	if room < p.owed && room < p.unackedMax/portionPart {
		return 0
	}
	flow = max(0, min(p.owed, room))
	p.owed -= flow
	p.granted += flow
	return flow
}

// room returns the number of permits that unackedMax allows beside those granted.
func (p *permits) room() int {
	room := p.unackedMax - p.unacked - p.granted
	if p.unacked == 0 && p.granted <= 0 {
		room = max(room, 1-p.granted)
	}
	return room
}

// waits reports whether the broker may send nothing before more is acked.
func (p *permits) waits() bool {
	return p.granted <= 0 && p.room() < min(p.owed, max(1, p.unackedMax/portionPart))
}

// costMax bounds the cost of an entry: no broker counts further, and sums do not overflow.
const costMax = 1 << 31

// cost returns the number of permits that the broker deducted for an entry: one for each event that it counts as unacked. Brokers (4.0.8) count what a batch
// declares, even if that is nothing, or negative and so adds permits, which later FLOW commands leave out.
func cost(events int, ackSet []uint64) int {
	if len(ackSet) == 0 {
		return min(events, costMax)
	}
	return unacked(ackSet)
}
