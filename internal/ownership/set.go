package ownership

import (
	"iter"
	"math/bits"
	"slices"

	"github.com/ringfence/router/ring"
)

// Set is a set of partitions: bit p%64 of word p/64. The nil Set is empty, and partitions
// beyond its length are not in it. A Set in a record, an input or an effect is immutable.
type Set []uint64

// SetOf returns the set of the given partitions.
func SetOf(partitions ...ring.Partition) Set {
	var s Set
	for _, p := range partitions {
		s = s.grown(int(p) + 1)
		s.add(p)
	}
	return s
}

// newSet returns an empty set with room for n partitions.
func newSet(n int) Set { return make(Set, (n+63)/64) }

// Has reports whether p is in s.
func (s Set) Has(p ring.Partition) bool {
	return int(p)/64 < len(s) && s[p/64]&(1<<(p%64)) != 0
}

// Len returns how many partitions are in s.
func (s Set) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Empty reports whether nothing is in s.
func (s Set) Empty() bool {
	for _, w := range s {
		if w != 0 {
			return false
		}
	}
	return true
}

// All returns the partitions of s in ascending order. The set may change
// meanwhile where it has been passed already.
func (s Set) All() iter.Seq[ring.Partition] { return both(s, s) }

// Clone returns a copy of s, nil if s is empty.
func (s Set) Clone() Set {
	if s.Empty() {
		return nil
	}
	return slices.Clone(s)
}

// both returns the partitions that are in a and in b, in ascending order.
func both(a, b Set) iter.Seq[ring.Partition] {
	return func(yield func(ring.Partition) bool) {
		for i := range min(len(a), len(b)) {
			for w := a[i] & b[i]; w != 0; w &= w - 1 {
				if !yield(ring.Partition(i*64 + bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

func (s Set) grown(n int) Set {
	for len(s)*64 < n {
		s = append(s, 0)
	}
	return s
}

func (s Set) add(p ring.Partition) { s[p/64] |= 1 << (p % 64) }

func (s Set) remove(p ring.Partition) { s[p/64] &^= 1 << (p % 64) }

func (s Set) addAll(t Set) {
	for i := range min(len(s), len(t)) {
		s[i] |= t[i]
	}
}
