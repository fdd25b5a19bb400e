package source

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// A slot is given to one at a time, each in its turn, and there are never many more than
// twice as many as were open.
func TestSlotsAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s slots
		open := map[int32]bool{}
		var order []int32 // of the open ones
		most, last := 0, int32(-1)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(t, "n") {
					before := len(s.all)
					at := s.take(len(open))
					if open[at] {
						t.Fatalf("slot %d is given twice", at)
					}
					for skipped := (int(last) + 1) % max(1, before); before > 0 && len(s.all) == before && int32(skipped) != at; skipped = (skipped + 1) % before {
						if !open[int32(skipped)] {
							t.Fatalf("slot %d comes after %d, though %d is free", at, last, skipped)
						}
					}
					s.all[at].message = &Message{}
					open[at], order, last = true, append(order, at), at
					most = max(most, len(open))
				}
			},
			"vacate": func(t *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(t, "n") {
					if len(order) == 0 {
						return
					}
					i := rapid.IntRange(0, min(len(order)-1, 10)).Draw(t, "which")
					s.vacate(order[i])
					delete(open, order[i])
					order[i] = order[0]
					order = order[1:]
				}
			},
			"": func(t *rapid.T) {
				if len(s.all) > 2*most+64 {
					t.Fatalf("%d slots, though at most %d were open", len(s.all), most)
				}
				for at := range s.all {
					if (s.all[at].message != nil) != open[int32(at)] {
						t.Fatalf("slot %d: open %v", at, open[int32(at)])
					}
				}
			},
		})
	})
}

// However long a ledger is in use, and in whatever order its events end, those that come
// together lie side by side.
func TestWhatComesTogetherLiesSideBySide(t *testing.T) {
	const held, batch, window = 2000, 100, 500
	var s slots
	var open []int32
	random := rand.New(rand.NewPCG(1, 2))
	neighbours := 0
	for i := range 100_000 {
		at := s.take(len(open))
		s.all[at].message = &Message{}
		if len(open) > 0 && at == open[len(open)-1]+1 && i >= 50_000 {
			neighbours++
		}
		open = append(open, at)
		if len(open) == held+batch {
			for j := range batch {
				k := j + random.IntN(window)
				open[j], open[k] = open[k], open[j]
				s.vacate(open[j])
			}
			open = open[batch:]
		}
	}
	if neighbours < 45_000 {
		t.Errorf("%d of 50000 events lie behind the one before them, want most", neighbours)
	}
}
