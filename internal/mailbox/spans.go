package mailbox

import "github.com/ringfence/router/internal/base/event"

// spanLen is how many indexes of a batch a span is about.
const spanLen = 128

// span is what is known of the ids of one entry whose indexes in its batch lie between
// two multiples of spanLen: which of these events are here, and which were done lately.
// Events of an entry mostly come together and are done at about the same time, so one
// search serves many of them. It is a cache line, so that few ids, up to one in each
// span as without batches, cost little too.
type span struct {
	ledger, entry  int64
	topicPartition int32
	part           int32 // of the batch: index / spanLen, rounded down, since -1 is one too
	here, done     bits  // by index % spanLen; none is in both
	hash           uint32
	place          uint32 // in spans.places
}

// ref returns what spans.index has under the hash.
func (s *span) ref() uint32 { return s.place + 1 }

// covers reports whether id is one of those that the span is about.
func (s *span) covers(id event.MessageID) bool {
	return s.entry == id.Entry && s.ledger == id.Ledger && s.part == partOf(id) && s.topicPartition == id.TopicPartition
}

// id returns the id that has a bit here.
func (s *span) id(bit uint8) event.MessageID {
	return event.MessageID{Ledger: s.ledger, Entry: s.entry, Batch: s.part*spanLen + int32(bit), TopicPartition: s.topicPartition}
}

func partOf(id event.MessageID) int32 { return id.Batch >> 7 }
func bitOf(id event.MessageID) uint8  { return uint8(id.Batch & (spanLen - 1)) }

// bits is a set of numbers below spanLen.
type bits [spanLen / 64]uint64

func (b *bits) has(i uint8) bool { return b[i/64%2]>>(i%64)&1 != 0 }
func (b *bits) add(i uint8)      { b[i/64%2] |= 1 << (i % 64) }
func (b *bits) remove(i uint8)   { b[i/64%2] &^= 1 << (i % 64) }

// spans are those of which an id is known.
type spans struct {
	places slab[span]
	index  *index // hash of what a span covers → it
	last   *span  // that was found or added, nil when it is gone
}

func newSpans() *spans { return &spans{index: newIndex()} }

func (t *spans) at(place uint32) *span { return t.places.at(place) }

// find returns the span that covers id, whose hash is hash, or nil.
func (t *spans) find(hash uint32, id event.MessageID) *span {
	if t.last != nil && t.last.covers(id) {
		return t.last
	}
	ref := t.index.find(hash, func(ref uint32) bool { return t.at(ref - 1).covers(id) })
	if ref == 0 {
		return nil
	}
	t.last = t.at(ref - 1)
	return t.last
}

// add returns a new span that covers id. Its user must add a bit to it.
func (t *spans) add(hash uint32, id event.MessageID) *span {
	s, place := t.places.get()
	s.ledger, s.entry, s.topicPartition, s.part = id.Ledger, id.Entry, id.TopicPartition, partOf(id)
	s.hash, s.place = hash, place
	t.index.add(hash, s.ref())
	t.last = s
	return s
}

// drop lets a span go of which no id is known any more.
func (t *spans) drop(s *span) {
	if s.here != (bits{}) || s.done != (bits{}) {
		return
	}
	if t.last == s {
		t.last = nil
	}
	t.index.remove(s.hash, s.ref())
	t.places.put(s.place)
}

// hashOf spreads what spans cover. Two with one hash cost a look at each other.
func hashOf(id event.MessageID) uint32 {
	hash := mix(uint64(id.Ledger))
	hash = mix(hash ^ uint64(id.Entry))
	return uint32(mix(hash ^ uint64(uint32(partOf(id)))<<32 ^ uint64(uint32(id.TopicPartition))))
}
