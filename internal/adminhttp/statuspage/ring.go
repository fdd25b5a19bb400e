package statuspage

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/ringfence/router/internal/netx/untrusted"
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

// ringView is the map of all partitions: the number of an area for each.
type ringView struct {
	Partitions int    `json:"partitions"`
	Areas      []area `json:"areas"` // by owner, then by state
	Map        []int  `json:"map"`   // by partition, the index of its area
}

// area is all partitions of one owner in one state.
type area struct {
	Owner string    `json:"owner"`
	State gateState `json:"state"`
	Class string    `json:"class"` // of the state, for style
	Color string    `json:"color"` // of the owner
	Count int       `json:"count"`
}

func newRing(s seen, colors map[string]string) ringView {
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
	classes, counts := make([]class, len(s.ring.Partitions)), make(map[class]int)
	for i, p := range s.ring.Partitions {
		classes[i] = class{p.Owner, stateOfPartition(p, words[p.Owner], s.gates[p.Owner])}
		counts[classes[i]]++
	}
	sorted := slices.SortedFunc(maps.Keys(counts), func(a, b class) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.state, b.state))
	})
	r, index := ringView{Partitions: len(classes), Areas: []area{}, Map: make([]int, len(classes))}, make(map[class]int)
	for i, c := range sorted {
		index[c] = i
		r.Areas = append(r.Areas, area{Owner: untrusted.Text(c.owner), State: c.state, Class: classOf(c.state), Color: colors[c.owner], Count: counts[c]})
	}
	for i, c := range classes {
		r.Map[i] = index[c]
	}
	return r
}

// stateOfPartition returns the state of a partition by the report of its owner alone; without one it is silent.
// gates has the partitions of an owner some of whose gates are not open; it is nil if the owner was not asked or
// did not answer.
func stateOfPartition(p report.Partition, owner report.Member, gates map[uint16]report.Partition) gateState {
	switch {
	case owner.Status == nil:
		return silent
	case owner.Status.Phase != "current" && owner.Status.Mode == report.ModeStrict && owner.Status.LeaseSeconds <= 0:
		return lapsed
	case gates == nil && owner.Status.Gates.Waiting > 0: // it was asked which, and did not tell
		return silent
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
	Owner  string `json:"owner"`
	Color  string `json:"color"`
	Count  int    `json:"count"`
	Member string `json:"-"`   // the previous owner, "" if unknown
	For    string `json:"for"` // the same, in words
	Until  string `json:"until"`
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

// waitsOf returns for the waiting partitions the previous owners and the ends of the
// waits, as their owners report them.
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
	all := []wait{}
	for c, n := range counts {
		w := wait{Owner: c.owner, Color: colors[c.owner], Count: n, Member: c.member, For: c.member}
		w.Until = fmt.Sprintf("it reports that it runs nothing there, or has been silent for another %.1f s", longest[c])
		if longest[c] == 0 {
			w.Until = "it reports that it runs nothing there; it has been silent long enough, so the wait may end at any moment"
		}
		switch {
		case c.itself:
			w.For, w.Until = "its own application", "it has finished its deliveries of an earlier tenure"
		case c.member == "":
			w.For = "leases of the group's earlier log"
		case c.member == c.owner:
			w.For += ", in its previous incarnation"
		}
		if c.open {
			w.For += ": only the keys that it still works on"
		}
		w.Owner, w.For = untrusted.Text(w.Owner), cut(w.For)
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
