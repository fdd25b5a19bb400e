package ring

import "slices"

// MoveKind tells necessary moves from those that only balance the load.
//
//exhaustive:enforce
type MoveKind uint8

// The kinds of move.
const (
	Unavoidable MoveKind = 1 // its owner left, or its new owner joined
	Collateral  MoveKind = 2 // between two members that stay, to bound the load
)

// String returns the name of the kind, as metrics and logs have it.
func (k MoveKind) String() string {
	switch k {
	case Unavoidable:
		return "unavoidable"
	case Collateral:
		return "collateral"
	}
	return "unknown"
}

// Move is one partition that has another owner in the next Ring.
type Move struct {
	Partition Partition
	From, To  Member
	Kind      MoveKind
}

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

// missing returns for each of members whether it is absent from others, which are sorted.
func missing(members, others []Member) []bool {
	absent := make([]bool, len(members))
	for i, m := range members {
		_, found := slices.BinarySearch(others, m)
		absent[i] = !found
	}
	return absent
}
