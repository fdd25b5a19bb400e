package ring_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/ring"
)

// group is a table that changes as members come and go.
type group struct {
	names  []string
	owners []string // partition → name
}

// become places the partitions on other members, and returns which have moved.
func (g *group) become(t testing.TB, still bool, names ...string) (moved []ring.Partition) {
	t.Helper()
	next, err := ring.DefaultConfig().Place(names)
	if err != nil {
		t.Fatal(err)
	}
	if still && g.owners != nil {
		present, joining := make([]int, len(next)), make([]bool, len(names))
		for p, owner := range g.owners {
			present[p] = slices.Index(names, owner) // -1 is Unowned
		}
		for i, name := range names {
			joining[i] = !slices.Contains(g.names, name)
		}
		next = ring.KeepStill(next, present, joining)
	}
	owners := make([]string, len(next))
	for p, i := range next {
		owners[p] = names[i]
		if g.owners != nil && g.owners[p] != owners[p] {
			moved = append(moved, ring.Partition(p))
		}
	}
	g.names, g.owners = names, owners
	return moved
}

// TestRollingRestartMovesEachPartitionAwayAndBack: each partition moves when its own
// member restarts, and at no other time.
func TestRollingRestartMovesEachPartitionAwayAndBack(t *testing.T) {
	for _, n := range []int{2, 3, 5, 9} {
		var names []string
		for i := range n {
			names = append(names, string(rune('a'+i))) // among five of these, many change places
		}
		for _, still := range []bool{false, true} {
			var g group
			g.become(t, still, names...)
			first := slices.Clone(g.owners)
			moves := make([]int, ring.Partitions)
			for i := range names {
				for _, now := range [][]string{slices.Delete(slices.Clone(names), i, i+1), names} {
					for _, p := range g.become(t, still, now...) {
						moves[p]++
					}
				}
			}
			more := 0
			for _, m := range moves {
				if m != 2 {
					more++
				}
			}
			t.Logf("%d members, still %t: %d of %d partitions move more often than away and back", n, still, more, ring.Partitions)
			if still && (more > 0 || !slices.Equal(first, g.owners)) {
				t.Errorf("%d members: %d partitions move more often than away and back; the table is as before: %t", n, more, slices.Equal(first, g.owners))
			}
		}
	}
}

// TestKeepStill: after any joins and leaves, no member gets more than the placement itself would give
// to one member, joining members get their share, and a partition with an owner moves only to its
// place, or stays.
func TestKeepStill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "members")
		next := make([]uint16, rapid.IntRange(1, 60).Draw(t, "partitions"))
		present := make([]int, len(next))
		for p := range next {
			next[p] = uint16(rapid.IntRange(0, n-1).Draw(t, "next"))
			present[p] = rapid.IntRange(ring.Unowned, n-1).Draw(t, "present")
		}
		joining := make([]bool, n)
		for i := range joining {
			joining[i] = !slices.Contains(present, i) && rapid.Bool().Draw(t, "joining")
		}
		given := slices.Clone(next)
		table := ring.KeepStill(next, present, joining)
		if !slices.Equal(next, given) {
			t.Fatal("next was written to")
		}
		most, load := 0, make([]int, n)
		for i := range n {
			count := 0
			for p := range next {
				if int(next[p]) == i {
					count++
				}
				if int(table[p]) == i {
					load[i]++
				}
			}
			most = max(most, count)
		}
		for p := range next {
			switch to := table[p]; {
			case load[to] > most:
				t.Fatalf("member %d has %d partitions, more than the %d of any in %v", to, load[to], most, next)
			case to != next[p] && int(to) != present[p] && present[p] != ring.Unowned:
				t.Fatalf("partition %d goes to %d, neither its owner %d nor its place %d", p, to, present[p], next[p])
			case to != next[p] && joining[next[p]] && present[p] != ring.Unowned:
				t.Fatalf("partition %d does not go to joining member %d", p, next[p])
			}
		}
	})
}
