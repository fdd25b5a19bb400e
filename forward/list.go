package forward

import (
	"container/heap"
	"slices"
)

// list is a queue of held events in one place, in the order of their age. It is an array,
// not a linked list, so that the cache misses of consecutive events overlap. Sent events
// are only counted, since verdicts come in no order; see [shelf.on].
type list struct {
	place Place
	lane  *lane // Queued, Sent: the lane of the peer
	n     int

	items    []*held // by age; nil where an event was removed; items[head] is not nil
	head     int     // items before it were removed
	first    int     // position of items[0]
	youngest uint64  // the greatest age in items since they were empty
	late     late    // events that came after younger ones
}

func (l *list) push(h *held) {
	h.on = l
	l.n++
	if l.place == Sent {
		return
	}
	age := h.age()
	if age < l.youngest {
		heap.Push(&l.late, h)
		return
	}
	l.youngest = age
	if len(l.items) == cap(l.items) && l.head > len(l.items)/2 {
		l.first += l.head
		l.items = slices.Delete(l.items, 0, l.head)
		l.head = 0
	}
	h.at = l.first + len(l.items)
	l.items = append(l.items, h)
}

func (l *list) remove(h *held) {
	h.on = nil
	l.n--
	switch at := h.at - l.first; {
	case l.place == Sent:
	case h.at < 0:
		heap.Remove(&l.late, -1-h.at)
	case at != l.head:
		l.items[at] = nil
	default:
		l.dropHead()
	}
}

// pop removes the event that front has returned. Unlike remove it does not read the event,
// so that the cache misses of consecutive events overlap.
func (l *list) pop(h *held) {
	h.on = nil
	l.n--
	if len(l.late) > 0 && l.late[0] == h {
		heap.Pop(&l.late)
		return
	}
	l.dropHead()
}

func (l *list) dropHead() {
	l.items[l.head] = nil
	if l.n == len(l.late) {
		l.first += len(l.items)
		l.items, l.head, l.youngest = l.items[:0], 0, 0
		return
	}
	for l.head++; l.items[l.head] == nil; l.head++ {
	}
}

// front returns the oldest event, nil when there is none.
func (l *list) front() *held {
	switch {
	case l.n == 0:
		return nil
	case len(l.late) > 0 && (len(l.late) == l.n || byAge(l.late[0], l.items[l.head]) < 0):
		return l.late[0]
	}
	return l.items[l.head]
}

// all returns the events in a new slice.
func (l *list) all() []*held {
	events := slices.Concat(l.late, l.items[l.head:])
	events = slices.DeleteFunc(events, func(h *held) bool { return h == nil })
	slices.SortFunc(events, byAge)
	return events
}

// late is a heap of events by age, for container/heap. Their positions are negative.
type late []*held

func (l late) Len() int           { return len(l) }
func (l late) Less(i, j int) bool { return byAge(l[i], l[j]) < 0 }
func (l late) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].at, l[j].at = -1-i, -1-j
}

// Push implements heap.Interface.
func (l *late) Push(x any) {
	h := x.(*held)
	h.at = -1 - len(*l)
	*l = append(*l, h)
}

// Pop implements heap.Interface.
func (l *late) Pop() any {
	last := len(*l) - 1
	h := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return h
}
