package mailbox

import (
	"testing"

	"pgregory.net/rapid"
)

// Each place is used once at a time, is zero at first, and keeps its content.
func TestSlabGivesEachPlaceOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s slab[int]
		held := map[uint32]int{}
		for n := range rapid.IntRange(1, 2*idleBlocks*blockLen).Draw(t, "places") {
			x, i := s.get()
			if _, twice := held[i]; twice || *x != 0 {
				t.Fatalf("place %d holds %d, in use: %v", i, *x, twice)
			}
			*x, held[i] = n+1, n+1
			if n%3 == 0 {
				s.put(i)
				delete(held, i)
			}
		}
		for i, want := range held {
			if got := *s.at(i); got != want {
				t.Fatalf("place %d holds %d, want %d", i, got, want)
			}
		}
		if s.len() != len(held) {
			t.Fatalf("%d places are in use, want %d", s.len(), len(held))
		}
	})
}

func TestSlabKeepsLittleAfterABurst(t *testing.T) {
	var s slab[int]
	const burst = 3 * idleBlocks * blockLen
	for range 2 {
		for range burst {
			s.get()
		}
		if s.places() != burst {
			t.Errorf("%d places for %d values", s.places(), burst)
		}
		for i := range uint32(burst) {
			s.put(i)
		}
		if s.len() != 0 || s.places() != idleBlocks*blockLen {
			t.Errorf("empty, it has %d places, %d of them in use", s.places(), s.len())
		}
	}
}
