package ring

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
