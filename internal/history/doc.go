// Package history remembers what happened to the events of each key at one member, in bounded
// memory: [Attempts] what the mailboxes of an owner did with them, [Journeys] what the consumer
// node received and how it ended, and which members owned the partitions.
//
// Records have a fixed size and no pointers, lie in rings whose memory grows with their use up to
// a bound, and are found by the hash of their key. Adding a record allocates nothing. Records of keys
// that failed have rings of their own, so that they are kept longest.
//
// # Concurrency
//
// [Attempts] is not safe for concurrent use: it belongs to a shard of the mailboxes and lies
// behind its lock. [Journeys] is. A search visits a bounded number of records at a time, and
// releases the lock between the steps.
package history

import "unsafe"

// Config bounds the history of one member.
type Config struct {
	// BytesMax bounds the memory for the history of keys, which `router history` shows. It
	// holds about 5,000 events for each MiB; a quarter of it is reserved for keys that failed, about
	// 1,000 events for each MiB.
	BytesMax int `unit:"bytes" min:"1MiB"`
}

// DefaultConfig returns a bound for a sidecar: about 80,000 events.
func DefaultConfig() Config { return Config{BytesMax: 16 << 20} }

// The parts of BytesMax, in sixteenths.
const (
	attemptsPart = 8
	journeysPart = 7
	movesPart    = 1
	parts        = attemptsPart + journeysPart + movesPart
)

// failedPart is the fraction of the memory for records that keys that failed have alone.
const failedPart = 4

// ringMin is the least number of records in a ring.
const ringMin = 16

// blockLen is the number of records by which a ring grows.
const blockLen = 256

// newest keeps the newest of all records that were added, under serial numbers from 0.
type newest[T any] struct {
	blocks   [][]T
	countMax int
	end      uint64 // serial of the next record
	place    int    // of the next record: end modulo countMax
}

// newRing returns a ring of so many bytes, or of ringMin records if they take more.
func newRing[T any](bytes int) newest[T] {
	var one T
	count := max(ringMin, bytes/int(unsafe.Sizeof(one)))
	return newest[T]{countMax: count, blocks: make([][]T, (count+blockLen-1)/blockLen)}
}

// next returns the place for the next record, which still has the record that it replaces.
func (r *newest[T]) next() *T {
	block := &r.blocks[r.place/blockLen]
	if *block == nil {
		*block = make([]T, min(blockLen, r.countMax-r.place/blockLen*blockLen))
	}
	at := &(*block)[r.place%blockLen]
	r.end++
	if r.place++; r.place == r.countMax {
		r.place = 0
	}
	return at
}

// first returns the serial of the oldest record.
func (r *newest[T]) first() uint64 { return r.end - min(r.end, uint64(r.countMax)) }

// peek returns the place of the nth next record, or a zero one if that has no memory yet.
func (r *newest[T]) peek(n int) *T {
	place := r.place + n
	if place >= r.countMax {
		place -= r.countMax
	}
	if place >= r.countMax || r.blocks[place/blockLen] == nil {
		return new(T)
	}
	return &r.blocks[place/blockLen][place%blockLen]
}

// forgets reports whether a record was replaced.
func (r *newest[T]) forgets() bool { return r.end > uint64(r.countMax) }

// at returns the record with a serial from first to before end.
func (r *newest[T]) at(serial uint64) *T {
	place := int(serial % uint64(r.countMax))
	return &r.blocks[place/blockLen][place%blockLen]
}

// stepMax bounds the records that a step of a search visits: a lock is held for less than 100 µs.
const stepMax = 8192

// cursor is where a search in a ring goes on.
type cursor struct {
	next uint64
	end  uint64 // when the search began
	runs bool
}

// step visits the next records of a ring, and reports whether there are more.
func step[T any](r *newest[T], c *cursor, visit func(*T)) (more bool) {
	if !c.runs {
		c.runs, c.end = true, r.end
	}
	c.next = max(c.next, r.first())
	for n := 0; n < stepMax && c.next < c.end; n++ {
		visit(r.at(c.next))
		c.next++
	}
	return c.next < c.end
}
