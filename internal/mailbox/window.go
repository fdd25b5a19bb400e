package mailbox

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// recordBytes is the weight of one id in a window: that of an id without a batch, with its
// record (16 bytes), a span of its own (64), its share of the index (12 to 24), and the
// memory that is held twice while records or index grow. Ids of a batch share their spans.
const recordBytes = 128

// window remembers the ids of recently finished events, the newest of all partitions
// together, so that every partition looks back equally far. A removed id keeps its slot
// until it is evicted.
//
// Its records lie in a ring buffer in the order in which they were added, under serial
// numbers from 1. Adding one touches no other record.
type window struct {
	countMax   int
	ageMax     time.Duration
	spans      *spans        // shared with Boxes
	records    []record      // by serial modulo the length
	first, end uint64        // serials in [first, end) are in the ring
	n          int           // how many of them are remembered; the first is
	sweep      uint64        // sweepSome has looked at serials from here on
	young      clock.Instant // sweepSome skips ids that finished before, in this pass

	// copies holds the content of finished retry-topic copies by id, since every producer of
	// that topic can choose the id. No serial of theirs is less than copiesFrom. Of these ids only those that a router
	// has given are handed over when a partition moves, with the content.
	copies     map[event.MessageID]event.Content
	copiesFrom uint64
}

// copiesPart bounds the ids of copies to this fraction of a window. gapsPart bounds the slots left by copies that
// were removed to make room for newer ones. Otherwise many copies would push all other ids out of the window.
const copiesPart, gapsPart = 4, 16

// record is one id: a bit of a span.
type record struct {
	at        clock.Instant // when the event finished, here or at another member
	span      uint32        // its place in spans
	partition ring.Partition
	bit       uint8
	flags     recordFlags
}

type recordFlags uint8

const (
	recordDropped recordFlags = 1 << iota // the id was removed
	recordCopied                          // the event was a copy, see window.copies
)

func (r *record) is(f recordFlags) bool { return r.flags&f != 0 }

func (w *window) finished(r *record) event.Finished {
	d := event.Finished{Partition: r.partition, ID: w.spans.at(r.span).id(r.bit), At: r.at}
	if r.is(recordCopied) {
		d.Content = w.copies[d.ID]
	}
	return d
}

func newWindow(spans *spans, bytesMax int, ageMax time.Duration) window {
	countMax := max(1, bytesMax/recordBytes)
	return window{
		countMax: countMax, ageMax: ageMax, spans: spans,
		records: make([]record, min(cellsMin, countMax)), first: 1, end: 1, young: ever,
		copies: make(map[event.MessageID]event.Content),
	}
}

// at returns the record with a serial in [first, end).
func (w *window) at(serial uint64) *record { return &w.records[serial%uint64(len(w.records))] }

// add records that the event with a bit of s finished at a time, and evicts the oldest
// record of a full window. The bit must not be in s.done. s must have a bit set, so that
// the eviction does not drop it: an event that is here leaves s.here after the call.
func (w *window) add(at clock.Instant, p ring.Partition, s *span, bit uint8) {
	s.done.add(bit)
	if w.end-w.first == uint64(len(w.records)) {
		w.makeRoom()
	}
	*w.at(w.end) = record{at: at, span: s.place, bit: bit, partition: p}
	w.end++
	w.n++
}

// addCopy is add for the id of a copy. If there are too many of them, the oldest is forgotten, which it reports.
func (w *window) addCopy(at clock.Instant, p ring.Partition, s *span, bit uint8, what event.Content) (forgot bool) {
	w.add(at, p, s, bit)
	w.at(w.end - 1).flags |= recordCopied
	w.copies[s.id(bit)] = what
	if len(w.copies) <= max(1, w.countMax/copiesPart) {
		return false
	}
	w.copiesFrom = max(w.copiesFrom, w.first)
	for r := w.at(w.copiesFrom); !r.is(recordCopied) || r.is(recordDropped); r = w.at(w.copiesFrom) {
		w.copiesFrom++ // once for each record, and the new one is a copy
	}
	w.forget(w.copiesFrom)
	w.trim()
	return true
}

// gaps returns the number of slots of removed ids.
func (w *window) gaps() int { return int(w.end-w.first) - w.n }

// closeGaps moves the remembered records together, before the end of the ring, in their order. A mark is a serial that divides the records
// in two: it keeps its place between the same two records.
func (w *window) closeGaps(marks []*uint64) {
	marks = append(marks, &w.sweep, &w.copiesFrom)
	slices.SortFunc(marks, func(a, b *uint64) int { return cmp.Compare(*b, *a) }) // the last ones first
	to := w.end
	for serial := w.end; ; serial-- {
		for len(marks) > 0 && *marks[0] >= serial {
			*marks[0], marks = to, marks[1:]
		}
		if serial == w.first {
			break
		}
		if r := w.at(serial - 1); !r.is(recordDropped) {
			to--
			*w.at(to) = *r
		}
	}
	w.first = to
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

// forgetOldest removes the oldest id of a window that is not empty.
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

// trim removes dropped records from the front of the ring.
func (w *window) trim() {
	for w.first < w.end && w.at(w.first).is(recordDropped) {
		w.first++
	}
}

// youngMax is the age up to which ids are handed over first: events that the broker
// delivers again when a member leaves have finished in the last seconds.
const youngMax = 5 * time.Second

// beginSweep restarts sweepSome.
func (w *window) beginSweep(now clock.Instant) { w.sweep, w.young = w.end, now.Add(-youngMax) }

// ever is before every instant. Events of another member may have finished before this
// machine started and its clock read 0.
const ever = clock.Instant(math.MinInt64)

// sweepMax bounds the records that one call of sweepSome reads.
const sweepMax = 1 << 14

// sweepSome removes up to idsMax ids that leave and that it has not read yet, appends them
// to dst, and reports whether there may be more. It makes two passes, young ids first,
// since ids that other members handed over here lie behind younger ones. It reads records
// in memory order, so that those that stay cost little.
func (w *window) sweepSome(idsMax int, leaves func(serial uint64, p ring.Partition) bool, dst []event.Finished) (_ []event.Finished, more bool) {
	full := len(dst) + idsMax
	for looked := 0; looked < sweepMax && len(dst) < full && w.sweep > w.first; looked++ {
		w.sweep--
		if r := w.at(w.sweep); !r.is(recordDropped) && !r.at.Before(w.young) && leaves(w.sweep, r.partition) {
			dst = w.handOver(w.sweep, dst)
		}
	}
	w.trim()
	if w.sweep <= w.first && w.young != ever {
		w.sweep, w.young = w.end, ever
	}
	return dst, w.sweep > w.first
}

// handOver removes an id, and appends it to dst if the broker has assigned it, or a router has, to an event that it has
// published. Aliases, and ids of other unsigned copies, are not handed over.
func (w *window) handOver(serial uint64, dst []event.Finished) []event.Finished {
	r := w.at(serial)
	if d := w.finished(r); d.ID.Ledger >= 0 && (!r.is(recordCopied) || d.ID.IsSent()) {
		dst = append(dst, d)
	}
	w.forget(serial)
	return dst
}

// takeAll removes the ids before the given serials if they are still remembered and leave, and appends them
// to dst.
func (w *window) takeAll(behind []uint64, leaves func(serial uint64, p ring.Partition) bool, dst []event.Finished) []event.Finished {
	for _, serial := range behind {
		if serial <= w.first {
			continue
		}
		serial--
		if r := w.at(serial); !r.is(recordDropped) && leaves(serial, r.partition) {
			dst = w.handOver(serial, dst)
		}
	}
	w.trim()
	return dst
}

// expire removes ids that are too old, in the order in which they were added: an id that
// another member handed over may stay longer.
func (w *window) expire(now clock.Instant) {
	for w.n > 0 && !w.at(w.first).at.Add(w.ageMax).After(now) {
		w.forgetOldest()
	}
}

// next returns when expire is due, or clock.Forever. It is a sixteenth of the age late, so
// that a busy window expires ids in batches.
func (w *window) next() clock.Instant {
	if w.n == 0 {
		return clock.Forever
	}
	return w.at(w.first).at.Add(w.ageMax + w.ageMax/16)
}
