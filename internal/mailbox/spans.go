package mailbox

import "github.com/ringfence/router/internal/base/event"

// spanLen is the number of batch indexes that a span covers.
const (
	spanBits = 7
	spanLen  = 1 << spanBits
)

// span records, for the ids of one entry whose batch indexes lie between two multiples of
// spanLen, which of these events are here and which have recently finished. Events of an
// entry mostly come and finish together, so one search serves many of them. A span is one
// cache line, so that spans of a single id, as without batches, cost little too.
type span struct {
	ledger, entry  int64
	topicPartition int32
	part           int32 // of the batch: index / spanLen, rounded down, since -1 is one too
	here, done     bits  // by index % spanLen; no index is in both
	hash           uint32
	place          uint32 // in spans.table
}

// covers reports whether the span covers id.
func (s *span) covers(id event.MessageID) bool {
	return s.entry == id.Entry && s.ledger == id.Ledger && s.part == partOf(id) && s.topicPartition == id.TopicPartition
}

// id returns the id of a bit.
func (s *span) id(bit uint8) event.MessageID {
	return event.MessageID{Ledger: s.ledger, Entry: s.entry, Batch: s.part*spanLen + int32(bit), TopicPartition: s.topicPartition}
}

// partOf returns the part of its batch in which an id lies, and bitOf its place there: see span.part.
func partOf(id event.MessageID) int32 { return id.Batch >> spanBits }
func bitOf(id event.MessageID) uint8  { return uint8(id.Batch & (spanLen - 1)) }

// bits is a set of numbers below spanLen.
type bits [spanLen / 64]uint64

func (b *bits) has(i uint8) bool { return b[i/64%2]>>(i%64)&1 != 0 }
func (b *bits) add(i uint8)      { b[i/64%2] |= 1 << (i % 64) }
func (b *bits) remove(i uint8)   { b[i/64%2] &^= 1 << (i % 64) }

// spans finds the span of an id. Every span in it has a bit set.
type spans struct {
	table table[span] // by hash of entry and part
	last  *span       // the last one found or added, nil when it was dropped
}

// noSpan is the span of an item without one: a call that needs no window, since nothing repeats it.
const noSpan = 1<<32 - 1

func newSpans() *spans { return &spans{table: newTable[span]()} }

func (t *spans) at(place uint32) *span { return t.table.at(place) }

// find returns the span that covers id, whose hash is hash, or nil.
func (t *spans) find(hash uint32, id event.MessageID) *span {
	if t.last != nil && t.last.covers(id) {
		return t.last
	}
	s := t.table.find(hash, func(s *span) bool { return s.covers(id) })
	if s != nil {
		t.last = s
	}
	return s
}

// add returns a new span that covers id. The caller must set a bit in it.
func (t *spans) add(hash uint32, id event.MessageID) *span {
	s, place := t.table.add(hash)
	s.ledger, s.entry, s.topicPartition, s.part = id.Ledger, id.Entry, id.TopicPartition, partOf(id)
	s.hash, s.place = hash, place
	t.last = s
	return s
}

// drop frees a span if no bit is set.
func (t *spans) drop(s *span) {
	if s.here != (bits{}) || s.done != (bits{}) {
		return
	}
	if t.last == s {
		t.last = nil
	}
	t.table.drop(s.hash, s.place)
}

// hashOf returns the hash of the span that covers id.
func hashOf(id event.MessageID) uint32 {
	hash := mix(uint64(id.Ledger))
	hash = mix(hash ^ uint64(id.Entry))
	return uint32(mix(hash ^ uint64(uint32(partOf(id)))<<32 ^ uint64(uint32(id.TopicPartition))))
}
