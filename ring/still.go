package ring

import "slices"

// Unowned is the present owner, as [KeepStill] takes it, of a partition whose owner is not
// a member of the next placement.
const Unowned = -1

// KeepStill returns next without unnecessary moves: a partition whose present owner stays
// remains there, unless next gives it to a joining member. No member gets more partitions
// than the largest share in next. To keep this bound, partitions that must move anyway go
// to the member with the fewest, and only then further partitions to their owner in next.
//
// next is a placement on len(joining) members; it is not written to. present names the
// owner of each partition as an index of these members, or [Unowned]. joining says which
// of them were not members before.
//
// Bounded load alone moves partitions between members that stay whenever a member joins or
// leaves, and back when it returns. Each such move makes keys wait without need.
func KeepStill(next []uint16, present []int, joining []bool) []uint16 {
	table, load := slices.Clone(next), make([]int, len(joining))
	most := 0
	for _, to := range next {
		load[to]++
		most = max(most, load[to])
	}
	clear(load)
	for p, to := range next {
		if owner := present[p]; owner != Unowned && !joining[to] {
			table[p] = uint16(owner)
		}
		load[table[p]]++
	}
	move := func(p int, to uint16) {
		load[table[p]]--
		load[to]++
		table[p] = to
	}
	for {
		i := slices.IndexFunc(load, func(n int) bool { return n > most })
		if i < 0 {
			return table
		}
		over := uint16(i)
		// The member has partitions that it has not in next: moved here by the loop, or kept.
		// The former go to a member below the bound, the latter become fewer: the loop ends.
		if p := where(table, over, func(p int) bool { return present[p] == Unowned }); p >= 0 {
			move(p, uint16(slices.Index(load, slices.Min(load))))
		} else {
			p := where(table, over, func(p int) bool { return next[p] != over })
			move(p, next[p])
		}
	}
}

// where returns the first partition of a member that matches, -1 if there is none.
func where(table []uint16, member uint16, match func(p int) bool) int {
	for p, owner := range table {
		if owner == member && match(p) {
			return p
		}
	}
	return -1
}
