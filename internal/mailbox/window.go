package mailbox

import (
	"time"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/event"
)

// recordBytes is what one id counts in a window: its record, its share of the map,
// and the slack of both (measured: 87 to 99 bytes on average).
const recordBytes = 128

// window remembers the ids of events that were done lately, of every partition in
// the order in which they were done. It is bounded over all partitions together, so
// that each of them looks back equally far.
//
// Its records live in one slice without pointers, linked by index, so the garbage
// collector does not walk them. Index 0 is no record: it closes the ring of all
// records by age.
type window struct {
	countMax int
	ageMax   time.Duration
	slots    map[uint64]int32 // hash of an id → its record, half the size of a map by id
	records  []record
	free     int32  // first unused record, linked by after
	parts    []fifo // partition → its own records, oldest first
}

// record is one id. next and prev order all records by age, after those of one partition.
type record struct {
	id                event.MessageID
	at                clock.Instant
	prev, next, after int32
	part              int32
}

type fifo struct{ head, tail, count int32 }

func newWindow(partitions, bytesMax int, ageMax time.Duration) window {
	return window{
		countMax: max(1, bytesMax/recordBytes),
		ageMax:   ageMax,
		slots:    make(map[uint64]int32),
		records:  make([]record, 1),
		parts:    make([]fifo, partitions),
	}
}

func (w *window) len() int { return len(w.slots) }

func (w *window) has(id event.MessageID) bool {
	i := w.slots[hashOf(id)]
	return i != 0 && w.records[i].id == id
}

// add remembers that id of partition part was done, at the expense of the oldest.
func (w *window) add(now clock.Instant, part int, id event.MessageID) {
	hash := hashOf(id)
	if w.slots[hash] != 0 {
		return // known, or an id of the same hash is, and this one is not remembered
	}
	if w.len() >= w.countMax {
		w.forgetOldest()
	}
	i := w.unused()
	w.slots[hash] = i
	last := w.records[0].prev
	w.records[i] = record{id: id, at: now, prev: last, part: int32(part)}
	w.records[last].next = i
	w.records[0].prev = i

	own := &w.parts[part]
	if own.count == 0 {
		own.head = i
	} else {
		w.records[own.tail].after = i
	}
	own.tail = i
	own.count++
}

// unused returns the index of a record that holds nothing.
func (w *window) unused() int32 {
	if i := w.free; i != 0 {
		w.free = w.records[i].after
		return i
	}
	w.records = append(w.records, record{})
	return int32(len(w.records) - 1)
}

// forgetOldest needs at least one record. The oldest of all is the oldest of its partition.
func (w *window) forgetOldest() { w.forgetFirst(int(w.records[w.records[0].next].part)) }

// forgetFirst forgets the oldest id of a partition, which must have one.
func (w *window) forgetFirst(part int) {
	own := &w.parts[part]
	i := own.head
	r := &w.records[i]
	own.head = r.after
	own.count--
	w.records[r.prev].next = r.next
	w.records[r.next].prev = r.prev
	delete(w.slots, hashOf(r.id))
	*r = record{after: w.free}
	w.free = i
}

// drop forgets all ids of a partition.
func (w *window) drop(part int) {
	for w.parts[part].count > 0 {
		w.forgetFirst(part)
	}
}

// expire forgets what is too old.
func (w *window) expire(now clock.Instant) {
	for w.len() > 0 && !w.records[w.records[0].next].at.Add(w.ageMax).After(now) {
		w.forgetOldest()
	}
}

// next returns when expire should be called, or clock.Forever. It is a sixteenth of
// the age late, so that a busy window ages in batches.
func (w *window) next() clock.Instant {
	if w.len() == 0 {
		return clock.Forever
	}
	return w.records[w.records[0].next].at.Add(w.ageMax + w.ageMax/16)
}

// ids returns the ids of a partition, oldest first.
func (w *window) ids(part int) []event.MessageID {
	own := w.parts[part]
	ids := make([]event.MessageID, 0, own.count)
	for i := own.head; len(ids) < int(own.count); i = w.records[i].after {
		ids = append(ids, w.records[i].id)
	}
	return ids
}

// hashOf spreads ids. Two ids with one hash do no harm, and hardly ever meet.
func hashOf(id event.MessageID) uint64 {
	hash := mix(uint64(id.Ledger))
	hash = mix(hash ^ uint64(id.Entry))
	return mix(hash ^ uint64(uint32(id.Batch))<<32 ^ uint64(uint32(id.TopicPartition)))
}
