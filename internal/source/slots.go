package source

import "math/bits"

// slot is one open event. Two fill a cache line of 64 bytes.
type slot struct {
	message    *Message // nil when the slot is free
	generation uint64   // of the event, or of the last one that was here
	entry      int32
	index      int32
	batch      uint32 // that it came with
	claim      claim
}

// slots are places for open events. They are given in the order of their numbers, over
// and over, so that events that come together lie side by side, here and wherever else
// something is kept by slot: what came together is mostly settled together, too. And
// each slot is used in its turn, which keeps generations low.
type slots struct {
	all       []slot // their number is a multiple of 64
	free      []uint64
	next      int // where the search for a free one goes on
	refs      []any
	keepsRefs bool // refs holds one for each slot; else nothing
}

// take returns a free slot, while open others are not. There are twice as many slots as
// were ever open: if there were hardly more, the free ones would lie in no order.
func (s *slots) take(open int) int32 {
	if 2*open >= len(s.all) && len(s.all) < OpenMax {
		s.grow()
	}
	for {
		if free := s.free[s.next/64] >> (s.next % 64); free != 0 {
			at := s.next + bits.TrailingZeros64(free)
			s.free[at/64] &^= 1 << (at % 64)
			s.goOn(at + 1)
			return int32(at)
		}
		s.goOn((s.next/64 + 1) * 64)
	}
}

func (s *slots) goOn(at int) {
	if at == len(s.all) {
		at = 0
	}
	s.next = at
}

func (s *slots) grow() {
	s.all = append(s.all, make([]slot, 64)...)
	s.free = append(s.free, ^uint64(0))
	if s.keepsRefs {
		s.refs = append(s.refs, make([]any, 64)...)
	}
}

// vacate frees a slot.
func (s *slots) vacate(at int32) {
	s.all[at].message, s.all[at].claim = nil, unclaimed
	s.free[at/64] |= 1 << (at % 64)
	s.setRef(at, nil)
}

// setRef keeps what acks the event in a slot, if such things are kept.
func (s *slots) setRef(at int32, ref any) {
	if s.keepsRefs {
		s.refs[at] = ref
	}
}

// ref returns what setRef has kept, nil if nothing is.
func (s *slots) ref(at int32) any {
	if !s.keepsRefs {
		return nil
	}
	return s.refs[at]
}
