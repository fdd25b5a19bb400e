package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// SchedulesMax bounds the schedules of a member in its status; those that it owns come first.
const SchedulesMax = 512

// Schedule is a schedule as one member knows it. Times are RFC 3339 in UTC; "" for none.
type Schedule struct {
	Name     string            `json:"name"`
	Times    string            `json:"times"`  // "0 6 * * * Europe/Berlin", "every 10s" or "at 2026-11-27T06:00:00Z"
	Missed   string            `json:"missed"` // latest, all or skip
	Owned    bool              `json:"owned"`  // this member publishes and runs it; the other fields but Workers and Conflict are the owner's
	Workers  int               `json:"workers"`
	Conflict bool              `json:"conflict,omitempty"` // workers of this member declare it differently
	Next     string            `json:"next,omitempty"`     // when it is due next, with jitter
	Armed    bool              `json:"armed,omitempty"`    // the broker has that firing
	LastRun  string            `json:"last_run,omitempty"` // the newest time that ran to its end, since this member owns it
	Running  string            `json:"running,omitempty"`  // the time that runs now
	Waiting  int               `json:"waiting,omitempty"`  // firings that have come and wait
	Covered  uint64            `json:"covered,omitempty"`  // earlier times for which another one ran
	Dropped  map[string]uint64 `json:"dropped,omitempty"`  // firings that did not run, by reason
	Error    string            `json:"error,omitempty"`    // why the newest publication failed
}

// Schedules is a group's schedules, merged from the statuses of its members.
type Schedules struct {
	View

	Schedules []GroupSchedule `json:"schedules"`
	Silent    []string        `json:"silent,omitempty"` // members that did not answer, so that schedules may be missing here
	Cut       []string        `json:"cut,omitempty"`    // members whose schedules the asked one does not pass on, see [Members.Cut]
	Unshown   int             `json:"unshown,omitempty"`
}

// GroupSchedule is a schedule of a group.
type GroupSchedule struct {
	Schedule

	Owner    string   `json:"owner,omitempty"`    // "": no member that declares it owns its key
	Without  []string `json:"without,omitempty"`  // members with workers that do not declare it
	Disagree []string `json:"disagree,omitempty"` // members that declare other times or another policy than the shown ones
	Untold   []string `json:"untold,omitempty"`   // members that do not answer, or do not list all of their schedules: they may declare and own it
}

// SchedulesOf merges what the members of a group know of their schedules.
func SchedulesOf(m Members) Schedules {
	all := Schedules{View: m.View, Schedules: []GroupSchedule{}}
	_, all.Cut = m.Cut()
	byName := map[string][]int{} // name → indexes of members
	for i, one := range m.Members {
		switch {
		case one.Unnamed:
		case one.Status == nil:
			all.Silent = append(all.Silent, one.Name)
		default:
			for _, s := range one.Status.Schedules {
				byName[s.Name] = append(byName[s.Name], i)
			}
			all.Unshown += one.Status.SchedulesUnshown
		}
	}
	for name, of := range byName {
		all.Schedules = append(all.Schedules, merged(m.Members, name, of))
	}
	slices.SortFunc(all.Schedules, func(a, b GroupSchedule) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func merged(members []Member, name string, of []int) (g GroupSchedule) {
	said := func(i int) *Schedule {
		list := members[i].Status.Schedules
		return &list[slices.IndexFunc(list, func(s Schedule) bool { return s.Name == name })]
	}
	best := of[0]
	for _, i := range of {
		if s := said(i); s.Owned && !said(best).Owned {
			best = i
		}
	}
	g.Schedule = *said(best)
	if g.Owned {
		g.Owner = members[best].Name
	}
	for i, one := range members {
		switch {
		case i == best || one.Status == nil && !one.Listed:
		case one.Status == nil:
			g.Untold = append(g.Untold, one.Name)
		case slices.Contains(of, i):
			if s := said(i); s.Workers > 0 && (s.Times != g.Times || s.Missed != g.Missed) {
				g.Disagree = append(g.Disagree, one.Name)
			}
		case one.Status.SchedulesUnshown > 0:
			g.Untold = append(g.Untold, one.Name)
		case one.Status.Workers > 0:
			g.Without = append(g.Without, one.Name)
		}
	}
	return g
}

// Problems returns what is wrong with a schedule, in words, the worst first.
func (g *GroupSchedule) Problems() (all []string) {
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	switch untold := len(g.Untold); {
	case g.Owner == "" && untold > 0:
		say("no member that tells of it owns its key: it may run at %s", among(g.Untold))
	case g.Owner == "":
		say("no member that declares it owns its key: it does not run")
	}
	if g.Error != "" {
		say("its next firing cannot be published: %s", g.Error)
	}
	if len(g.Disagree) > 0 {
		say("declared differently by %s: the times of its owner's newest worker count", strings.Join(g.Disagree, ", "))
	}
	if g.Conflict {
		say("workers of one member declare it differently: the newest one counts")
	}
	if len(g.Without) > 0 && g.Workers > 0 {
		say("not declared by the workers of %s, which run nothing if they come to own it", strings.Join(g.Without, ", "))
	}
	return all
}

// among names the first ones of some members.
func among(names []string) string {
	const most = 3
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s or %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// DroppedWords tells how many firings did not run, and why: "-" for none.
func (g *GroupSchedule) DroppedWords() string {
	if len(g.Dropped) == 0 {
		return "-"
	}
	var words []string
	for reason, n := range g.Dropped {
		words = append(words, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// Ahead tells in how long a time of a schedule is, for people: "in 3m12s"; "-" for none.
func Ahead(at string, now time.Time) string {
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return "-"
	}
	d := t.Sub(now).Round(time.Second)
	if d < 0 {
		return fmt.Sprintf("%v ago", -d)
	}
	return fmt.Sprintf("in %v", d)
}
