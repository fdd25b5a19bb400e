package mailbox

// queue is a FIFO of actors from which any of them can be taken out. They stand in a
// ring and not in a list: what will be taken can be read ahead, many at a time.
type queue struct {
	ring       []*actor // number modulo its length, a power of two; nil where one was taken out
	first, end uint64   // numbers from first on and before end are in the ring; the first is not nil
	n          int
}

const queueMin = 16

// head returns who has waited longest, nil when there is nobody.
func (q *queue) head() *actor {
	if q.n == 0 {
		return nil
	}
	return q.at(q.first)
}

// at returns whose a number from first on and before end is, or nil.
func (q *queue) at(number uint64) *actor { return q.ring[number&uint64(len(q.ring)-1)] }

func (q *queue) push(a *actor) {
	if q.end-q.first == uint64(len(q.ring)) {
		q.resize()
	}
	a.inQueue = q.end
	q.ring[q.end&uint64(len(q.ring)-1)] = a
	q.end++
	q.n++
}

func (q *queue) remove(a *actor) { q.empty(a.inQueue) }

// pop removes the head, which is there.
func (q *queue) pop() { q.empty(q.first) }

func (q *queue) empty(number uint64) {
	q.ring[number&uint64(len(q.ring)-1)] = nil
	q.n--
	for q.first < q.end && q.at(q.first) == nil {
		q.first++
	}
}

// resize closes the gaps, in a ring in which at least every second place is free then.
func (q *queue) resize() {
	length := queueMin
	for length < 2*q.n {
		length *= 2
	}
	old := *q
	*q = queue{ring: make([]*actor, length)}
	for number := old.first; number < old.end; number++ {
		if a := old.at(number); a != nil {
			q.push(a)
		}
	}
}
