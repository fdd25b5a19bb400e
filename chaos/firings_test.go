package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/pipeline/schedule"
)

// The lease clock of these journals was 0 at unixZero, when every period began. A second is 1e9.
const unixZero = 1_800_000_000

// turnLine is one handling in a journal, with times in milliseconds. Its end is missing if outcome is "".
type turnLine struct {
	member   int
	token    int // 7 if it is less
	name     string
	from, to int
	outcome  string
}

// firing returns the name of the firing of a schedule at a second of the run.
func firing(name string, second, missed int) string {
	return firingName(name, time.Unix(unixZero+int64(second), 0), missed)
}

// turnJournals writes a journal of each member.
func turnJournals(t *testing.T, lines []turnLine) []appRun {
	t.Helper()
	text := map[int][]string{}
	var runs []appRun
	for i, l := range lines {
		text[l.member] = append(text[l.member], fmt.Sprintf("S %d %d %d %d %q %q", int64(l.from)*1e6, i+1, max(7, l.token), i+1, l.name, "k"))
		if l.outcome != "" {
			text[l.member] = append(text[l.member], fmt.Sprintf("E %d %d %s", int64(l.to)*1e6, i+1, l.outcome))
		}
	}
	for member, lines := range text {
		runs = append(runs, appRun{member: member, file: journalOf(t, nil, lines...)})
	}
	return runs
}

func everyTen(name string, p schedule.Policy, grace time.Duration) schedule.Definition {
	d, err := schedule.Definition{Name: name, Every: 10 * time.Second, Missed: p, Grace: grace}.Parse()
	if err != nil {
		panic(err)
	}
	return d
}

// brokenOf returns what the judge says of firings and timers.
func brokenOf(f *firingCounts, c *timerCounts) (broken []string) {
	(&result{Firings: *f, Timers: *c}).judgeFirings(options{}, func(is bool, format string, args ...any) {
		if is {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	})
	return broken
}

// Each promise of schedules is broken by a journal, and kept by another one. The times of all these are 10 s and 20 s.
func TestJudgeFirings(t *testing.T) {
	kill := func(member int, from, whole int) outcome { return lone(kindKill, atBoth, member, from, whole, whole) }
	done := func(member int, name string, from, to int) turnLine {
		return turnLine{member: member, name: name, from: from, to: to, outcome: "done"}
	}
	latest, skip := everyTen("s", schedule.Latest, 90*time.Second), everyTen("s", schedule.Skip, 90*time.Second)
	for name, test := range map[string]struct {
		of       schedule.Definition // none: all, with a grace of an hour
		lines    []turnLine
		outcomes []outcome
		want     string // in what the counts say
		broken   string // the field that counts it; "": none
	}{
		"both ran":                 {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200)}, want: "2 times of 1: 2 ran"},
		"late after a kill":        {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(1, firing("s", 20, 0), 29_100, 29_200)}, outcomes: []outcome{kill(0, 19_000, 22_000)}, want: "2 ran"},
		"one never ran":            {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200)}, broken: "Unrun"},
		"one never ran to its end": {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), {name: firing("s", 20, 0), from: 20_100}}, broken: "Unrun"},
		"a later one does not do":  {lines: []turnLine{done(0, firing("s", 20, 1), 20_100, 20_200)}, broken: "Unrun"},
		"failed, and ran":          {lines: []turnLine{{name: firing("s", 10, 0), from: 10_100, to: 10_200, outcome: "failed"}, done(0, firing("s", 10, 0), 11_000, 11_100), done(0, firing("s", 20, 0), 20_100, 20_200)}, want: "2 ran, 0 stood for by a later one (0 untold), 0 skipped, 0 too late; 3 runs, 0 again"},
		"early":                    {lines: []turnLine{done(0, firing("s", 10, 0), 9_900, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200)}, broken: "Early"},
		"stalled":                  {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(1, firing("s", 20, 0), 62_100, 62_200)}, outcomes: []outcome{kill(0, 19_000, 22_000)}, broken: "Stalled"},
		"stalled by an outage":     {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(1, firing("s", 20, 0), 62_100, 62_200)}, outcomes: []outcome{kill(0, 19_000, 22_100)}, want: "2 ran"},
		"of no time":               {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(0, firing("s", 13, 0), 20_300, 20_400)}, broken: "Strange"},
		"of no schedule":           {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(0, firing("t", 10, 0), 20_300, 20_400)}, broken: "Strange"},
		"twice":                    {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(1, firing("s", 20, 0), 23_000, 23_100)}, broken: "Twice"},
		"twice under two names":    {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(1, firing("s", 20, 1), 23_000, 23_100)}, broken: "Twice"},
		"twice after its kill":     {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(1, firing("s", 20, 0), 23_000, 23_100)}, outcomes: []outcome{kill(0, 20_300, 26_000)}, want: "3 runs, 1 again"},
		"after another one's kill": {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(1, firing("s", 20, 0), 23_000, 23_100)}, outcomes: []outcome{kill(1, 20_300, 22_000)}, broken: "Twice"},
		"after a kill long before": {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(1, firing("s", 20, 0), 23_000, 23_100)}, outcomes: []outcome{kill(0, 11_000, 14_000)}, broken: "Twice"},
		"after a kill afterwards":  {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(1, firing("s", 20, 0), 23_000, 23_100)}, outcomes: []outcome{kill(0, 23_500, 26_000)}, broken: "Twice"},
		"after a leave":            {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(1, firing("s", 20, 0), 23_000, 23_100)}, outcomes: []outcome{lone(kindLeave, "rejoin", 0, 20_300, 22_000, 26_000)}, broken: "Twice"},
		"after the broker's death": {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(3, firing("s", 20, 0), 20_100, 20_200), done(1, firing("s", 20, 0), 23_000, 23_100)}, outcomes: []outcome{lone(kindBroker, "restart", 0, 20_300, 22_000, 26_000)}, want: "3 runs, 1 again"},
		"in a race":                {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), {member: 1, name: firing("s", 20, 0), from: 21_000, to: 21_100, outcome: "done", token: 9}}, want: "0 again after a fault of their owner, 1 at the next owner"},
		"long after a move":        {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), {member: 1, name: firing("s", 20, 0), from: 21_300, to: 21_400, outcome: "done", token: 9}}, want: "0 again after a fault of their owner, 1 at the next owner"},
		"at once at one owner":     {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(0, firing("s", 20, 0), 20_300, 20_400)}, broken: "Twice"},
		"three times, one kill":    {lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 20_100, 20_200), done(1, firing("s", 20, 0), 23_000, 23_100), done(2, firing("s", 20, 0), 25_000, 25_100)}, outcomes: []outcome{kill(0, 20_300, 24_000)}, broken: "Twice"},

		"latest, stood for":          {of: latest, lines: []turnLine{done(0, firing("s", 20, 1), 20_100, 20_200)}, want: "1 ran, 1 stood for by a later one (0 untold)"},
		"latest, untold":             {of: latest, lines: []turnLine{done(0, firing("s", 20, 0), 20_100, 20_200)}, broken: "Unrun"},
		"latest, untold after kill":  {of: latest, lines: []turnLine{done(0, firing("s", 20, 0), 20_100, 20_200)}, outcomes: []outcome{kill(1, 9_000, 12_000)}, want: "1 stood for by a later one (1 untold)"},
		"latest, nothing after it":   {of: latest, lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200)}, broken: "Unrun"},
		"latest, too late":           {of: latest, lines: []turnLine{done(0, firing("s", 120, 11), 120_100, 120_200)}, outcomes: []outcome{kill(1, 9_000, 100_000)}, want: "2 too late"},
		"latest, past the grace":     {of: latest, lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200), done(0, firing("s", 20, 0), 120_200, 120_300)}, broken: "Late"},
		"skip, skipped after a kill": {of: skip, lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200)}, outcomes: []outcome{kill(1, 19_000, 22_000)}, want: "1 skipped"},
		"skip, and never":            {of: skip, lines: []turnLine{done(0, firing("s", 10, 0), 10_100, 10_200)}, broken: "Unrun"},
	} {
		t.Run(name, func(t *testing.T) {
			d := cmp.Or(test.of, everyTen("s", schedule.All, time.Hour))
			f, c, err := judgeFirings(turnJournals(t, test.lines), test.outcomes, firingRun{
				schedules: []schedule.Definition{d}, wall: time.Unix(unixZero, 0), whole: ms(5_000), over: ms(29_000),
			})
			if err != nil {
				t.Fatal(err)
			}
			for field, n := range map[string]int{"Unrun": f.Unrun, "Early": f.Early, "Late": f.Late, "Stalled": f.Stalled, "Twice": f.Twice, "Strange": f.Strange} {
				if (n > 0) != (field == test.broken) {
					t.Errorf("%s = %d, broken is %q: %q", field, n, test.broken, f.Examples)
				}
			}
			if got := f.String(); !strings.Contains(got, test.want) {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if broken := brokenOf(f, c); len(broken) > 1 || (len(broken) == 1) != (test.broken != "") {
				t.Errorf("the judge says %q", broken)
			}
		})
	}
}

// settingEvent is the name of an event that sets timers, and after are their times.
func settingEvent(t *testing.T) (name string, after []time.Duration) {
	for i := range 10_000 {
		if after := timersOf(fmt.Sprint(i), 0.02); len(after) == 1 && after[0] > 5*time.Second {
			return fmt.Sprint(i), after
		}
	}
	t.Fatal("no event sets a timer")
	return "", nil
}

func TestJudgeTimers(t *testing.T) {
	event, after := settingEvent(t)
	due := 1_000 + int(after[0].Milliseconds()) // its handling is done at 1 s
	set := turnLine{name: event, from: 900, to: 1_000, outcome: "done"}
	timer := func(member int, from int, outcome string) turnLine {
		return turnLine{member: member, name: timerName(event, 0), from: from, to: from + 100, outcome: outcome}
	}
	sentBy := func(a sent) []sendMade { return []sendMade{{after: time.Second, begun: ms(2_000), answer: a}} }
	sendAt := func(from int) turnLine {
		return turnLine{name: sendName(0), from: from, to: from + 1, outcome: "done"}
	}
	for name, test := range map[string]struct {
		lines    []turnLine
		sends    []sendMade
		outcomes []outcome
		want     string
		broken   string
	}{
		"set and handled":           {lines: []turnLine{set, timer(1, due+300, "done")}, want: "1 set, 0 sent, 0 perhaps, 0 not; 1 were handled, in 1 handlings, 0"},
		"set and forgotten":         {lines: []turnLine{set}, broken: "Unrun"},
		"cut":                       {lines: []turnLine{set, timer(1, due+300, "cancelled")}, broken: "Unrun"},
		"set by a failed handling":  {lines: []turnLine{{name: event, from: 900, to: 1_000, outcome: "failed"}}, want: "0 set"},
		"and handled nevertheless":  {lines: []turnLine{{name: event, from: 900, to: 1_000, outcome: "failed"}, timer(1, due+300, "done")}, broken: "Strange"},
		"early":                     {lines: []turnLine{set, timer(1, due-100, "done")}, broken: "Early"},
		"by the first of two":       {lines: []turnLine{set, {name: event, from: 3_000, to: 3_100, outcome: "done"}, timer(1, due+300, "done")}, want: "1 set"},
		"twice":                     {lines: []turnLine{set, timer(1, due+300, "done"), timer(2, due+3_000, "done")}, broken: "Twice"},
		"twice after a pause":       {lines: []turnLine{set, timer(1, due+300, "done"), timer(2, due+9_000, "done")}, outcomes: []outcome{lone(kindPause, atRouter, 1, due+500, due+8_000, due+8_500)}, want: "2 handlings, 1 of them again"},
		"another timer":             {lines: []turnLine{set, timer(1, due+300, "done"), {name: timerName(event, 1), from: due + 300, to: due + 301, outcome: "done"}}, broken: "Strange"},
		"sent":                      {lines: []turnLine{sendAt(3_100)}, sends: sentBy(sentSafe), want: "0 set, 1 sent, 0 perhaps, 0 not; 1 were handled"},
		"sent and lost":             {sends: sentBy(sentSafe), broken: "Unrun"},
		"sent and early":            {lines: []turnLine{sendAt(2_900)}, sends: sentBy(sentSafe), broken: "Early"},
		"perhaps sent":              {sends: sentBy(sentMaybe), want: "1 perhaps"},
		"perhaps sent, and handled": {lines: []turnLine{sendAt(3_100)}, sends: sentBy(sentMaybe), want: "1 perhaps, 0 not; 1 were handled"},
		"not sent":                  {sends: sentBy(sentNot), want: "1 not"},
		"not sent, and handled":     {lines: []turnLine{sendAt(3_100)}, sends: sentBy(sentNot), broken: "NotSent"},
		"an event without timers":   {lines: []turnLine{{name: "call:1", from: 1, to: 2, outcome: "done"}}, want: "0 set"},
	} {
		t.Run(name, func(t *testing.T) {
			f, c, err := judgeFirings(turnJournals(t, test.lines), test.outcomes, firingRun{
				share: 0.02, sends: test.sends, wall: time.Unix(unixZero, 0), whole: ms(5_000), over: ms(29_000),
			})
			if err != nil {
				t.Fatal(err)
			}
			for field, n := range map[string]int{"Unrun": c.Unrun, "Early": c.Early, "Twice": c.Twice, "Strange": c.Strange, "NotSent": c.NotSent} {
				if (n > 0) != (field == test.broken) {
					t.Errorf("%s = %d, broken is %q: %q", field, n, test.broken, c.Examples)
				}
			}
			if got := c.String(); !strings.Contains(got, test.want) {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if broken := brokenOf(f, c); len(broken) > 1 || (len(broken) == 1) != (test.broken != "" && test.broken != "Twice") { // delivery is at least once: such a timer is odd
				t.Errorf("the judge says %q", broken)
			}
		})
	}
	n := 0
	(&result{}).judgeFirings(options{Schedules: 1, Timers: 0.1}, func(is bool, _ string, _ ...any) {
		if is {
			n++
		}
	})
	if n != 2 {
		t.Error("a run without firings and timers was taken")
	}
}

func TestLatenessIsCountedByItsCause(t *testing.T) {
	runs := turnJournals(t, []turnLine{
		{member: 2, name: firing("s", 10, 0), from: 10_100, to: 10_200, outcome: "done"},
		{member: 1, name: firing("s", 20, 0), from: 22_000, to: 22_200, outcome: "done"},
		{member: 1, name: firing("s", 30, 0), from: 33_000, to: 33_200, outcome: "done"},
		{member: 1, name: firing("s", 60, 0), from: 60_500, to: 60_600, outcome: "done"},
		{member: 1, name: firing("s", 90, 0), from: 90_700, to: 90_800, outcome: "done"},
	})
	f, _, err := judgeFirings(runs, []outcome{
		lone(kindKill, atBoth, 2, 19_000, 21_000, 21_500), lone(kindPause, atRouter, 4, 29_000, 32_000, 32_500), lone(kindLeave, "rejoin", 1, 89_000, 91_000, 91_500),
	}, firingRun{schedules: []schedule.Definition{everyTen("s", schedule.All, time.Hour)}, wall: time.Unix(unixZero, 0), over: ms(91_000)})
	if err != nil {
		t.Fatal(err)
	}
	for class, want := range map[string]float64{"kill": 2000, "fault": 3000, "calm": 500, "planned": 700} {
		if got := f.LatenessMS[class]; got.Max != want {
			t.Errorf("%s: %+v, want a longest of %v ms", class, got, want)
		}
	}
}

func TestPlannedSchedules(t *testing.T) {
	all, err := plannedSchedules(20)
	if err != nil {
		t.Fatal(err)
	}
	count := map[schedule.Policy]int{}
	var offsets, periods []time.Duration
	for _, d := range all {
		count[d.Missed]++
		if !slices.Contains(offsets, d.Offset()) {
			offsets = append(offsets, d.Offset())
		}
		if !slices.Contains(periods, d.Every) {
			periods = append(periods, d.Every)
		}
		if d.Missed == schedule.All && (d.Every != 10*time.Second || d.Grace < 10*time.Minute) {
			t.Errorf("%+v, want one of 10 s that no outage makes late", d)
		}
		if name, at, missed, ok := parseFiring(firingName(d.Name, time.Unix(unixZero, 0), 3)); !ok || name != d.Name || at.Unix() != unixZero || missed != 3 {
			t.Errorf("%q is read as %q, %v, %d", d.Name, name, at, missed)
		}
	}
	if count[schedule.All] != 10 || count[schedule.Latest] != 7 || count[schedule.Skip] != 3 || len(offsets) < 4 || len(periods) < 2 {
		t.Errorf("%v, offsets %v, periods %v", count, offsets, periods)
	}
}

// A share of the events sets timers, each time the same ones.
func TestTimersOf(t *testing.T) {
	set, timers, longest := 0, 0, time.Duration(0)
	for i := range 50_000 {
		after := timersOf(fmt.Sprint(i), 0.02)
		if !slices.Equal(after, timersOf(fmt.Sprint(i), 0.02)) || len(after) > timersAtOnce {
			t.Fatalf("event %d: %v", i, after)
		}
		if len(after) > 0 {
			set++
		}
		timers += len(after)
		for _, a := range after {
			longest = max(longest, a)
			if a < 0 || a >= timerMax || a%time.Millisecond != 0 {
				t.Errorf("after %v", a)
			}
		}
	}
	if set < 900 || set > 1100 || timers < 3*set/2 || longest < 19*time.Second {
		t.Errorf("%d events set %d timers, the longest after %v", set, timers, longest)
	}
	if timersOf("17", 0) != nil || timersOf("17", 1) == nil {
		t.Error("the share is not heeded")
	}
}

// A timer between two events is a handling of its key, but no sign of a broker or of a move that is measured by events.
func TestTimersDoNotDisturbTheTimesOfEvents(t *testing.T) {
	runs, sent := script(t, []int{0, 1500},
		line{0, 100, 101, 0, "a", 1}, line{member: 1, from: 2000, to: 2001, event: -1, key: "a", token: 4}, line{1, 2300, 2301, 1, "a", 4})
	nameOther(t, runs, "timer:7:0")
	got, err := analyse(runs, []outcome{lone(kindKill, atBoth, 0, 1000, 2500, 4000)}, sent)
	if err != nil {
		t.Fatal(err)
	}
	if want := (durations{1300e6}); got.moves != 1 || !slices.Equal(got.takeovers["kill"], want) {
		t.Errorf("%d moves, takeovers %v, want 1 and %v", got.moves, got.takeovers, want)
	}
}
