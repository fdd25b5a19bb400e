package entries

// permits counts the events that a broker may still send to one subscription of a consumer, as the broker counts them: both sides add the
// permits of FLOW commands and subtract the cost of each entry. Both counts go below zero with an entry of many events. Pure.
type permits struct {
	queue   int // events that may be unread, at least 1
	granted int // by FLOW commands, minus the cost of arrived entries
	unread  int // cost of the arrived entries that were not taken
	entries int // number of these entries
	owed    int // cost of taken entries that no FLOW has returned yet
}

// overrunMax bounds the entries that a broker may send beyond the permits. A broker estimates the events of an entry, and sends several
// entries (dispatcherMaxRoundRobinBatchSize, 20) before it counts again.
const overrunMax = 1024

// first returns the permits of the first FLOW command of a subscription.
func (p *permits) first() int {
	p.granted = p.queue
	return p.queue
}

// arrived counts an entry, and reports whether the broker respects the permits.
func (p *permits) arrived(cost int) bool {
	if p.entries >= p.queue+overrunMax {
		return false
	}
	p.entries++
	p.granted -= cost
	p.unread += cost
	return true
}

// taken counts an entry that was taken, and returns the permits to return now. They are returned from half a queue on: the broker never
// waits for a reader that keeps up, and not every entry needs a FLOW.
func (p *permits) taken(cost int) (flow int) {
	p.entries--
	p.unread -= cost
	p.owed += cost
	if p.owed < max(1, p.queue/2) {
		return 0
	}
	return p.rest()
}

// rest returns all owed permits, however few.
func (p *permits) rest() (flow int) {
	flow, p.owed = p.owed, 0
	p.granted += flow
	return flow
}

// costMax bounds the cost of an entry: no broker counts further, and sums do not overflow.
const costMax = 1 << 31

// cost returns the number of permits that the broker deducted for an entry: one for each event that it counts as unacked.
func cost(events int, ackSet []uint64) int {
	if len(ackSet) == 0 {
		return min(max(1, events), costMax)
	}
	return unacked(ackSet)
}
