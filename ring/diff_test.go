package ring

import "math"

// Diff returns the partitions that change their owner from a to b, in ascending order.
func Diff(a, b *Ring) []Move {
	left, joined := missing(a.members, b.members), missing(b.members, a.members)
	var moves []Move
	for p := range Partition(Partitions) {
		from, to := a.table[p], b.table[p]
		if a.members[from] == b.members[to] {
			continue
		}
		kind := Collateral
		if left[from] || joined[to] {
			kind = Unavoidable
		}
		moves = append(moves, Move{p, a.members[from], b.members[to], kind})
	}
	return moves
}

// PartitionsMax returns the bound on how many partitions one of n members gets.
func (c Config) PartitionsMax(n int) int {
	return int(math.Ceil(float64(Partitions) / float64(n) * c.Load))
}

// Partitions returns the partitions that m should own, in ascending order.
func (r *Ring) Partitions(m Member) (owned []Partition) {
	for p := range Partition(Partitions) {
		if r.Owner(p) == m {
			owned = append(owned, p)
		}
	}
	return owned
}
