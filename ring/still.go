package ring

import "slices"

// Unowned stands in the present owners that [KeepStill] is given for a partition
// whose owner is not among the members of the next placement.
const Unowned = -1

// KeepStill returns next without the moves that need not be: a partition whose
// present owner stays remains there, unless next gives it to a newcomer. Nobody gets
// more partitions than the member with the most has in next; for that, partitions
// that have to move in any case go to who has the least, and only then others to
// their place in next.
//
// next is a placement on as many members as newcomer tells of; it is not written to.
// present names the owner of each partition as an index of these members, or
// [Unowned]; a newcomer was not a member before.
//
// Bounded load alone lets partitions change places between members that stay whenever
// another one comes or goes, and back again when it returns. Each such move makes
// keys wait for nothing.
func KeepStill(next []uint16, present []int, newcomer []bool) []uint16 {
	table, load := slices.Clone(next), make([]int, len(newcomer))
	most := 0
	for _, to := range next {
		load[to]++
		most = max(most, load[to])
	}
	clear(load)
	for p, to := range next {
		if owner := present[p]; owner != Unowned && !newcomer[to] {
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
		// It has what it has not in next: partitions that were put here or that stay. The
		// former go to somebody below the bound, the latter become fewer: it ends.
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
