package mailbox

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/event"
)

// recordBytes is what one id counts in a window: its record (48 bytes), its share of
// the index (12 to 24), and what is held twice while either of them grows.
const recordBytes = 128

// doneBit marks the references of a window in the index that it shares.
const doneBit = 1 << 31

// window remembers the ids of events that were done lately: the last ones of all
// partitions together, so that each of them looks back equally far. An id that was
// dropped counts until its turn to be forgotten has come.
//
// Its records stand in the order in which they were made, in a ring, under serial
// numbers that begin with 1. It neither reads nor writes any other when one is added.
type window struct {
	countMax   int
	ageMax     time.Duration
	known      *index   // shared with what is here
	records    []record // serial modulo its length
	first, end uint64   // serials from first on and before end are in the ring
	n          int      // how many of them are remembered; the first is
	read       uint32   // by forgetSome
}

// record is one id.
type record struct {
	id      event.MessageID
	at      clock.Instant
	before  uint64 // serial of the one before it in its partition; forgotten if less than window.first
	hash    uint32 // of the id
	dropped bool
}

// history is a partition's part of a window: the serial of its newest record, or less
// than window.first when it has none.
type history struct{ newest uint64 }

func newWindow(known *index, bytesMax int, ageMax time.Duration) window {
	countMax := max(1, bytesMax/recordBytes)
	return window{
		countMax: countMax, ageMax: ageMax, known: known,
		records: make([]record, min(indexMin, countMax)), first: 1, end: 1,
	}
}

// at returns the record with a serial from first on and before end.
func (w *window) at(serial uint64) *record { return &w.records[serial%uint64(len(w.records))] }

// isID reports whether a reference of the window stands for id.
func (w *window) isID(ref uint32, id event.MessageID) bool {
	ahead := (ref - uint32(w.first)) % doneBit
	return w.at(w.first+uint64(ahead)).id == id
}

// add remembers that id was done, at the expense of the oldest, and returns the
// reference to put into the index. The id must not be known.
func (w *window) add(now clock.Instant, h *history, id event.MessageID, hash uint32) (ref uint32) {
	if w.end-w.first == uint64(len(w.records)) {
		w.makeRoom()
	}
	*w.at(w.end) = record{id: id, at: now, before: h.newest, hash: hash}
	h.newest = w.end
	w.end++
	w.n++
	return refOf(h.newest)
}

func refOf(serial uint64) uint32 { return uint32(serial) | doneBit }

func (w *window) makeRoom() {
	if len(w.records) >= w.countMax {
		w.forgetSome()
		return
	}
	wider := *w
	wider.records = make([]record, min(2*len(w.records), w.countMax))
	for serial := w.first; serial < w.end; serial++ {
		*wider.at(serial) = *w.at(serial)
	}
	*w = wider
}

// forgetOldest needs at least one id.
func (w *window) forgetOldest() {
	w.forget(w.first)
	w.trim()
}

// forgetSome makes room for as many as it takes to read ahead what forgetting will
// look at, so that the cache misses of many are under way at a time. That is the
// oldest alone where the window is small.
func (w *window) forgetSome() {
	run := min(64, max(1, uint64(len(w.records))/1024))
	sum := uint32(0)
	for serial := w.first; serial < w.first+run; serial++ {
		sum += w.known.peek(w.at(serial).hash)
	}
	w.read = sum // or the compiler would leave it all out
	for end := w.first + run; w.first < end && w.n > 0; {
		w.forgetOldest()
	}
}

func (w *window) forget(serial uint64) {
	r := w.at(serial)
	r.dropped = true
	w.known.remove(r.hash, refOf(serial))
	w.n--
}

// trim lets the ring begin with a record that is remembered.
func (w *window) trim() {
	for w.first < w.end && w.at(w.first).dropped {
		w.first++
	}
}

// drop forgets all ids of a partition.
func (w *window) drop(h *history) {
	for serial := h.newest; serial >= w.first; serial = w.at(serial).before {
		w.forget(serial)
	}
	h.newest = 0
	w.trim()
}

// expire forgets what is too old.
func (w *window) expire(now clock.Instant) {
	for w.n > 0 && !w.at(w.first).at.Add(w.ageMax).After(now) {
		w.forgetOldest()
	}
}

// next returns when expire should be called, or clock.Forever. It is a sixteenth of
// the age late, so that a busy window ages in batches.
func (w *window) next() clock.Instant {
	if w.n == 0 {
		return clock.Forever
	}
	return w.at(w.first).at.Add(w.ageMax + w.ageMax/16)
}

// ids returns the ids of a partition, oldest first.
func (w *window) ids(h history) []event.MessageID {
	var ids []event.MessageID
	for serial := h.newest; serial >= w.first; serial = w.at(serial).before {
		ids = append(ids, w.at(serial).id)
	}
	slices.Reverse(ids)
	return ids
}

// hashOf spreads ids. Two ids with one hash cost a look at each other's record.
func hashOf(id event.MessageID) uint32 {
	hash := mix(uint64(id.Ledger))
	hash = mix(hash ^ uint64(id.Entry))
	return uint32(mix(hash ^ uint64(uint32(id.Batch))<<32 ^ uint64(uint32(id.TopicPartition))))
}
