package statuspage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/report"
)

// gateState is the present treatment of a partition's events.
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
	case owner.Status.Phase != "current" && owner.Status.Mode == report.ModeStrict && owner.Status.LeaseSeconds <= 0:
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

// wait is a reason why some partitions of one owner wait.
type wait struct {
	Owner, Color string
	Count        int
	Member       string // the previous owner, "" if unknown
	For          string // the same, in words
	Until        string
}

// waitFor counts the partitions that wait for a member.
func waitFor(waits []wait, member string) (n int) {
	for _, w := range waits {
		if w.Member == member {
			n += w.Count
		}
	}
	return n
}

// waitsOf tells for the partitions that wait whose they were, and until when that counts,
// by the word of their owners.
func waitsOf(s seen, colors map[string]string) []wait {
	type class struct {
		owner, member string
		itself        bool // its application still works under an earlier tenure
		open          bool // but for some keys
	}
	longest, counts := make(map[class]float64), make(map[class]int)
	for _, p := range s.ring.Partitions {
		counted, word := make(map[class]bool), s.gates[p.Owner][p.Number]
		for _, b := range word.Blockers {
			c := class{p.Owner, b.Member, b.OwnApplication(), word.Gate == "open"}
			longest[c] = max(longest[c], b.Seconds)
			if !counted[c] {
				counted[c] = true
				counts[c]++
			}
		}
	}
	var all []wait
	for c, n := range counts {
		w := wait{Owner: c.owner, Color: colors[c.owner], Count: n, Member: c.member, For: c.member}
		w.Until = fmt.Sprintf("it says that nothing of it runs there any more, or has been silent for %.1f s more", longest[c])
		if longest[c] == 0 {
			w.Until = "it says that nothing of it runs there any more, or any moment: it has been silent for long enough"
		}
		switch {
		case c.itself:
			w.For, w.Until = "its own application", "that has finished its deliveries of an earlier tenure"
		case c.member == "":
			w.For = "leases of the group's earlier log"
		case c.member == c.owner:
			w.For += ", as it was before it began anew"
		}
		if c.open {
			w.For += ": only keys on which it still works"
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b wait) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(b.Count, a.Count), cmp.Compare(a.For, b.For))
	})
	return all
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
