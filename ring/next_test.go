package ring_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/ring"
)

// What Next says of each partition is where it would be, nothing moves for nothing, and
// nobody gets more than the bound.
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
			stays, joins := slices.Contains(after, m.From), !slices.Contains(before, m.To)
			if m.From != owners[m.Partition] || m.From == m.To || !slices.Contains(after, m.To) {
				t.Fatalf("%+v of %s", m, owners[m.Partition])
			}
			if (m.Kind == ring.Unavoidable) != (!stays || joins) {
				t.Fatalf("%+v, but the owner stays: %v, the next one joins: %v", m, stays, joins)
			}
			owners[m.Partition] = m.To
		}
		load := map[ring.Member]int{}
		for p, owner := range owners {
			if !slices.Contains(after, owner) {
				t.Fatalf("partition %d stays with %s, who left", p, owner)
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
}
