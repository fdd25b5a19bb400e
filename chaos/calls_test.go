package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/base/event"
)

// forged is one handling in a forged journal. Its end is missing if outcome is "".
type forged struct {
	name    string
	turn    int
	outcome string
}

// forge writes a journal, with one handling after the other.
func forge(t *testing.T, handlings ...forged) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("ringfence-journal 2\n")
	for i, h := range handlings {
		fmt.Fprintf(&text, "S %d %d 7 %d %q %q\n", 10*i, i+1, h.turn, h.name, "user-1")
		if h.outcome != "" {
			fmt.Fprintf(&text, "E %d %d %s\n", 10*i+1, i+1, h.outcome)
		}
	}
	path := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func fenceOf(turn int) string { return event.Fence{Token: 7, Turn: uint64(turn)}.String() }

// Each promise to callers is broken by a journal, and kept by another one.
func TestJudgeCalls(t *testing.T) {
	once, withID := callName(0, true), callName(0, false)
	for name, test := range map[string]struct {
		made    callMade
		journal [][]forged
		broken  string // the field that counts it; "": none
	}{
		"replied":                       {callMade{once: true, answer: replied, reply: fenceOf(3)}, [][]forged{{{once, 3, "done"}}}, ""},
		"replied by nobody":             {callMade{once: true, answer: replied, reply: fenceOf(3)}, nil, "UnrunReplies"},
		"replied while it ran":          {callMade{once: true, answer: replied, reply: fenceOf(3)}, [][]forged{{{once, 3, ""}}}, "UnrunReplies"},
		"replied after a cut":           {callMade{once: true, answer: replied, reply: fenceOf(3)}, [][]forged{{{once, 3, "cancelled"}}}, "UnrunReplies"},
		"the reply of another":          {callMade{once: true, answer: replied, reply: fenceOf(4)}, [][]forged{{{once, 3, "done"}}}, "WrongReplies"},
		"twice without an id":           {callMade{once: true, answer: unknown}, [][]forged{{{once, 3, "cancelled"}}, {{once, 9, "done"}}}, "OnceAgain"},
		"twice with an id":              {callMade{answer: replied, reply: fenceOf(9), tries: 2}, [][]forged{{{withID, 3, ""}}, {{withID, 9, "done"}}}, ""},
		"replied from memory":           {callMade{answer: replied, reply: fenceOf(3), tries: 2}, [][]forged{{{withID, 3, "done"}}, {{withID, 9, ""}}}, ""},
		"not run, and started":          {callMade{once: true, answer: notRun, code: "timeout"}, [][]forged{{{once, 3, ""}}}, "RunNotRun"},
		"not run":                       {callMade{once: true, answer: notRun, code: "timeout"}, nil, ""},
		"not run when it was repeated":  {callMade{answer: notRun, code: "overloaded", tries: 2}, [][]forged{{{withID, 3, ""}}}, ""},
		"failed":                        {callMade{once: true, answer: failed}, [][]forged{{{once, 3, "failed"}}}, ""},
		"failed at nobody":              {callMade{once: true, answer: failed}, nil, "UnrunReplies"},
		"done before":                   {callMade{answer: doneBefore, tries: 2}, [][]forged{{{withID, 3, "done"}}}, ""},
		"done before, by nobody":        {callMade{answer: doneBefore, tries: 2}, [][]forged{{{withID, 3, "cancelled"}}}, "UnrunReplies"},
		"unknown":                       {callMade{once: true, answer: unknown}, [][]forged{{{once, 3, "done"}}}, ""},
		"given up":                      {callMade{once: true, answer: givenUp}, nil, ""},
		"somebody else's":               {callMade{once: true, answer: notRun}, [][]forged{{{callName(5, true), 3, "done"}}}, "Strange"},
		"an event of the same key":      {callMade{once: true, answer: notRun}, [][]forged{{{"0", 3, "done"}}}, ""},
		"two with one name but another": {callMade{once: true, answer: replied, reply: fenceOf(3)}, [][]forged{{{once, 3, "done"}, {"0", 4, "done"}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var paths []string
			for _, handlings := range test.journal {
				paths = append(paths, forge(t, handlings...))
			}
			c, err := judgeCalls(paths, &callLog{made: []callMade{test.made}})
			if err != nil {
				t.Fatal(err)
			}
			for field, n := range map[string]int{
				"UnrunReplies": c.UnrunReplies, "WrongReplies": c.WrongReplies, "OnceAgain": c.OnceAgain, "RunNotRun": c.RunNotRun, "Strange": c.Strange,
			} {
				if want := field == test.broken; want != (n == 1) || n > 1 {
					t.Errorf("%s = %d, broken is %q: %q", field, n, test.broken, c.Examples)
				}
			}
			r := &result{Calls: *c, Events: 1, Handled: 1}
			var broken []string
			r.judgeCalls(options{}, func(is bool, format string, args ...any) {
				if is {
					broken = append(broken, fmt.Sprintf(format, args...))
				}
			})
			if (len(broken) == 1) != (test.broken != "") || len(broken) > 1 {
				t.Errorf("the judge says %q", broken)
			}
		})
	}
}

func TestCallsAreCounted(t *testing.T) {
	log := &callLog{made: []callMade{
		{once: true, tries: 1, answer: replied, reply: fenceOf(3)},
		{tries: 3, answer: replied, reply: fenceOf(5)},
		{once: true, tries: 1, answer: notRun, code: "overloaded"},
	}}
	c, err := judgeCalls([]string{forge(t, forged{callName(0, true), 3, "done"}, forged{callName(1, false), 4, "cancelled"}, forged{callName(1, false), 5, "done"})}, log)
	if err != nil {
		t.Fatal(err)
	}
	want := "3, 2 of them without an id; 2 repeats; 3 handlings, 1 calls with an id ran again; not_run 1 replied 2 (overloaded 1)"
	if got := c.String(); got != want || c.Handled != 2 || len(c.Examples) > 0 {
		t.Errorf("got  %s\nwant %s\nhandled %d, %q", got, want, c.Handled, c.Examples)
	}
	r := &result{}
	var broken []string
	r.judgeCalls(options{Calls: 1}, func(is bool, format string, _ ...any) {
		if is {
			broken = append(broken, format)
		}
	})
	if len(broken) != 1 || !strings.Contains(broken[0], "proves nothing") {
		t.Errorf("a run without a reply is judged %q", broken)
	}
}

// nameOther names the handlings of the number -1 in the journals of a script, which are of no event.
func nameOther(t *testing.T, runs []appRun, name string) {
	t.Helper()
	for _, r := range runs {
		b, err := os.ReadFile(r.file.Path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.file.Path, []byte(strings.ReplaceAll(string(b), `"-1"`, strconv.Quote(name))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A call between two events is a handling of its key, but no sign of a broker or of a move that is measured by events.
func TestCallsDoNotDisturbTheTimesOfEvents(t *testing.T) {
	runs, sent := script(t, []int{0, 1500},
		line{0, 100, 101, 0, "a", 1}, line{member: 1, from: 2000, to: 2001, event: -1, key: "a", token: 4}, line{1, 2300, 2301, 1, "a", 4})
	nameOther(t, runs, "call:7")
	got, err := analyse(runs, []outcome{lone(kindKill, atBoth, 0, 1000, 2500, 4000)}, sent)
	if err != nil {
		t.Fatal(err)
	}
	if want := (durations{1300e6}); got.moves != 1 || !slices.Equal(got.takeovers["kill"], want) {
		t.Errorf("%d moves, takeovers %v, want 1 and %v", got.moves, got.takeovers, want)
	}
}

// Writes of calls that a sink refuses say nothing about another worker of the same member.
func TestRefusedCallsAreNoSignOfAnotherWorker(t *testing.T) {
	runs, sent := script(t, []int{0}, line{0, 100, 101, 0, "a", 1})
	lines := refusal{"redis", "write", "a", event.Fence{Token: 1, Turn: 1}.String(), "call:7", ms(200)}.String() +
		refusal{"redis", "write", "a", event.Fence{Token: 1, Turn: 1}.String(), "0", ms(200)}.String()
	if err := os.WriteFile(runs[0].file.Path+refusedSuffix, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := analyse(runs, nil, sent)
	if err != nil || got.refused != 2 || got.refusedSameToken != 1 {
		t.Errorf("%d refused, %d by one owner, %v; want 2 and 1", got.refused, got.refusedSameToken, err)
	}
}
