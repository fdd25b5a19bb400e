package statuspage

import (
	"fmt"
	"slices"

	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/report"
)

// nearBound is the part of a bound from which on the page warns that it is near.
const nearBound = 0.8

// laneTable has the members that have calls or reservations, those near a bound first.
type laneTable struct {
	Rows []laneView `json:"rows"`
	Note string     `json:"note"` // the sums of the group, and what is not shown
}

// laneView is a row of the table of calls and reservations: one member, as the owner of keys and as the node where callers ask.
type laneView struct {
	Name     string `json:"name"`
	Color    string `json:"color"`
	Waiting  string `json:"waiting"`
	Running  string `json:"running"`
	Reserved string `json:"reserved"`
	Refused  string `json:"refused"`
	Bound    string `json:"bound"` // the nearest one
	Class    string `json:"class"` // of the bound
}

func laneOf(members []report.Member, colors map[string]string) laneTable {
	t, sum, untold := laneTable{Rows: []laneView{}}, report.Visits{}, 0
	for _, m := range members {
		switch {
		case m.Status == nil:
			continue
		case m.Status.Visits == nil:
			untold++
			continue
		}
		v := m.Status.Visits
		sum.Waiting, sum.Running, sum.Reserved = sum.Waiting+v.Waiting, sum.Running+v.Running, sum.Reserved+v.Reserved
		sum.Crowded, sum.Refused = sum.Crowded+v.Crowded, sum.Refused+v.Refused
		nearest := v.Nearest()
		if v.Crowded+v.Refused == 0 && nearest.Used == 0 {
			continue
		}
		row := laneView{
			Name: untrusted.Text(m.Name), Color: colors[m.Name], Waiting: number(v.Waiting), Running: number(v.Running), Reserved: number(v.Reserved), Refused: number(int(v.Crowded + v.Refused)),
			Bound: fmt.Sprintf("%s of %s (%s)", number(nearest.Used), number(nearest.Max), untrusted.Text(nearest.Setting)),
		}
		switch {
		case nearest.Part() >= 1:
			row.Class = classBad
		case nearest.Part() >= nearBound:
			row.Class = classBusy
		}
		t.Rows = append(t.Rows, row)
	}
	slices.SortStableFunc(t.Rows, func(a, b laneView) int { return severity(b.Class) - severity(a.Class) })
	t.Note = fmt.Sprintf("%s, %s, %s; %s refused because a bound was reached, since each member started.",
		count(sum.Waiting, "call or reservation waits", "calls or reservations wait"), count(sum.Running, "call runs", "calls run"),
		count(sum.Reserved, "key is reserved", "keys are reserved"), number(int(sum.Crowded+sum.Refused)))
	if n := len(t.Rows); n > membersMax {
		t.Rows = t.Rows[:membersMax]
		t.Note += fmt.Sprintf(" %d of %d members are shown, those near a bound first.", membersMax, n)
	}
	if untold > 0 {
		t.Note += fmt.Sprintf(" %s of an older version not included.", report.Plural(untold, "member"))
	}
	return t
}

// count is a number with its words.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
}

// laneProblems notes the members whose calls or reservations are near a bound.
func laneProblems(rows []laneView, note func(class, title, text string, key *keyRef)) {
	for i, row := range rows {
		switch {
		case row.Class == "" || i > sameMax:
			return
		case i == sameMax:
			note(row.Class, "More bounds of calls are nearly reached", "See the table of calls and reservations below.", nil)
		default:
			text := fmt.Sprintf("%s: %s. Beyond this limit, calls and reservations are refused at once (NOT_RUN, overloaded); %s were refused so far.", row.Name, row.Bound, row.Refused)
			note(row.Class, "Bound of calls near", text, nil)
		}
	}
}
