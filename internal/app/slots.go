package app

import (
	"iter"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/ring"
)

// slot is one delivery that has gone out and has no answer yet.
type slot struct {
	// name is the worker's name of the delivery: the slot's number, and above it the slot's use
	// count, so that no name repeats.
	name      event.DeliveryID
	id        event.DeliveryID // the mailboxes' name
	until     clock.Instant    // if revoked: the end of the lease behind the last Pong that could move its deadline
	partition ring.Partition
	taken     bool  // false: the slot is free, and only name is valid
	revoked   bool  // its deadline moves only by Pong.draining
	forced    bool  // revoked, and its deadline no longer moves
	timedOut  bool  // forced, since it took too long: counts as failed if nothing else comes
	looks     uint8 // how often TimeOut has checked it since it went out, or since the newest Progress for it
	over      bool  // ended for the mailbox, as lost; kept until the worker answers, since it takes a place at the worker

	// For the report of its handling, and only if those are asked for.
	key   partition.KeyHash
	fence event.Fence
	sent  time.Duration // CLOCK_BOOTTIME before it went out
}

// slots are the deliveries that a worker has not answered, close together and without a look-up:
// the name in an answer contains the number of the slot.
type slots struct {
	list []slot
	free []int32 // numbers of free ones, the warmest last
}

const (
	slotBits = 17 // in a name, for the number: more slots than Config lets a worker have
	slotMask = 1<<slotBits - 1
)

// len returns how many slots are taken.
func (s *slots) len() int { return len(s.list) - len(s.free) }

// take takes a slot for a delivery. The pointer is good until the next take.
func (s *slots) take(id event.DeliveryID, p ring.Partition) *slot {
	var number int32
	if n := len(s.free); n > 0 {
		number, s.free = s.free[n-1], s.free[:n-1]
	} else {
		number = int32(len(s.list))
		s.list = append(s.list, slot{name: event.DeliveryID(number)})
	}
	at := &s.list[number]
	name := at.name + 1<<slotBits
	*at = slot{}
	at.name, at.id, at.partition, at.taken = name, id, p, true
	return at
}

// of returns the slot with a name, nil if it does not or no longer exists.
func (s *slots) of(name event.DeliveryID) *slot {
	number := name & slotMask
	if number >= event.DeliveryID(len(s.list)) {
		return nil
	}
	if at := &s.list[number]; at.taken && at.name == name {
		return at
	}
	return nil
}

// release makes a taken slot free.
func (s *slots) release(at *slot) {
	at.taken = false
	s.free = append(s.free, int32(at.name&slotMask))
}

// all yields the taken slots. The body may release the one it is given.
func (s *slots) all() iter.Seq[*slot] {
	return func(yield func(*slot) bool) {
		for i := range s.list {
			if at := &s.list[i]; at.taken && !yield(at) {
				return
			}
		}
	}
}
