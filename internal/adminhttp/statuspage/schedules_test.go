package statuspage

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/report"
)

// The table shows the schedules, those with problems first, and problems say which do not run.
func TestSchedules(t *testing.T) {
	declaring := func(name string, schedules ...report.Schedule) report.Member {
		return but(healthy(name, 1), func(s *report.Status) { s.Schedules, s.Workers = schedules, 1 })
	}
	g := crowd(1, 100)
	const six = "0 6 * * * Europe/Berlin"
	g.members.Members = []report.Member{
		declaring("a",
			report.Schedule{Name: "armed", Times: six, Owned: true, Workers: 1, Next: "2026-11-27T05:00:00Z", Armed: true, LastRun: "2026-11-26T05:00:00Z", Covered: 2, Dropped: map[string]uint64{"superseded": 2}},
			report.Schedule{Name: "broken", Times: six, Owned: true, Workers: 1, Next: "2026-11-27T05:00:00Z", Error: "forbidden"},
			report.Schedule{Name: "done", Times: "at 2026-11-26T05:00:00Z", Owned: true, Workers: 1},
			report.Schedule{Name: "<b>", Times: six, Owned: true, Workers: 1, Running: "2026-11-26T05:00:00Z"},
			report.Schedule{Name: "orphan", Times: six, Workers: 1}),
		declaring("b",
			report.Schedule{Name: "armed", Times: six, Workers: 1}, report.Schedule{Name: "broken", Times: six, Workers: 1}, report.Schedule{Name: "done", Times: "at 2026-11-26T05:00:00Z", Workers: 1},
			report.Schedule{Name: "<b>", Times: six, Workers: 1}),
	}
	v := newSnapshot(look(t.Context(), g, true, nil))
	var got []string
	for _, r := range v.Schedules.Rows {
		got = append(got, strings.Join([]string{r.Name, r.Owner, r.Last, r.Next, r.Covered, r.Dropped, r.State, r.Class}, ", "))
	}
	want := []string{
		"broken, a, –, 2026-11-27T05:00:00Z, 0, -, its next firing cannot be published: forbidden, bad",
		"orphan, , –, –, 0, -, no member that declares it owns its key: it does not run; not declared by the workers of b, which ru…, bad",
		"<b>, a, –, –, 0, -, runs its firing of 2026-11-26T05:00:00Z, ",
		"armed, a, 2026-11-26T05:00:00Z, 2026-11-27T05:00:00Z, 2, 2 superseded, waits, ",
		"done, a, –, –, 0, -, fires no more, ",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("rows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	problems := 0
	for _, p := range v.Problems.Rows {
		if p.Title == "Schedule" {
			problems++
		}
	}
	if problems != 2 {
		t.Errorf("%d problems, want 2", problems)
	}
	var many []report.Schedule
	for i := range schedulesMax + 1 {
		many = append(many, report.Schedule{Name: fmt.Sprintf("s%03d", i), Times: six, Owned: true, Workers: 1})
	}
	g.members.Members = []report.Member{declaring("a", many...)}
	if v := newSnapshot(look(t.Context(), g, true, nil)); len(v.Schedules.Rows) != schedulesMax || !strings.Contains(v.Schedules.Note, "50 of 51 schedules") {
		t.Errorf("%d rows, %q", len(v.Schedules.Rows), v.Schedules.Note)
	}
	g.members.Members[0].Status.SchedulesUnshown = 7
	if v := newSnapshot(look(t.Context(), g, true, nil)); !strings.Contains(v.Schedules.Note, "7 schedules") {
		t.Errorf("the note does not tell of those that the member does not list: %q", v.Schedules.Note)
	}
}
