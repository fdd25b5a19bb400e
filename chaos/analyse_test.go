package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

func ms(n int) clock.Instant { return clock.Instant(time.Duration(n) * time.Millisecond) }

// line is one handling of a script, in milliseconds.
type line struct {
	member, from, to int
	event            int
	key              string
	token            int
}

// script writes the journals of some members. Events are sent at the given times, and
// the broker has them 5 ms later.
func script(t *testing.T, sentAt []int, lines ...line) ([]appRun, *publication) {
	t.Helper()
	type record struct {
		at   int
		text string
	}
	records := map[int][]record{}
	for i, l := range lines {
		records[l.member] = append(records[l.member],
			record{l.from, fmt.Sprintf("S %d %d %d %d %q %q\n", ms(l.from), i+1, l.token, i+1, strconv.Itoa(l.event), l.key)},
			record{l.to, fmt.Sprintf("E %d %d done\n", ms(l.to), i+1)})
	}
	var runs []appRun
	for member := range scaleMost {
		of := records[member]
		if of == nil {
			continue
		}
		slices.SortStableFunc(of, func(a, b record) int { return a.at - b.at })
		var text strings.Builder
		text.WriteString("ringfence-journal 2\n")
		for _, r := range of {
			text.WriteString(r.text)
		}
		path := filepath.Join(t.TempDir(), fmt.Sprint(member))
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, appRun{member: member, file: journal.File{Path: path}})
	}
	var sent publication
	for _, at := range sentAt {
		n := sent.begin(ms(at))
		sent.finish(n, ms(at+5), true)
	}
	return runs, &sent
}

func lone(k kind, variant string, member, from, until, whole int) outcome {
	return outcome{Fault: fault{Kind: k, Variant: variant, Member: member}, From: ms(from), Until: ms(until), Whole: ms(whole), Lone: true}
}

func TestTakeover(t *testing.T) {
	// Member 0 has the keys a, b and c, and is killed at 1000. An event of a waits for the
	// takeover; b has no event until later, so it shows nothing; c had moved before, and so had d
	// with it, though d shows it only after the kill.
	runs, sent := script(
		t, []int{0, 0, 0, 1500, 5000, 5000, 800, 0, 1000},
		line{0, 100, 101, 0, "a", 1}, line{0, 100, 101, 1, "b", 1}, line{0, 100, 101, 2, "c", 1}, line{0, 100, 101, 7, "d", 1},
		line{1, 900, 901, 6, "c", 2}, line{1, 1005, 1006, 8, "d", 2},
		line{1, 3000, 3001, 3, "a", 4}, line{1, 5001, 5002, 4, "b", 4}, line{2, 5001, 5002, 5, "c", 4},
	)
	got, err := analyse(runs, []outcome{lone(kindKill, atBoth, 0, 1000, 2000, 4000)}, sent)
	if err != nil {
		t.Fatal(err)
	}
	if want := (durations{2 * time.Second}); !slices.Equal(got.takeovers["kill"], want) {
		t.Errorf("takeovers are %v, want %v", got.takeovers, want)
	}
	if got.moves != 5 || got.moved[kindKill] != 3 {
		t.Errorf("%d moves, %v", got.moves, got.moved)
	}
}

func TestTakeoverAmongOtherFaultsIsNotMeasured(t *testing.T) {
	runs, sent := script(t, []int{0, 1500}, line{0, 100, 101, 0, "a", 1}, line{1, 3000, 3001, 1, "a", 2})
	o := lone(kindKill, atBoth, 0, 1000, 2000, 4000)
	o.Lone = false
	got, err := analyse(runs, []outcome{o}, sent)
	if err != nil || len(got.takeovers) != 0 {
		t.Errorf("takeovers are %v, %v", got.takeovers, err)
	}
}

func TestGraceful(t *testing.T) {
	// a moves while its handler works until 1200; b stays; c was sent before.
	runs, sent := script(
		t, []int{0, 0, 0, 1100, 1100, 900, 1600},
		line{0, 100, 1200, 0, "a", 1}, line{1, 100, 101, 1, "b", 1}, line{1, 100, 101, 2, "c", 1},
		line{1, 1230, 1231, 3, "a", 2}, line{1, 1107, 1108, 4, "b", 1}, line{1, 1110, 1111, 5, "c", 1}, line{1, 1607, 1608, 6, "b", 1},
	)
	for _, k := range []kind{kindLeave, kindDeploy} {
		got, err := analyse(runs, []outcome{lone(k, "x", 0, 1000, 1400, 1500)}, sent)
		if err != nil {
			t.Fatal(err)
		}
		if want := (durations{30 * time.Millisecond}); !slices.Equal(got.handoffs, want) {
			t.Errorf("%s: handoffs are %v, want %v", k, got.handoffs, want)
		}
		if want := (durations{2 * time.Millisecond}); !slices.Equal(got.still, want) {
			t.Errorf("%s: waits of still keys are %v, want %v", k, got.still, want)
		}
		if want := map[kind]int{kindLeave: 0, kindDeploy: 2}[k]; len(got.deploys) != want {
			t.Errorf("%s: %d waits in a deploy, want %d", k, len(got.deploys), want)
		}
	}
}

func TestStranded(t *testing.T) {
	runs, sent := script(
		t, []int{0, 1000, 90_000},
		line{0, 100, 101, 0, "a", 1}, line{1, 31_000, 31_001, 1, "a", 2}, line{1, 99_000, 99_001, 2, "a", 2},
	)
	got, err := analyse(runs, []outcome{lone(kindCut, fromAll, 0, 1000, 2000, 4000)}, sent)
	if err != nil {
		t.Fatal(err)
	}
	if want := (durations{30*time.Second - 5*time.Millisecond}); !slices.Equal(got.stranded, want) {
		t.Errorf("stranded are %v, want %v", got.stranded, want)
	}
	if n := len(got.takeovers["cut all"]); n != 0 {
		t.Errorf("stranded events count as %d takeovers", n)
	}
	if want := (durations{9*time.Second - 5*time.Millisecond}); !slices.Equal(got.long, want) {
		t.Errorf("unexplained are %v, want %v", got.long, want)
	}
}

// Events that a stopped victim holds arrive after its return, at the present owner of their key: that is
// not a takeover. Events that arrive as late while the victim is away are a slow takeover.
func TestStrandedForMoments(t *testing.T) {
	for until, want := range map[int][2]int{2700: {2, 2}, 4500: {4, 0}} {
		runs, sent := script(
			t, []int{0, 0, 0, 0, 1100, 1200, 1300, 1400},
			line{0, 100, 101, 0, "a", 1}, line{0, 100, 101, 1, "b", 1}, line{0, 100, 101, 2, "c", 1}, line{0, 100, 101, 3, "d", 1},
			line{1, 3000, 3001, 4, "a", 2}, line{2, 3100, 3101, 5, "b", 2}, // the next owners
			line{2, 4000, 4001, 6, "c", 2}, line{0, 4200, 4201, 7, "d", 3}, // a next owner, and the victim come back
		)
		got, err := analyse(runs, []outcome{lone(kindPower, atBoth, 0, 1000, until, 4800)}, sent)
		if err != nil {
			t.Fatal(err)
		}
		if n := [2]int{len(got.takeovers["power"]), len(got.stranded)}; n != want {
			t.Errorf("back at %d: %d takeovers and %d stranded, want %v", until, n[0], n[1], want)
		}
	}
}

func TestResume(t *testing.T) {
	// The broker dies at 1010, when the last handling has begun. It has the next event
	// at 9005, and the first handling begins at 9700.
	runs, sent := script(
		t, []int{0, 900, 1001, 9000, 9900},
		line{0, 100, 101, 0, "a", 1}, line{0, 1003, 1004, 1, "a", 1}, line{0, 9700, 9701, 2, "a", 1}, line{0, 9701, 9702, 3, "a", 1},
		line{0, 9907, 9908, 4, "a", 1},
	)
	got, err := analyse(runs, []outcome{lone(kindBroker, "restart", 0, 1000, 8000, 9900)}, sent)
	if err != nil {
		t.Fatal(err)
	}
	if want := (durations{695 * time.Millisecond}); !slices.Equal(got.resumes, want) {
		t.Errorf("resumes are %v, want %v", got.resumes, want)
	}
}

// A refused write counts as one within a member as long as no handling with a higher token
// had begun: then it was another worker of the same owner that the sink had heard of.
func TestRefusalsWithinAMember(t *testing.T) {
	runs, sent := script(t, []int{0, 0, 0}, line{0, 100, 900, 0, "a", 1}, line{0, 500, 501, 1, "a", 1}, line{1, 1000, 1001, 2, "a", 2})
	fence := event.Fence{Token: 1, Turn: 1}.String()
	torn := "postgres write a " + fence + " 0 9"
	text := fmt.Sprint(refusal{"redis", "write", "a", fence, "0", ms(950)}, refusal{"redis", "write", "a", fence, "0", ms(1500)}, torn)
	if err := os.WriteFile(runs[0].file.Path+refusedSuffix, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := analyse(runs, nil, sent)
	if err != nil {
		t.Fatal(err)
	}
	if got.refused != 2 || got.refusedSameToken != 1 {
		t.Errorf("%d refused, %d of them within a member; want 2 and 1", got.refused, got.refusedSameToken)
	}
}

// A joining router must name the setting and both values in one line.
func TestJoiningRouterNamesTheSetting(t *testing.T) {
	s := regroupingOf("key.from")
	for said, want := range map[string]bool{
		`error: key.from is "property:user" here and "message_key" in the group`: true,
		`error: key.from is "property:user" here`:                                false,
		"key.from\nproperty:user\nmessage_key":                                   false,
		"":                                                                       false,
	} {
		if s.names(said) != want {
			t.Errorf("%q: got %v, want %v", said, !want, want)
		}
	}
}

func TestSpread(t *testing.T) {
	var d durations
	for i := range 100 {
		d = append(d, time.Duration(100-i)*time.Millisecond)
	}
	if got, want := d.spread(), (spread{100, 51, 100, 100}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := (durations{}).spread(); got != (spread{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

// fine is the result of a run in which every promise held.
func fine() *result {
	return &result{
		Faults: map[kind]int{kindKill: 2}, Events: 100, Handled: 100, Moves: 10, SinkWrites: 50, StaleRefused: 1, AuditHandlings: 100,
		TakeoverMS: map[string]spread{}, Joiners: []joiner{{Setting: "key.from", Code: refusedCode, Named: true}},
	}
}

func TestJudge(t *testing.T) {
	plain := options{Faults: 2, Share: 0.1}
	stubborn, control := plain, plain
	stubborn.Stubborn, control.Control = true, controlShared
	overlapping := func(r *result) { r.Overlaps = 1 }
	tests := map[string]struct {
		options options
		change  func(*result)
		broken  string
	}{
		"fine":                               {plain, func(*result) {}, ""},
		"an overlap":                         {plain, overlapping, "exclusive"},
		"an overlap of the stubborn":         {stubborn, overlapping, ""},
		"a lost event":                       {plain, func(r *result) { r.Lost = 1 }, "nothing lost"},
		"a stale write":                      {stubborn, func(r *result) { r.StaleTokenWrites = 1 }, "fencing"},
		"a fence that is given twice":        {plain, func(r *result) { r.RepeatedFences = 1 }, "fencing"},
		"something unsettled":                {plain, func(r *result) { r.failed = errors.New("m1 has 3") }, "nobody blocked"},
		"nothing handled":                    {plain, func(r *result) { r.Handled = 0 }, "proves nothing"},
		"a fault missing":                    {plain, func(r *result) { r.Faults[kindKill] = 1 }, "proves less"},
		"nothing moved":                      {plain, func(r *result) { r.Moves = 0 }, "no key has moved"},
		"no writes":                          {plain, func(r *result) { r.SinkWrites = 0 }, "proves less"},
		"stubborn, but nothing refused":      {stubborn, func(r *result) { r.StaleRefused = 0 }, "proves nothing about the sinks"},
		"stubborn, but no worker tried":      {stubborn, func(r *result) { r.Faults = map[kind]int{kindKill: 1, kindCrashWorker: 1} }, "within a member"},
		"a joining router that stays":        {plain, func(r *result) { r.Joiners[0].Code = -1 }, "one group"},
		"a joining router that does not say": {plain, func(r *result) { r.Joiners[0].Named = false }, "one group"},
		"a joining router that disturbs":     {plain, func(r *result) { r.Joiners[0].Lost = 1 }, "one group"},
		"an auditor that compares nothing":   {plain, func(r *result) { r.AuditHandlings = 0 }, "compared nothing"},
		"an auditor that invents":            {stubborn, func(r *result) { r.Woken, r.AuditOverlaps = 1, 2 }, "live auditors logged 2"},
		"an auditor that sees a pause":       {plain, func(r *result) { r.Woken, r.AuditOverlaps = 1, 1 }, ""},
		"a control run that overlaps":        {control, overlapping, ""},
		"a control run that does not":        {control, func(*result) {}, "does not overlap"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := fine()
			test.change(r)
			var out bytes.Buffer
			err := r.tell(&out, test.options)
			if (err != nil) != (test.broken != "") || !strings.Contains(out.String(), test.broken) {
				t.Errorf("got %v, want %q, in:\n%s", err, test.broken, out.String())
			}
		})
	}
}

// Each owner of a key may log an overlap: it is one, by its fences.
func TestOverlapsLogged(t *testing.T) {
	pairs := map[string]bool{}
	for _, log := range []string{
		`"msg":"handlers of one key overlapped","first":"m1 worker 3, fence 0001.0002, 1s to 2s after boot","second":"m2 worker 1, fence 0003.0001, 2s to 3s after boot"` + "\n" + `"msg":"else","fence":"fence 7.7"` + "\n",
		`"msg":"handlers of one key overlapped","first":"self worker 1, fence 0003.0001, 2s to 3s after boot","second":"m1, fence 0001.0002, 1s to 2s after boot"`,
		`"msg":"handlers of one key overlapped","first":"m1, fence 0001.0002","second":"m1, fence 0001.0003"`,
	} {
		overlapsLogged(log, pairs)
	}
	if len(pairs) != 2 {
		t.Errorf("%v", pairs)
	}
}

// TestLimits: a run on a machine of its own is held to its times.
func TestLimits(t *testing.T) {
	few, many := spread{samplesLeast - 1, 1, 9999, 9999}, spread{samplesLeast, 1, 9999, 9999}
	for name, c := range map[string]struct {
		limits bool
		r      result
		want   int
	}{
		"not asked for": {false, result{HandoffMS: many, MovedKeys: map[kind]int{kindBroker: 1}}, 0},
		"few samples":   {true, result{HandoffMS: few, StillMS: few, TakeoverMS: map[string]spread{"kill": few}}, 0},
		"everything": {true, result{
			HandoffMS: many, StillMS: many, DeployMS: many, ResumeMS: few, MovedKeys: map[kind]int{kindBroker: 1},
			TakeoverMS: map[string]spread{"kill": many, "power": many, "cut all": many, "pause": many},
		}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			got := 0
			c.r.judgeTimes(options{Limits: c.limits}, func(is bool, _ string, _ ...any) {
				if is {
					got++
				}
			})
			if got != c.want {
				t.Errorf("%d limits are broken, want %d", got, c.want)
			}
		})
	}
}
