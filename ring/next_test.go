package ring_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/ring"
)

// Next returns the owner that each partition would have, moves no partition without need, and
// keeps every member within the bound.
func TestNext(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawMembers(t, 2)
		before := all[:rapid.IntRange(1, len(all)).Draw(t, "before")]
		after := all[rapid.IntRange(0, len(all)-1).Draw(t, "after"):]
		r, err := ring.New(before, ring.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		owners := make([]ring.Member, ring.Partitions)
		for p := range owners {
			owners[p] = r.Owner(ring.Partition(p))
		}
		moves, err := ring.DefaultConfig().Next(owners, after)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range moves {
			remains, joins := slices.Contains(after, m.From), !slices.Contains(before, m.To)
			if m.From != owners[m.Partition] || m.From == m.To || !slices.Contains(after, m.To) {
				t.Fatalf("%+v of %s", m, owners[m.Partition])
			}
			if (m.Kind == ring.Unavoidable) != (!remains || joins) {
				t.Fatalf("%+v, but the owner stays: %v, the next one joins: %v", m, remains, joins)
			}
			owners[m.Partition] = m.To
		}
		load := map[ring.Member]int{}
		for p, owner := range owners {
			if !slices.Contains(after, owner) {
				t.Fatalf("partition %d stays with %s, which left", p, owner)
			}
			if load[owner]++; load[owner] > ring.DefaultConfig().PartitionsMax(len(after)) {
				t.Fatalf("%s has %d partitions", owner, load[owner])
			}
		}
		if again, err := ring.DefaultConfig().Next(owners, after); err != nil || len(again) != 0 {
			t.Fatalf("the same members again move %d (%v)", len(again), err)
		}
	})
}

func TestNextRejects(t *testing.T) {
	if _, err := ring.DefaultConfig().Next(nil, nil); err == nil {
		t.Error("no members, and no error")
	}
	if _, err := (ring.Config{}).Next(nil, members(2)); err == nil {
		t.Error("no configuration, and no error")
	}
	for _, n := range []int{ring.Partitions + 1, 2 * ring.Partitions} {
		if _, err := ring.DefaultConfig().Next(make([]ring.Member, n), members(2)); err == nil {
			t.Errorf("owners of %d partitions, and no error", n)
		}
	}
}

// TestDefaultIsEvenAndKeepsStill: an even ring costs few moves between members that stay, also where
// members have fewer points.
func TestDefaultIsEvenAndKeepsStill(t *testing.T) {
	cfg := ring.DefaultConfig()
	fullest, most := 0.0, 0
	for n := 2; n < ring.MembersMax; n += 1 + n/32*8 {
		limit := max(ring.Partitions/40, n*9/8) // where the rounded bound falls by one, most members give one up
		owners := ownersAmong(t, members(n), cfg)
		load := make(map[ring.Member]int)
		for _, owner := range owners {
			load[owner]++
			fullest = max(fullest, float64(load[owner]-1)*float64(n)/ring.Partitions) // the bound is rounded up
		}
		for _, after := range [][]ring.Member{members(n + 1), members(n - 1)} {
			moves, err := cfg.Next(owners, after)
			if err != nil {
				t.Fatal(err)
			}
			collateral := 0
			for _, m := range moves {
				if m.Kind == ring.Collateral {
					collateral++
				}
			}
			most = max(most, collateral)
			if collateral > limit {
				t.Errorf("%d partitions of %d members move between members that stay, want at most %d", collateral, n, limit)
			}
		}
	}
	t.Logf("the fullest member has %.3f times the average, and one that comes or goes moves at most %d partitions of others", fullest, most)
	if fullest > 1.06 {
		t.Errorf("a member has %.3f times the average, want at most 1.06", fullest)
	}
}

// ownersAmong names the owner of each partition.
func ownersAmong(t *testing.T, ms []ring.Member, cfg ring.Config) []ring.Member {
	t.Helper()
	r := build(t, ms, cfg)
	owners := make([]ring.Member, ring.Partitions)
	for p := range owners {
		owners[p] = r.Owner(ring.Partition(p))
	}
	return owners
}
