package ring

import (
	"fmt"
	"slices"
)

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

// Next returns the moves that a proposer of epochs would make if the members were names
// from now on, in ascending order of partition. present names the owner of each partition
// now; members that stay keep their names. It fails as [New] does, and if present has more than [Partitions] owners.
//
// A move is unavoidable if its owner leaves or its new owner joins, and collateral if
// both stay: to keep the load of all within [Config.Load].
func (c Config) Next(present []Member, names []Member) ([]Move, error) {
	r, err := New(names, c)
	if err != nil {
		return nil, err
	}
	if len(present) > Partitions {
		return nil, fmt.Errorf("ring: owners of %d partitions, want at most %d", len(present), Partitions)
	}
	now := slices.Compact(slices.Sorted(slices.Values(present)))
	joining := missing(r.members, now)
	owners := make([]int, len(present)) // index in r.members
	for p, owner := range present {
		owners[p] = Unowned
		if i, remains := slices.BinarySearch(r.members, owner); remains {
			owners[p] = i
		}
	}
	var moves []Move
	for p, to := range KeepStill(r.Table()[:len(present)], owners, joining) {
		if r.members[to] == present[p] {
			continue
		}
		kind := Collateral
		if owners[p] == Unowned || joining[to] {
			kind = Unavoidable
		}
		moves = append(moves, Move{Partition(p), present[p], r.members[to], kind})
	}
	return moves, nil
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
