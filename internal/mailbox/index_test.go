package mailbox

import (
	"testing"

	"pgregory.net/rapid"
)

// The index against a map, with hashes that meet often: around the end of the table,
// and in full.
func TestIndexMatchesAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, want := newIndex(), map[uint32]uint32{} // reference → hash
		hash := rapid.SampledFrom([]uint32{0, 1, 2, indexMin - 2, indexMin - 1, 1<<32 - 1, 7 * indexMin})
		for next := uint32(1); next < 300; next++ {
			ref := rapid.Uint32Range(1, next).Draw(t, "ref")
			under, known := want[ref]
			if known {
				x.remove(under, ref)
				delete(want, ref)
			} else {
				want[ref] = hash.Draw(t, "hash")
				x.add(want[ref], ref)
			}
			if x.n != len(want) {
				t.Fatalf("it counts %d references, want %d", x.n, len(want))
			}
			used := map[uint32]bool{}
			for _, h := range want {
				used[h] = true
			}
			for _, h := range []uint32{0, indexMin - 1, 7 * indexMin} {
				if got := x.guess(h); (got != 0) != used[h] || got != 0 && want[got] != h {
					t.Fatalf("guessed %d under hash %d, which has any: %v", got, h, used[h])
				}
			}
			for ref := uint32(1); ref <= next; ref++ {
				h, known := want[ref]
				if got := x.find(h, func(r uint32) bool { return r == ref }); known != (got == ref) || !known && got != 0 {
					t.Fatalf("reference %d under hash %d: found %d, known: %v", ref, h, got, known)
				}
			}
		}
	})
}
