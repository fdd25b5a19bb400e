package source

import "math/bits"

// slot is one open event. Two fill a cache line of 64 bytes.
type slot struct {
	message    *Message // nil when the slot is free
	generation uint64   // of the event, or of the last one in the slot
	entry      int32
	index      int32
	batch      uint32 // number of the batch that it came with
	claim      claim
}

// slots are places for open events. They are assigned in the order of their numbers, in
// rounds, so that events that come together, and mostly settle together, lie side by side,
// here and in other arrays by slot. All slots are used equally often, which keeps
// generations low.
type slots struct {
	all       []slot // their number is a multiple of 64
	free      []uint64
	next      int // where the search for a free one continues
	refs      []any
	keepsRefs bool // refs holds one for each slot; else nothing
}

// take returns a free slot; open is the number of used ones. There are at least twice as
// many slots as used ones, since otherwise the free ones would lie scattered.
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

// setRef keeps the reference that acks the event of a slot, if keepsRefs is set.
func (s *slots) setRef(at int32, ref any) {
	if s.keepsRefs {
		s.refs[at] = ref
	}
}

// ref returns the reference that setRef has kept, or nil.
func (s *slots) ref(at int32) any {
	if !s.keepsRefs {
		return nil
	}
	return s.refs[at]
}
