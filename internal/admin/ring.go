package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/report"
)

// gateState is what becomes of the events of a partition right now.
type gateState string

// The states, as the legend has them.
const (
	open    gateState = "open"
	waiting gateState = "waiting for an earlier owner"
	closed  gateState = "not taken up yet"
	lapsed  gateState = "without a lease"
	silent  gateState = "with a silent member"
)

// ringView is the map of all partitions: one square for each, in rows.
type ringView struct {
	Partitions int
	Columns    int
	Rows       int
	Areas      []area // by owner, then by state
}

// area is all squares of one owner in one state.
type area struct {
	Owner string
	State gateState
	Class string // of the state, for style
	Color string // of the owner
	Count int
	Path  string // of SVG, a unit to each square
}

const columns = 117 // 35 rows, all full but the last

func newRing(s seen, colors map[string]string) ringView {
	r := ringView{Partitions: len(s.ring.Partitions), Columns: columns}
	r.Rows = (r.Partitions + columns - 1) / columns
	words := make(map[string]report.Member)
	for _, m := range s.members.Members {
		if m.Listed { // of several incarnations the one that owns something
			words[m.Name] = m
		}
	}
	type class struct {
		owner string
		state gateState
	}
	paths, counts := make(map[class]*strings.Builder), make(map[class]int)
	for i, p := range s.ring.Partitions {
		c := class{p.Owner, stateOfPartition(p, words[p.Owner], s.gates[p.Owner])}
		if paths[c] == nil {
			paths[c] = new(strings.Builder)
		}
		fmt.Fprintf(paths[c], "M%d %dh.86v.86h-.86z", i%columns, i/columns)
		counts[c]++
	}
	for c, path := range paths {
		r.Areas = append(r.Areas, area{Owner: c.owner, State: c.state, Class: classOf(c.state), Color: colors[c.owner], Count: counts[c], Path: path.String()})
	}
	slices.SortFunc(r.Areas, func(a, b area) int { return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.State, b.State)) })
	return r
}

// stateOfPartition goes by the word of the owner, and by nothing else if there is none.
// gates has the partitions of an owner some of whose gates are not open.
func stateOfPartition(p report.Partition, owner report.Member, gates map[uint16]report.Partition) gateState {
	switch {
	case owner.Status == nil:
		return silent
	case owner.Status.Phase != "fresh" && owner.Status.Mode == report.ModeStrict && owner.Status.LeaseSeconds <= 0:
		return lapsed
	case gates == nil:
		if owner.Status.Gates.Open == 0 {
			return closed
		}
		return open
	}
	switch gates[p.Number].Gate {
	case "open":
		return open
	case "waiting":
		return waiting
	}
	return closed // its owner has not read that far
}

func classOf(s gateState) string {
	switch s {
	case open:
		return "open"
	case waiting, closed:
		return "waiting"
	case lapsed, silent:
	}
	return "silent"
}

func (r ringView) count(s gateState) (n int) {
	for _, a := range r.Areas {
		if a.State == s {
			n += a.Count
		}
	}
	return n
}
