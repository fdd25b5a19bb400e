package mailbox

import (
	"testing"

	"pgregory.net/rapid"
)

// The table against a map, with hashes that meet often: around the end of the cells,
// and in full.
func TestTableMatchesAMap(t *testing.T) {
	type numbered struct{ number int }
	type entry struct{ hash, place uint32 }
	rapid.Check(t, func(t *rapid.T) {
		x, want := newTable[numbered](), map[int]entry{}
		hash := rapid.SampledFrom([]uint32{0, 1, 2, cellsMin - 2, cellsMin - 1, 1<<32 - 1, 7 * cellsMin})
		for next := 1; next < 300; next++ {
			number := rapid.IntRange(1, next).Draw(t, "number")
			if at, known := want[number]; known {
				x.drop(at.hash, at.place)
				delete(want, number)
			} else {
				at := entry{hash: hash.Draw(t, "hash")}
				var v *numbered
				v, at.place = x.add(at.hash)
				v.number, want[number] = number, at
			}
			used, filled := map[uint32]bool{}, 0
			for _, at := range want {
				used[at.hash] = true
			}
			for _, c := range x.cells {
				if c.ref != 0 {
					filled++
				}
			}
			if x.len() != len(want) || filled != len(want) {
				t.Fatalf("it has %d values in %d cells, want %d", x.len(), filled, len(want))
			}
			for _, h := range []uint32{0, cellsMin - 1, 7 * cellsMin} {
				if got := x.find(h, func(*numbered) bool { return true }); (got != nil) != used[h] || got != nil && want[got.number].hash != h {
					t.Fatalf("the first under hash %d is %v, and it has any: %v", h, got, used[h])
				}
			}
			for number := 1; number <= next; number++ {
				at, known := want[number]
				got := x.find(at.hash, func(v *numbered) bool { return v.number == number })
				if known != (got != nil) || known && got != x.at(at.place) {
					t.Fatalf("number %d under hash %d: found %v, known: %v", number, at.hash, got, known)
				}
			}
		}
	})
}
