package mailbox

// blockLen values of 64 or 128 bytes are a block of 16 or 32 KiB, which the allocator
// lays on the bounds of cache lines.
const blockLen = 256

// idleBlocks is how many blocks a slab keeps while it is empty. More than that is
// left to the garbage collector after a burst.
const idleBlocks = 16

// slab keeps values in places that do not move, each with a number. Unlike pointers
// to single values, numbers fit into other names, and need no map to be found by. It
// needs no lock, and gives the same places in every replay.
type slab[T any] struct {
	blocks []*[blockLen]T
	unused []uint32 // places; the last is the next to be used, as caches know it best
}

// len returns how many places are in use.
func (s *slab[T]) len() int { return s.places() - len(s.unused) }

// places returns how many places there are: the first number that is none.
func (s *slab[T]) places() int { return len(s.blocks) * blockLen }

// at returns the place with a number below places.
func (s *slab[T]) at(i uint32) *T { return &s.blocks[i/blockLen][i%blockLen] }

// get returns an unused place, where a zero T is, and its number.
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

// next returns which places get gives next, at most n, in any order.
func (s *slab[T]) next(n int) []uint32 { return s.unused[max(0, len(s.unused)-n):] }

// put takes a place back.
func (s *slab[T]) put(i uint32) {
	var zero T
	*s.at(i) = zero
	s.unused = append(s.unused, i)
	if len(s.blocks) > idleBlocks && s.len() == 0 {
		s.shrink()
	}
}

// shrink needs an empty slab.
func (s *slab[T]) shrink() {
	clear(s.blocks[idleBlocks:])
	s.blocks, s.unused = s.blocks[:idleBlocks], nil
	for block := idleBlocks - 1; block >= 0; block-- {
		s.addUnused(block)
	}
}

// addUnused adds the places of a block, the first to be used first.
func (s *slab[T]) addUnused(block int) {
	for i := blockLen - 1; i >= 0; i-- {
		s.unused = append(s.unused, uint32(block*blockLen+i))
	}
}
