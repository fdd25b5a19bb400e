package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/devtools/journal"
)

// journalOf writes a journal of lines, and a list of refusals beside it.
func journalOf(t *testing.T, refused []string, lines ...string) journal.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal")
	text := "ringfence-journal 2\n" + strings.Join(append(lines, ""), "\n")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if refused != nil {
		if err := os.WriteFile(path+refusedHoldsSuffix, []byte(strings.Join(append(refused, "torn"), "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return journal.File{Path: path}
}

// Times of these journals are in nanoseconds; a second is 1e9.
func TestJudgeReservations(t *testing.T) {
	const first = `S 1 1 7 1 "reservation:a" "k"`
	for name, test := range map[string]struct {
		lines   []string
		refused []string
		stops   []journal.Stop
		want    string
		broken  string
	}{
		"released":                    {lines: []string{first, "D 1 1 90", "E 9 1 done"}, want: "1 granted: 1 released, 0 lost, 0 cut with their holder; 0 with a ttl, which went on at another owner 0 times; 0 refused"},
		"lost":                        {lines: []string{first, "E 9 1 cancelled"}, want: "1 granted: 0 released, 1 lost, 0 cut with their holder; 0 with a ttl, which went on at another owner 0 times; 0 refused"},
		"cut":                         {lines: []string{first}, want: "1 granted: 0 released, 0 lost, 1 cut with their holder; 0 with a ttl, which went on at another owner 0 times; 0 refused"},
		"refused":                     {refused: []string{`reservation:a "timeout"`, `reservation:b "no connection"`}, want: "0 granted: 0 released, 0 lost, 0 cut with their holder; 0 with a ttl, which went on at another owner 0 times; 2 refused (no connection 1) (timeout 1)"},
		"granted twice":               {lines: []string{first, "E 9 1 done", `S 10 2 7 2 "reservation:a" "k"`, "E 19 2 done"}, broken: "once"},
		"granted and refused":         {lines: []string{first, "E 9 1 done"}, refused: []string{`reservation:a "timeout"`}, broken: "once"},
		"with the fence of another":   {lines: []string{first, "E 9 1 done", `S 10 2 7 1 "reservation:b" "k"`, "E 19 2 done"}, broken: "fences"},
		"with a fence of the past":    {lines: []string{`S 1 1 7 2 "17" "k"`, "E 2 1 done", `S 10 2 7 1 "reservation:b" "k"`, "E 19 2 done"}, broken: "fences"},
		"of another key":              {lines: []string{first, "E 9 1 done", `S 10 2 7 1 "reservation:b" "l"`, "E 19 2 done"}},
		"an event with an old fence":  {lines: []string{first, "E 9 1 done", `S 10 2 7 1 "17" "k"`, "E 19 2 done"}},
		"woken with an old fence":     {lines: []string{`S 1 1 7 2 "17" "k"`, "E 2 1 done", `S 20 2 7 1 "reservation:b" "k"`, "E 21 2 cancelled"}, stops: []journal.Stop{{From: 3, Until: 19}}},
		"long after its deadline":     {lines: []string{first, "D 2 1 90", "D 3 1 80", "E 1000000091 1 done"}, broken: "deadlines"},
		"its deadline moves after it": {lines: []string{first, "D 2 1 90", "D 1000000091 1 2000000000", "E 1500000000 1 done"}, broken: "deadlines"},
		"its deadline moves late, as it was stopped": {lines: []string{first, "D 2 1 90", "D 2000000000 1 3000000000", "E 2500000000 1 done"}, stops: []journal.Stop{{From: 80, Until: 1999999999}}},
		"soon after its deadline":                    {lines: []string{first, "D 2 1 90", "E 1000000090 1 cancelled"}},
		"stopped at its deadline":                    {lines: []string{first, "D 2 1 90", "E 5000000000 1 cancelled"}, stops: []journal.Stop{{From: 50, Until: 4999999999}}},
		"early":                                      {lines: []string{first, "D 2 1 90", `S 89 2 7 2 "17" "k"`, "E 95 2 done"}, broken: "deadlines"},
		"at the deadline":                            {lines: []string{first, "D 2 1 90", `S 90 2 7 2 "17" "k"`, "E 95 2 done"}},
		"after its end":                              {lines: []string{first, "D 2 1 90", "E 3 1 done", `S 4 2 7 2 "17" "k"`, "E 95 2 done"}},
		"it goes on at another owner": {
			lines: []string{`S 1 1 7 1 "reservation:ttl:a" "k"`, "D 1 1 90", "E 9 1 done", `S 9 2 8 1 "reservation:ttl:a~1" "k"`, "D 9 2 95", "E 10 2 done"},
			want:  "1 granted: 1 released, 0 lost, 0 cut with their holder; 1 with a ttl, which went on at another owner 1 times; 0 refused",
		},
		"it goes on, and is lost": {
			lines: []string{`S 1 1 7 1 "reservation:ttl:a" "k"`, "E 9 1 done", `S 9 2 8 1 "reservation:ttl:a~1" "k"`, "E 10 2 cancelled"},
			want:  "1 granted: 0 released, 1 lost, 0 cut with their holder; 1 with a ttl, which went on at another owner 1 times; 0 refused",
		},
		"it goes on with an old fence": {
			lines: []string{`S 1 1 7 1 "reservation:ttl:a" "k"`, "E 9 1 done", `S 9 2 7 1 "reservation:ttl:a~1" "k"`, "E 10 2 done"}, broken: "fences",
		},
		"events and calls alone": {lines: []string{`S 1 1 7 1 "call:1" "k"`, "E 9 1 done"}, want: "0 granted: 0 released, 0 lost, 0 cut with their holder; 0 with a ttl, which went on at another owner 0 times; 0 refused"},
	} {
		t.Run(name, func(t *testing.T) {
			file := journalOf(t, test.refused, test.lines...)
			file.Stops = test.stops
			c, err := judgeReservations([]journal.File{file})
			if err != nil {
				t.Fatal(err)
			}
			if got := c.String(); test.want != "" && got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			var broken []string
			(&result{Reservations: *c}).judgeReservations(options{}, func(is bool, format string, args ...any) {
				if is {
					broken = append(broken, fmt.Sprintf(format, args...))
				}
			})
			if len(broken) > 1 || (len(broken) == 1) != (test.broken != "") || !strings.HasPrefix(strings.Join(broken, ""), test.broken) {
				t.Errorf("broken: %q, want %q", broken, test.broken)
			}
		})
	}
	n := 0
	(&result{}).judgeReservations(options{Reservations: 1}, func(is bool, _ string, _ ...any) {
		if is {
			n++
		}
	})
	if n != 2 { // none at all, and none with a ttl
		t.Error("a run without a reservation was taken")
	}
}

// A key whose reservation has a ttl waits for its holder, also beyond a death of its owner: that is no time of a takeover.
func TestReservationsWithATTLDoNotDisturbTakeovers(t *testing.T) {
	for name, want := range map[string]int{"reservation:ttl:7": 0, "reservation:7": 1} {
		runs, sent := script(t, []int{0, 900},
			line{0, 100, 101, 0, "a", 1}, line{member: 1, from: 950, to: 1200, event: -1, key: "a", token: 1}, line{2, 2300, 2301, 1, "a", 4})
		nameOther(t, runs, name)
		runs[1].member = ofNoMember
		got, err := analyse(runs, []outcome{lone(kindKill, atBoth, 0, 1000, 2500, 4000)}, sent)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got.takeovers["kill"]); n != want {
			t.Errorf("%s: %d takeovers, want %d", name, n, want)
		}
	}
}

// A key that was reserved in between waits from the release on, and its move is measured with its next event.
func TestReservationsDoNotDisturbTheTimesOfEvents(t *testing.T) {
	runs, sent := script(t, []int{0, 1500},
		line{0, 100, 101, 0, "a", 1}, line{member: 1, from: 2000, to: 2001, event: -1, key: "a", token: 4}, line{2, 2300, 2301, 1, "a", 4})
	nameOther(t, runs, "reservation:7")
	runs[1].member = ofNoMember
	got, err := analyse(runs, []outcome{lone(kindKill, atBoth, 0, 1000, 2500, 4000)}, sent)
	if err != nil {
		t.Fatal(err)
	}
	if got.moves != 1 || len(got.takeovers["kill"]) != 1 || got.takeovers["kill"][0] != 1300e6 {
		t.Errorf("%d moves, takeovers %v, want 1 and 1.3 s", got.moves, got.takeovers)
	}
}
