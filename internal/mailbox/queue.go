package mailbox

// queue is a FIFO of actors, any of which can be removed. It is a ring buffer with gaps.
type queue struct {
	ring       []*actor // by number modulo the length, a power of two; nil where an actor was removed
	first, end uint64   // numbers in [first, end) are in the ring; the first is not nil
	n          int
}

const queueMin = 16

// head returns the actor that has waited longest, nil when the queue is empty.
func (q *queue) head() *actor {
	if q.n == 0 {
		return nil
	}
	return q.at(q.first)
}

// at returns the actor with a number in [first, end), nil if it was removed.
func (q *queue) at(number uint64) *actor { return q.ring[number&uint64(len(q.ring)-1)] }

func (q *queue) push(a *actor) {
	if q.end-q.first == uint64(len(q.ring)) {
		q.resize()
	}
	a.waitsAt = q.end
	q.ring[q.end&uint64(len(q.ring)-1)] = a
	q.end++
	q.n++
}

func (q *queue) remove(a *actor) { q.empty(a.waitsAt) }

// pop removes the head of a queue that is not empty.
func (q *queue) pop() { q.empty(q.first) }

func (q *queue) empty(number uint64) {
	q.ring[number&uint64(len(q.ring)-1)] = nil
	q.n--
	for q.first < q.end && q.at(q.first) == nil {
		q.first++
	}
}

// resize closes the gaps. At most half of the new ring is in use.
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
