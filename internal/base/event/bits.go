package event

import (
	"iter"
	"math/bits"
)

// wordBits is the number of indexes in one word of [Bits].
const wordBits = 64

// Bits is a set of indexes: mostly of the events of one [Entry]. Its length bounds the indexes that it
// can hold; methods that take an index or another set ignore what lies beyond it.
type Bits []uint64

// NewBits returns an empty set for the indexes below n.
func NewBits(n int) Bits { return make(Bits, (n+wordBits-1)/wordBits) }

// AllBits returns the set of the indexes below n.
func AllBits(n int) Bits {
	b := NewBits(n)
	for i := range b {
		b[i] = ^uint64(0)
	}
	if rest := n % wordBits; rest > 0 {
		b[len(b)-1] = 1<<rest - 1
	}
	return b
}

// Has reports whether i is in b.
func (b Bits) Has(i int) bool { return i/wordBits < len(b) && b[i/wordBits]>>(i%wordBits)&1 != 0 }

// Add adds i, which must be below the number that b was made for.
func (b Bits) Add(i int) { b[i/wordBits] |= 1 << (i % wordBits) }

// Remove removes i.
func (b Bits) Remove(i int) {
	if i/wordBits < len(b) {
		b[i/wordBits] &^= 1 << (i % wordBits)
	}
}

// Len returns the number of indexes in b.
func (b Bits) Len() (n int) {
	for _, word := range b {
		n += bits.OnesCount64(word)
	}
	return n
}

// Below returns the number of indexes in b that are less than i.
func (b Bits) Below(i int) (n int) {
	for word := range min(i/wordBits, len(b)) {
		n += bits.OnesCount64(b[word])
	}
	if i/wordBits < len(b) {
		n += bits.OnesCount64(b[i/wordBits] & (1<<(i%wordBits) - 1))
	}
	return n
}

// First returns the least index in b, -1 if b is empty.
func (b Bits) First() int {
	for i, word := range b {
		if word != 0 {
			return i*wordBits + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// RemoveAll removes the indexes in less.
func (b Bits) RemoveAll(less Bits) {
	for i := range min(len(b), len(less)) {
		b[i] &^= less[i]
	}
}

// Take removes from b the indexes that are in which, adds them to taken, and returns their number. taken must be as long as b.
func (b Bits) Take(which, taken Bits) (n int) {
	for i := range min(len(b), len(which)) {
		hit := b[i] & which[i]
		b[i] &^= hit
		taken[i] |= hit
		n += bits.OnesCount64(hit)
	}
	return n
}

// All yields the indexes in b, ascending. b must not change meanwhile, except by the removal of an index that was yielded.
func (b Bits) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, word := range b {
			for ; word != 0; word &= word - 1 {
				if !yield(i*wordBits + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}
