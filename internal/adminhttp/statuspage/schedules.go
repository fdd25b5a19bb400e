package statuspage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/report"
)

// schedulesMax bounds the shown schedules, those with problems first.
const schedulesMax = 50

// schedulesTable has the schedules of the group.
type schedulesTable struct {
	Rows []scheduleView `json:"rows"`
	Note string         `json:"note"`
}

// scheduleView is a row of the table of schedules. Times are RFC 3339 in UTC.
type scheduleView struct {
	Name    string `json:"name"`
	Times   string `json:"times"`
	Owner   string `json:"owner"`
	Color   string `json:"color"`
	Last    string `json:"last"`
	Next    string `json:"next"`
	Covered string `json:"covered"`
	Dropped string `json:"dropped"`
	State   string `json:"state"`
	Class   string `json:"class"`
}

func schedulesOf(m report.Members, colors map[string]string) schedulesTable {
	all := report.SchedulesOf(m)
	t := schedulesTable{Rows: make([]scheduleView, 0, len(all.Schedules))}
	for i := range all.Schedules {
		t.Rows = append(t.Rows, scheduleViewOf(&all.Schedules[i], colors))
	}
	slices.SortStableFunc(t.Rows, func(a, b scheduleView) int { return severity(b.Class) - severity(a.Class) })
	switch n := len(t.Rows); {
	case n == 0:
		t.Note = "No application of the group declares a schedule."
	case n > schedulesMax:
		t.Rows = t.Rows[:schedulesMax]
		t.Note = fmt.Sprintf("%d of %d schedules, those with problems first: router schedules shows all. Times are UTC.", schedulesMax, n)
	default:
		t.Note = "Times are UTC."
	}
	if len(all.Silent) > 0 {
		t.Note += fmt.Sprintf(" %s did not answer and are not included.", report.Plural(len(all.Silent), "member"))
	}
	if all.Unshown > 0 {
		t.Note += fmt.Sprintf(" Without %s: a member lists %d at most.", report.Plural(all.Unshown, "schedule"), report.SchedulesMax)
	}
	return t
}

func scheduleViewOf(s *report.GroupSchedule, colors map[string]string) scheduleView {
	v := scheduleView{
		Name: cut(untrusted.Text(s.Name)), Times: cut(untrusted.Text(s.Times)), Owner: untrusted.Text(s.Owner), Color: colors[s.Owner],
		Last: cmp.Or(s.LastRun, "–"), Next: cmp.Or(s.Next, "–"), Covered: number(int(s.Covered)), Dropped: cut(untrusted.Text(s.DroppedWords())), State: "waits",
	}
	problems := s.Problems()
	switch {
	case s.Owner == "" && len(s.Untold) == 0 || s.Error != "":
		v.Class, v.State = classBad, cut(untrusted.Text(strings.Join(problems, "; ")))
	case len(problems) > 0:
		v.Class, v.State = classBusy, cut(untrusted.Text(strings.Join(problems, "; ")))
	case s.Running != "":
		v.State = "runs its firing of " + untrusted.Text(s.Running)
	case s.Waiting > 0:
		v.State = report.Plural(s.Waiting, "firing") + " waits"
	case s.Next != "" && !s.Armed:
		v.State = "its next firing is being published"
	case s.Next == "":
		v.State = "fires no more"
	}
	return v
}

// scheduleProblems notes the schedules that do not run as they should.
func scheduleProblems(rows []scheduleView, note func(class, title, text string, key *keyRef)) {
	for i, row := range rows {
		switch {
		case row.Class == "" || i > sameMax:
			return
		case i == sameMax:
			note(row.Class, "More schedules have problems", "See the table of schedules below.", nil)
		default:
			note(row.Class, "Schedule", row.Name+": "+row.State, nil)
		}
	}
}
