package statuspage

import (
	"strings"
	"testing"

	"github.com/ringfence/router/internal/report"
)

// visiting is a member with calls and reservations, and so much of a bound used.
func visiting(name string, v report.Visits, used int) report.Member {
	v.Bounds = []report.Bound{{Setting: "mailbox.calls_max", Used: v.Waiting + v.Running + v.Reserved, Max: 10_000}, {Setting: "lane.calls_max", Used: used, Max: 1000}}
	return but(healthy(name, 1), func(s *report.Status) { s.Visits = &v })
}

// The table names the members that have calls or reservations, those near a bound first, and problems say which bound is near.
func TestCallsAndReservationsByMember(t *testing.T) {
	g := crowd(1, 100)
	g.members.Members = []report.Member{
		visiting("idle", report.Visits{}, 0), visiting("busy", report.Visits{Waiting: 3, Running: 2, Reserved: 1}, 1), visiting("near", report.Visits{Refused: 4, Crowded: 1}, 800),
		visiting("full", report.Visits{Waiting: 1, Running: 1, Refused: 7}, 1000), healthy("old", 1),
	}
	v := newSnapshot(look(t.Context(), g, true, nil))
	var got []string
	for _, r := range v.Lane.Rows {
		got = append(got, strings.Join([]string{r.Name, r.Waiting, r.Running, r.Reserved, r.Refused, r.Bound, r.Class}, ", "))
	}
	want := "full, 1, 1, 0, 7, 1,000 of 1,000 (lane.calls_max), bad|near, 0, 0, 0, 5, 800 of 1,000 (lane.calls_max), busy|busy, 3, 2, 1, 0, 1 of 1,000 (lane.calls_max), "
	if strings.Join(got, "|") != want {
		t.Errorf("rows\n%s\nwant\n%s", strings.Join(got, "|"), want)
	}
	if want := "4 calls or reservations wait, 3 calls run, 1 key is reserved; 12 refused because a bound was reached, since each member started. 1 member of an older version not included."; v.Lane.Note != want {
		t.Errorf("the note %q, want %q", v.Lane.Note, want)
	}
	var near []string
	for _, p := range v.Problems.Rows {
		if p.Title == "Bound of calls near" {
			near = append(near, p.Class+" "+p.Text[:4])
		}
	}
	if strings.Join(near, "|") != "bad full|busy near" {
		t.Errorf("problems %q", near)
	}
	var many []report.Member
	for range sameMax + 2 {
		many = append(many, visiting("full", report.Visits{}, 1000))
	}
	g.members.Members = many
	v = newSnapshot(look(t.Context(), g, true, nil))
	n := 0
	for _, p := range v.Problems.Rows {
		n += strings.Count(p.Title, "ound")
	}
	if n != sameMax+1 {
		t.Errorf("%d problems of %d members at their bounds, want %d and one that names the rest", n, len(many), sameMax)
	}
}

// A reservation ends with its holder: a reserved key is not stuck, and only a long one before which events wait is shown as busy.
func TestReservedKeysAreNotStuck(t *testing.T) {
	for behind, wantClass := range map[int]string{0: "", 2: classBusy} {
		state, why, class := stateOfKey(&report.ListedKey{Wait: "handler", Call: true, Seconds: 900, Behind: behind, Calls: 2})
		if state != "reserved" || class != wantClass || !strings.Contains(why, "the end of its reservation; 2 calls or reservations wait") {
			t.Errorf("with %d events behind it: %s, %q, class %q", behind, state, why, class)
		}
	}
	if state, _, _ := stateOfKey(&report.ListedKey{Wait: "handler", Call: true, Worker: 1, Seconds: 900}); state != "stuck" {
		t.Errorf("a call that runs for 15 minutes: %s", state)
	}
}
