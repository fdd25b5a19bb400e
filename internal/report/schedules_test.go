package report

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func scheduling(name string, workers int, schedules ...Schedule) Member {
	return Member{Name: name, Status: &Status{Workers: workers, Schedules: schedules}}
}

// The owner's word counts; members that disagree, do not declare a schedule, or do not answer are named.
func TestSchedulesOf(t *testing.T) {
	const six, seven = "0 6 * * * Europe/Berlin", "0 7 * * * Europe/Berlin"
	m := Members{Members: []Member{
		scheduling("a", 1, Schedule{Name: "report", Times: six, Missed: "latest", Workers: 1}, Schedule{Name: "only-a", Times: "every 10s", Missed: "latest", Workers: 1, Owned: true, Error: "no broker"}),
		scheduling("b", 1, Schedule{Name: "report", Times: seven, Missed: "latest", Workers: 1, Owned: true, Next: "2026-11-27T06:00:00Z", LastRun: "2026-11-26T06:00:00Z", Dropped: map[string]uint64{"skipped": 2, "superseded": 1}}),
		scheduling("c", 1), scheduling("no-app", 0),
		{Name: "dead", Error: "refused"},
		{Name: "stranger", Unnamed: true},
		scheduling("d", 1, Schedule{Name: "orphan", Times: six, Missed: "skip", Workers: 1}),
	}}
	got := SchedulesOf(m)
	if !slices.Equal(got.Silent, []string{"dead"}) || len(got.Schedules) != 3 {
		t.Fatalf("%+v", got)
	}
	onlyA, orphan, report := got.Schedules[0], got.Schedules[1], got.Schedules[2]
	if report.Owner != "b" || report.Times != seven || report.Next == "" || report.DroppedWords() != "1 superseded, 2 skipped" || !slices.Equal(report.Disagree, []string{"a"}) || !slices.Equal(report.Without, []string{"c", "d"}) {
		t.Errorf("report: %+v", report)
	}
	for i, want := range map[*GroupSchedule][]string{
		&report: {"declared differently by a", "not declared by the workers of c, d"},
		&onlyA:  {"cannot be published: no broker", "not declared by the workers of b, c, d"},
		&orphan: {"no member that declares it owns its key", "not declared by the workers of a, b, c"},
	} {
		problems := i.Problems()
		if len(problems) != len(want) {
			t.Errorf("%s: %q", i.Name, problems)
			continue
		}
		for k := range want {
			if !strings.Contains(problems[k], want[k]) {
				t.Errorf("%s: %q, want %q", i.Name, problems[k], want[k])
			}
		}
	}
	if onlyA.DroppedWords() != "-" {
		t.Errorf("nothing dropped: %q", onlyA.DroppedWords())
	}
	now := time.Date(2026, 11, 27, 5, 56, 48, 0, time.UTC)
	for at, want := range map[string]string{"2026-11-27T06:00:00Z": "in 3m12s", "2026-11-27T05:56:43Z": "5s ago", "": "-", "soon": "-"} {
		if got := Ahead(at, now); got != want {
			t.Errorf("%q is %q, want %q", at, got, want)
		}
	}
}

// A member that does not list all of its schedules, or does not answer, may declare and own those that it does not tell of.
func TestSchedulesThatAreNotToldOf(t *testing.T) {
	one := Schedule{Name: "report", Times: "every 10s", Missed: "latest", Workers: 1}
	owned := one
	owned.Owned = true
	full := scheduling("full", 1)
	full.Status.SchedulesUnshown = 3
	s := SchedulesOf(Members{Members: []Member{scheduling("a", 1, owned), full}}).Schedules[0]
	if problems := s.Problems(); len(s.Without) > 0 || len(problems) > 0 {
		t.Errorf("the schedule may be one of those that full does not list: %q", problems)
	}
	for _, untold := range []Member{full, {Name: "silent", Listed: true, Error: "no answer in time"}} {
		s := SchedulesOf(Members{Members: []Member{scheduling("a", 1, one), untold}}).Schedules[0]
		if problems := s.Problems(); len(problems) != 1 || strings.Contains(problems[0], "it does not run") || !strings.Contains(problems[0], untold.Name) {
			t.Errorf("the schedule may run at %s: %q", untold.Name, problems)
		}
	}
}
