package entries

// permits counts the events that a broker may still send to one subscription of a consumer, as that broker counts them: both
// sides add what FLOW commands say, and subtract the cost of each entry. The broker goes below zero with an entry
// of many events, and we with it. Pure.
type permits struct {
	queue   int // events that may be unread, at least 1
	granted int // of FLOW commands, minus the cost of what arrived
	unread  int // cost of the entries that arrived and were not taken
	entries int // how many these are
	owed    int // cost of the taken ones that no FLOW has given back yet
}

// overrunMax bounds the entries that a broker may send beyond the permits. It estimates how many events an entry has, and
// sends some entries (dispatcherMaxRoundRobinBatchSize, 20) before it counts again.
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

// taken counts an entry that was taken, and returns how many events to give back now: at half a queue, so that the broker never waits for
// a reader that is not behind, and not for each entry.
func (p *permits) taken(cost int) (flow int) {
	p.entries--
	p.unread -= cost
	p.owed += cost
	if p.owed < max(1, p.queue/2) {
		return 0
	}
	return p.rest()
}

// rest returns all that is owed, however little.
func (p *permits) rest() (flow int) {
	flow, p.owed = p.owed, 0
	p.granted += flow
	return flow
}

// costMax bounds the cost of an entry: no broker counts further, and sums of it do not overflow.
const costMax = 1 << 31

// cost returns how many permits the broker took for an entry: one for each event that it counts as unacked.
func cost(events int, ackSet []uint64) int {
	if len(ackSet) == 0 {
		return min(max(1, events), costMax)
	}
	return unacked(ackSet)
}
