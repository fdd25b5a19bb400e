package mailbox

// blockLen values of 64 or 128 bytes make a block of 16 or 32 KiB, which the allocator
// aligns to cache lines.
const blockLen = 256

// idleBlocks is the number of blocks that an empty slab keeps after a burst.
const idleBlocks = 16

// slab keeps values in numbered places that do not move. The numbers are parts of other
// ids and need no map to be found. It assigns the same places in every replay.
type slab[T any] struct {
	blocks []*[blockLen]T
	unused []uint32 // places; the last one freed is used next, since it is likely cached
}

// len returns how many places are in use.
func (s *slab[T]) len() int { return s.places() - len(s.unused) }

// places returns the number of places, used or not.
func (s *slab[T]) places() int { return len(s.blocks) * blockLen }

// at returns the place with a number below places.
func (s *slab[T]) at(i uint32) *T { return &s.blocks[i/blockLen][i%blockLen] }

// get returns an unused place, which holds a zero T, and its number.
func (s *slab[T]) get() (*T, uint32) {
	if len(s.unused) == 0 {
		s.blocks = append(s.blocks, new([blockLen]T))
		s.addUnused(len(s.blocks) - 1)
	}
	last := len(s.unused) - 1
	i := s.unused[last]
	s.unused = s.unused[:last]
	return s.at(i), i
}

// put frees a place.
func (s *slab[T]) put(i uint32) {
	var zero T
	*s.at(i) = zero
	s.unused = append(s.unused, i)
	if len(s.blocks) > idleBlocks && s.len() == 0 {
		s.shrink()
	}
}

// shrink drops blocks of an empty slab.
func (s *slab[T]) shrink() {
	clear(s.blocks[idleBlocks:])
	s.blocks, s.unused = s.blocks[:idleBlocks], nil
	for block := idleBlocks - 1; block >= 0; block-- {
		s.addUnused(block)
	}
}

// addUnused adds the places of a block; its first place is used first.
func (s *slab[T]) addUnused(block int) {
	for i := blockLen - 1; i >= 0; i-- {
		s.unused = append(s.unused, uint32(block*blockLen+i))
	}
}
