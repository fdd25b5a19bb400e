package forward

import (
	"cmp"
	"slices"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// queue is the shares with events that are queued for a lane, in the order of their records. A share that becomes empty
// stands in it until compact, and keeps its entry in memory: so less than half of them may be empty.
type queue struct {
	shares []*share
	head   int // index of the first share; those before it were taken
	empty  int // shares without a queued event, from head on
}

// front returns the first share with a queued event, nil when there is none.
func (q *queue) front() *share {
	for q.head < len(q.shares) {
		s := q.shares[q.head]
		if s.queuedN > 0 {
			return s
		}
		s.isQueued = false
		q.shares[q.head] = nil
		q.head++
		q.empty--
	}
	q.shares, q.head = q.shares[:0], 0
	return nil
}

// add puts a share into the queue.
func (q *queue) add(s *share) {
	if len(q.shares) == cap(q.shares) {
		q.compact()
	}
	s.isQueued = true
	if n := len(q.shares); n == q.head || q.shares[n-1].record.age < s.record.age {
		q.shares = append(q.shares, s)
		return
	}
	at, _ := slices.BinarySearchFunc(q.shares[q.head:], s.record.age, func(s *share, age uint64) int { return cmp.Compare(s.record.age, age) })
	q.shares = slices.Insert(q.shares, q.head+at, s)
}

// emptied notes that a share in the queue has become empty.
func (q *queue) emptied() {
	const few = 16
	if q.empty++; q.empty > few && 2*q.empty > len(q.shares)-q.head {
		q.compact()
	}
}

// compact removes the empty shares.
func (q *queue) compact() {
	q.shares = slices.DeleteFunc(slices.Delete(q.shares, 0, q.head), func(s *share) bool {
		s.isQueued = s.queuedN > 0
		return !s.isQueued
	})
	q.head, q.empty = 0, 0
}

// all returns the queued events, in their order.
func (q *queue) all() (events []held) {
	for _, s := range q.shares[q.head:] {
		for i := range s.queued.All() {
			events = append(events, held{s.record, i})
		}
	}
	return events
}

// list is events of one key, in their order.
type list []held

func (l *list) add(h held) {
	at, _ := slices.BinarySearchFunc(*l, h, byOrder)
	*l = slices.Insert(*l, at, h)
}

// remove removes an event, if it is in the list.
func (l *list) remove(h held) {
	at, found := slices.BinarySearchFunc(*l, h, byOrder)
	switch {
	case !found:
	case at == 0:
		(*l)[0] = held{}
		*l = (*l)[1:]
	default:
		*l = slices.Delete(*l, at, at+1)
	}
}

// enqueue queues an event for a lane.
func (h held) enqueue(l *lane) {
	s := h.share(l, toOwner)
	s.queued.Add(h.index)
	s.queuedN++
	l.queuedN++
	if h.isCall() {
		l.callsN++
	}
	switch {
	case !s.isQueued:
		l.queue.add(s)
	case s.queuedN == 1:
		l.queue.empty--
	}
}

// dequeue takes an event out of the share by which it is queued.
func (s *share) dequeue(index int) {
	s.queued.Remove(index)
	s.queuedN--
	s.lane.queuedN--
	if s.record.entry.First.IsCall() {
		s.lane.callsN--
	}
	if s.queuedN == 0 {
		s.lane.queue.emptied()
	}
}

// give notes that an event is sent to the peer of a lane, and whether that peer must relay it.
func (h held) give(l *lane, relay bool) {
	s := h.share(l, relay)
	s.sent.Add(h.index)
	s.sentN++
	l.sentN++
}

// takeBack undoes give.
func (s *share) takeBack(index int) {
	s.sent.Remove(index)
	s.takenBack(1)
}

// takenBack accounts for n events that were removed from the sent ones.
func (s *share) takenBack(n int) {
	s.sentN -= n
	s.lane.sentN -= n
}

// lift takes an event out of its place, whichever that is; it is still held.
func (t *Table) lift(h held) {
	if s := h.sentTo(); s != nil {
		s.takeBack(h.index)
		return
	}
	if s := h.queuedFor(); s != nil {
		s.dequeue(h.index)
		return
	}
	if w := t.waiting[h.waiter()]; w != nil {
		w.events.remove(h)
	}
}

// placeOf returns the place of an event, and the peer that it is for, see [KeyPlace.With].
func (t *Table) placeOf(h held) (Place, Peer) {
	if s := h.sentTo(); s != nil {
		return Sent, s.lane.peer
	}
	if s := h.queuedFor(); s != nil {
		if s.lane == t.nobody {
			return Refused, Peer{}
		}
		return Queued, s.lane.peer
	}
	w := t.waiting[h.waiter()]
	if w.place == Full {
		return Full, w.refuser
	}
	return w.place, Peer{}
}

// lostOn takes back the events of these partitions that were sent to the peer of a lane, and returns them in no
// order; nil for over means all partitions. The peer counts as an earlier holder. It visits all records.
func (t *Table) lostOn(l *lane, over func(ring.Partition) bool) (lost []held) {
	if l.sentN == 0 {
		return nil
	}
	for r := t.oldest; r != nil; r = r.newer {
		for _, s := range r.shares {
			if s.lane != l || s.sentN == 0 {
				continue
			}
			for i := range s.sent.All() {
				if over != nil && !over(r.entry.Partition(i)) {
					continue
				}
				h := held{r, i}
				s.takeBack(i)
				t.markPast(h, l.peer)
				if h.isCall() {
					t.ensureExtra(h).mayRun = true
				}
				lost = append(lost, h)
			}
		}
	}
	t.resent += uint64(len(lost))
	return lost
}

// forget ends n events of a record that were taken out of their places.
func (t *Table) forget(r *record, events event.Bits, n int) {
	r.events.RemoveAll(events)
	r.n -= n
	t.n -= n
	if len(t.extras) > 0 {
		for i := range events.All() {
			t.dropExtra(held{r, i})
		}
	}
	t.removeIfEmpty(r)
}

// enter adds a new record: the newest.
func (t *Table) enter(r *record) {
	t.ageNewest++
	r.age, r.older = t.ageNewest, t.newest
	if t.newest == nil {
		t.oldest = r
	} else {
		t.newest.newer = r
	}
	t.newest = r
	t.records[r.entry.First] = r
	t.bytes += r.entry.Bytes
	if r.entry.First.IsRelayed() {
		t.relayedBytes += r.entry.Bytes
	}
}

// removeIfEmpty drops a record of which no event is held any more.
func (t *Table) removeIfEmpty(r *record) {
	if r.n > 0 {
		return
	}
	if r.older == nil {
		t.oldest = r.newer
	} else {
		r.older.newer = r.newer
	}
	if r.newer == nil {
		t.newest = r.older
	} else {
		r.newer.older = r.older
	}
	delete(t.records, r.entry.First)
	t.bytes -= r.entry.Bytes
	if r.entry.First.IsRelayed() {
		t.relayedBytes -= r.entry.Bytes
	}
	r.older, r.newer = nil, nil // an empty share in a queue may keep r for a while, and must keep no others
}
