package mailbox

import (
	"math"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// recordBytes is what one id counts in a window. It is what an id without a batch takes: its
// record (16 bytes), a span of its own (64), its share of the index (12 to 24), and what
// is held twice while records or index grow. Ids of a batch share their spans.
const recordBytes = 128

// window remembers the ids of events that were done lately: the last ones of all
// partitions together, so that each of them looks back equally far. An id that was
// dropped counts until its turn to be forgotten has come.
//
// Its records stand in the order in which they were made, in a ring, under serial
// numbers that begin with 1. It neither reads nor writes any other when one is added.
type window struct {
	countMax   int
	ageMax     time.Duration
	spans      *spans        // shared with what is here
	records    []record      // serial modulo its length
	first, end uint64        // serials from first on and before end are in the ring
	n          int           // how many of them are remembered; the first is
	sweep      uint64        // sweepSome has looked at serials from here on
	young      clock.Instant // sweepSome does not look at what was done before yet

	// copies has, of ids that were done by way of a copy, what was in it: whoever writes to the
	// retry topic chooses the id. These stay here when their partition moves.
	copies map[event.MessageID]content
}

// copiesPart is which part of the ids that a window remembers may be of copies.
const copiesPart = 4

// record is one id: a bit of a span.
type record struct {
	at        clock.Instant // when it was done, perhaps elsewhere
	span      uint32        // its place in spans
	partition ring.Partition
	bit       uint8
	flags     recordFlags
}

// recordFlags say more about a record.
type recordFlags uint8

const (
	recordDropped recordFlags = 1 << iota // it is not remembered any more
	recordCopied                          // it was done by way of a copy, see window.copies
)

func (r *record) is(f recordFlags) bool { return r.flags&f != 0 }

func (w *window) finished(r *record) event.Finished {
	return event.Finished{Partition: r.partition, ID: w.spans.at(r.span).id(r.bit), At: r.at}
}

func newWindow(spans *spans, bytesMax int, ageMax time.Duration) window {
	countMax := max(1, bytesMax/recordBytes)
	return window{
		countMax: countMax, ageMax: ageMax, spans: spans,
		records: make([]record, min(indexMin, countMax)), first: 1, end: 1, young: ever,
		copies: make(map[event.MessageID]content),
	}
}

// at returns the record with a serial from first on and before end.
func (w *window) at(serial uint64) *record { return &w.records[serial%uint64(len(w.records))] }

// add remembers that the id with a bit of s was done at that time, at the expense of what
// was added first. It must not be known as done, and s is not dropped meanwhile: one that
// is here is taken out after it.
func (w *window) add(at clock.Instant, p ring.Partition, s *span, bit uint8) {
	s.done.add(bit)
	if w.end-w.first == uint64(len(w.records)) {
		w.makeRoom()
	}
	*w.at(w.end) = record{at: at, span: s.place, bit: bit, partition: p}
	w.end++
	w.n++
}

// addCopy is add for an id that was done by way of a copy. It reports false if there are
// too many of them: then the id is not remembered.
func (w *window) addCopy(at clock.Instant, p ring.Partition, s *span, bit uint8, what content) bool {
	if len(w.copies) >= max(1, w.countMax/copiesPart) {
		return false
	}
	w.add(at, p, s, bit)
	w.at(w.end - 1).flags |= recordCopied
	w.copies[s.id(bit)] = what
	return true
}

func (w *window) makeRoom() {
	if len(w.records) >= w.countMax {
		w.forgetOldest()
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

func (w *window) forget(serial uint64) {
	r := w.at(serial)
	r.flags |= recordDropped
	s := w.spans.at(r.span)
	if r.is(recordCopied) {
		delete(w.copies, s.id(r.bit))
	}
	s.done.remove(r.bit)
	w.spans.drop(s)
	w.n--
}

// trim lets the ring begin with a record that is remembered.
func (w *window) trim() {
	for w.first < w.end && w.at(w.first).is(recordDropped) {
		w.first++
	}
}

// youngMax is how long ago something was done that is handed over before all else: what
// the broker delivers again when a member leaves was done in the last seconds.
const youngMax = 5 * time.Second

// beginSweep lets sweepSome begin anew.
func (w *window) beginSweep(now clock.Instant) { w.sweep, w.young = w.end, now.Add(-youngMax) }

// ever is before everything. What was done elsewhere may have been done before this
// machine started, whose clock began with 0 then.
const ever = clock.Instant(math.MinInt64)

// sweepMax is how many records sweepSome looks at.
const sweepMax = 1 << 14

// sweepSome forgets ids that it has not looked at yet and that leave, at most so many,
// appends them to dst, and reports whether there may be more. The young ones come first;
// what was handed over here stands behind younger ones. It reads the records in the order
// in which they lie in memory: to look at those that stay costs little.
func (w *window) sweepSome(idsMax int, leaves func(serial uint64, p ring.Partition) bool, dst []event.Finished) (_ []event.Finished, more bool) {
	for looked := 0; looked < sweepMax && idsMax > 0 && w.sweep > w.first; looked++ {
		w.sweep--
		if r := w.at(w.sweep); !r.is(recordDropped) && !r.at.Before(w.young) && leaves(w.sweep, r.partition) {
			if w.mayBeTold(r) {
				dst = append(dst, w.finished(r))
				idsMax--
			}
			w.forget(w.sweep)
		}
	}
	w.trim()
	if w.sweep <= w.first && w.young != ever {
		w.sweep, w.young = w.end, ever
	}
	return dst, w.sweep > w.first
}

// mayBeTold reports whether a record means the event that the broker has given its id, and
// not only a copy that says so.
func (w *window) mayBeTold(r *record) bool {
	return !r.is(recordCopied) && w.spans.at(r.span).ledger >= 0
}

// takeAll forgets those of the ids that are still remembered and leave, and appends them
// to dst.
func (w *window) takeAll(serials []uint64, leaves func(serial uint64, p ring.Partition) bool, dst []event.Finished) []event.Finished {
	for _, serial := range serials {
		if serial < w.first {
			continue
		}
		if r := w.at(serial); !r.is(recordDropped) && leaves(serial, r.partition) {
			if w.mayBeTold(r) {
				dst = append(dst, w.finished(r))
			}
			w.forget(serial)
		}
	}
	w.trim()
	return dst
}

// expire forgets what is too old. What was done elsewhere may stay longer: it does not
// go before what was added earlier.
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
