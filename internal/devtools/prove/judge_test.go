package prove

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

const ms = int64(time.Millisecond)

// scene is a proof of two members in which nothing is wrong: 400 events of 10 keys, one every 20 ms, each handled 5 ms after its publication for 4 ms.
// After 4 s all keys have moved from a to b, because a was killed.
type scene struct {
	run     Run
	numbers [2]uint64 // of the newest handling of each member
	turn    uint64    // of the newest handling
}

func newScene() *scene {
	s := &scene{run: Run{
		ID: "abcdef", Group: "orders", From: 0, Until: 8000 * ms, Rate: 50, Keys: 10,
		Members: []Member{
			{Name: "a", ClockID: "1", Drained: true, Audit: Audit{Handlings: 200}, trips: []trip{{0, ms, ms / 2}}},
			{Name: "b", ClockID: "1", Drained: true, Audit: Audit{Handlings: 200}, trips: []trip{{0, ms, ms / 2}}},
		},
		ClockID: "1",
		Faults:  []FaultAt{{Fault: Fault{Number: 1, Kind: Kill, Seconds: 1}, Member: "a", From: 4, Ready: 6}},
	}}
	for n := 1; n <= 400; n++ {
		at := int64(n-1) * 20 * ms
		s.publish(n, at)
		if at == 4000*ms { // it runs when a is killed, and comes again
			s.handle(0, n, at+5*ms, 0, "")
			s.note(0, Record{Kind: FaultBegan, At: at + 6*ms, Fault: &Fault{Number: 1}})
			s.note(0, Record{Kind: WasKilled, At: at + 7*ms, Process: 1})
			s.handle(1, n, at+2000*ms, at+2004*ms, Done)
			continue
		}
		member := 0
		if at > 4000*ms {
			member = 1
		}
		s.handle(member, n, at+5*ms, at+9*ms, Done)
	}
	return s
}

func (s *scene) note(member int, r Record) {
	s.run.Members[member].Records = append(s.run.Members[member].Records, r)
}

func (s *scene) publish(n int, at int64) {
	s.note(0, Record{Kind: WasPublished, At: at, Event: EventOf(0, n), Key: n % 10})
}

// handle adds a handling with a fence that is greater than all of handlings that began before.
func (s *scene) handle(member, n int, start, end int64, outcome string) {
	s.turn = uint64(start)
	s.fenced(member, n, start, end, outcome, s.turn)
}

func (s *scene) fenced(member, n int, start, end int64, outcome string, turn uint64) {
	s.numbers[member]++
	s.note(member, Record{Kind: HasStarted, At: start, Process: 1, Handling: s.numbers[member], Event: EventOf(0, n), Key: n % 10, Token: 7, Turn: turn})
	if outcome != "" {
		s.note(member, Record{Kind: HasEnded, At: end, Process: 1, Handling: s.numbers[member], Outcome: outcome})
	}
}

// drop loses the records of a for which a condition holds.
func (s *scene) drop(is func(*Record) bool) {
	a := &s.run.Members[0]
	all := len(a.Records)
	a.Records = slices.DeleteFunc(a.Records, func(r Record) bool { return is(&r) })
	a.Lost = all - len(a.Records)
}

// fenceWords is the fence of a handling that began at an instant.
func fenceWords(start int64) string { return event.Fence{Token: 7, Turn: uint64(start)}.String() }

// brief is a verdict without its records.
func brief(v *Verdict) string {
	one := *v
	one.Series = nil
	text, _ := json.Marshal(one)
	return string(text)
}

// broken names the checks that do not hold.
func broken(v *Verdict) string {
	var names []string
	for _, c := range v.Checks {
		if !c.Held {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, "; ")
}

func TestJudgeFindsNothingWhereNothingIsWrong(t *testing.T) {
	s := newScene()
	v := Judge(&s.run)
	if !v.Held || !v.Exercised || v.Published != 400 || v.Handled != 400 || v.Handlings != 401 || v.Died != 1 || v.Moves != 10 || v.Duplicates != 0 {
		t.Errorf("broken: %q; %s", broken(v), brief(v))
	}
	f := v.Faults[0]
	if f.Running != 1 || f.Waited != 1.993 || f.After() != 2 {
		t.Errorf("the fault is %+v, want one running handler and a wait of 1.993 s", f)
	}
	done, published := 0.0, 0.0
	for _, b := range v.Series {
		done, published = done+b.Done, published+b.Published
	}
	if width := 8.0 / float64(len(v.Series)); done*width < 399 || done*width > 401 || published*width < 399 || published*width > 401 {
		t.Errorf("the plots have %.1f and %.1f events, want 400", done*width, published*width)
	}
}

// TestJudgeFinds: each planted fault of the routers is found, by its own name alone.
func TestJudgeFinds(t *testing.T) {
	const (
		overlap = "one handler of a key at a time, by the handlers' own intervals"
		auditor = "one handler of a key at a time, by the live auditor"
		lost    = "no event is lost"
		fences  = "fences grow"
	)
	again := func(n int, member int, start int64) func(*scene) { // event n is handled again
		return func(s *scene) { s.handle(member, n, start, start+4*ms, Done) }
	}
	for name, one := range map[string]struct {
		plant func(*scene)
		want  string
		also  func(*Verdict) bool
	}{
		"overlap at two members":            {func(s *scene) { s.handle(1, 11, 207*ms, 210*ms, Cancelled) }, overlap, func(v *Verdict) bool { return v.Overlaps == 1 && len(v.Examples) == 1 }},
		"overlap at one member":             {func(s *scene) { s.handle(0, 11, 207*ms, 210*ms, Cancelled) }, overlap, nil},
		"overlap by a nanosecond":           {func(s *scene) { s.handle(1, 11, 209*ms-1, 210*ms, Cancelled) }, overlap, nil},
		"overlap with a long handler":       {func(s *scene) { s.handle(1, 5, 86*ms, 300*ms, Failed) }, overlap, func(v *Verdict) bool { return v.Overlaps == 2 }},
		"overlap with one that never ends":  {func(s *scene) { s.handle(1, 396, 7910*ms, 0, "") }, "", func(v *Verdict) bool { return v.Overlaps == 0 }},
		"overlap that only the auditor saw": {func(s *scene) { s.run.Members[1].Audit.Overlaps = 1 }, auditor, nil},
		"overlap that only the auditor saw, beside a handler that stood still": {func(s *scene) {
			s.handle(0, 501, 3003*ms, 5100*ms, Cancelled)
			s.note(0, Record{Kind: WasSent, At: 3000 * ms, Event: EventOf(0, 501), Key: 1})
			s.note(0, Record{Kind: WasStopped, At: 3004 * ms, Until: 5000 * ms, Process: 1})
			s.run.Members[1].Audit.Overlaps = 1
			s.run.Members[1].Audit.Found = []Overlap{{KeyHash: partition.HashOf("prove-1").String(), Fences: [2]string{fenceWords(205 * ms), fenceWords(405 * ms)}, Says: "planted"}}
		}, auditor, func(v *Verdict) bool { return slices.Contains(v.Examples, "the live auditor: planted") }},
		"event that was never handled":  {func(s *scene) { s.publish(401, 7000*ms) }, lost, func(v *Verdict) bool { return v.Lost == 1 && len(v.Examples) == 1 }},
		"event that was only cancelled": {func(s *scene) { s.publish(401, 7000*ms); s.handle(1, 401, 7001*ms, 7002*ms, Cancelled) }, lost, nil},
		"event of unknown fate": {func(s *scene) { s.note(0, Record{Kind: WasSent, At: 7000 * ms, Event: EventOf(0, 401), Key: 1}) }, "", func(v *Verdict) bool {
			return v.Unknown == 1 && v.Lost == 0
		}},
		"event from elsewhere":        {func(s *scene) { s.handle(1, 500, 7010*ms, 7011*ms, Done) }, "no event from elsewhere", nil},
		"fence that goes back":        {func(s *scene) { s.fenced(1, 400, 7990*ms, 7992*ms, Done, 3) }, fences, func(v *Verdict) bool { return v.Back == 1 }},
		"fence that stays":            {func(s *scene) { s.fenced(1, 400, 7990*ms, 7992*ms, Done, s.turn) }, fences, nil},
		"duplicate behind a fault":    {again(200, 1, 6500*ms), "", func(v *Verdict) bool { return v.Duplicates == 1 && v.Unexplained == 0 && v.Faults[0].Duplicates == 1 }},
		"duplicate without a fault":   {again(11, 0, 300*ms), "", func(v *Verdict) bool { return v.Duplicates == 1 && v.Unexplained == 1 && len(v.Notes) == 1 }},
		"failed assertion":            {func(s *scene) { s.run.Members[0].Audit.InvariantFailures = 1 }, "no assertion of a router failed", nil},
		"event that stays unsettled":  {func(s *scene) { s.run.Members[0].Open = 1 }, "everything is settled in the end", nil},
		"member that does not drain":  {func(s *scene) { s.run.Members[0].Drained = false }, "everything is settled in the end", nil},
		"group that does not recover": {func(s *scene) { s.run.Faults[0].Ready = 0 }, "the group recovers from each fault", nil},
		"no fault":                    {func(s *scene) { s.run.Faults = nil }, "faults happened; faults hit running handlers", nil},
		"records that were lost":      {func(s *scene) { s.run.Members[0].Lost = 1 }, "the proof itself went well", nil},
		"end of a handler among the records that were lost": {func(s *scene) {
			s.drop(func(r *Record) bool { return r.Kind == HasEnded && r.Handling == 11 })
		}, "no event is lost; the proof itself went well", func(v *Verdict) bool { return v.Held && !v.Exercised && v.Overlaps == 0 && v.Lost == 1 }},
		"publication among the records that were lost": {func(s *scene) {
			s.drop(func(r *Record) bool { return r.Kind == WasPublished && r.Event == EventOf(0, 11) })
		}, "no event from elsewhere; the proof itself went well", func(v *Verdict) bool { return v.Held && !v.Exercised && v.Foreign == 1 }},
		"overlap beside records that were lost": {func(s *scene) {
			s.drop(func(r *Record) bool { return r.Kind == HasEnded && r.Handling == 11 })
			s.handle(1, 12, 227*ms, 231*ms, Cancelled)
		}, overlap + "; no event is lost; the proof itself went well", nil},
		"process that ended by itself": {func(s *scene) { s.note(0, Record{Kind: EndedByItself, At: 1, Text: "a panic"}) }, "the proof itself went well", nil},
		"proof that was cut short": {func(s *scene) {
			s.publish(401, 7000*ms)
			s.handle(1, 400, 7991*ms, 0, "") // until when it ran is not known
			s.handle(0, 410, 9000*ms, 9001*ms, Done)
			s.run.Members[1].Drained, s.run.Cut, s.run.Trouble = false, true, []string{"b is gone"}
		}, "no event is lost; no event from elsewhere; everything is settled in the end; the proof itself went well", func(v *Verdict) bool {
			return v.Held && !v.Exercised && v.Overlaps == 0
		}},
		"auditor that was off": {func(s *scene) { s.run.Members[0].Audit.Handlings, s.run.Members[1].Audit.Handlings = 0, 0 }, "the live auditor watched", nil},
		"handler that stood still": {func(s *scene) {
			s.handle(0, 501, 3003*ms, 5100*ms, Cancelled) // of key 1, whose next events b handles meanwhile
			s.note(0, Record{Kind: WasSent, At: 3000 * ms, Event: EventOf(0, 501), Key: 1})
			s.note(0, Record{Kind: WasStopped, At: 3004 * ms, Until: 5000 * ms, Process: 1})
			s.run.Members[0].Audit.Overlaps, s.run.Members[1].Audit.Overlaps = 1, 1 // the same pair, in any order
			s.run.Members[0].Audit.Found = []Overlap{{KeyHash: partition.HashOf("prove-1").String(), Fences: [2]string{fenceWords(4205 * ms), fenceWords(3003 * ms)}, Says: "planted"}}
			s.run.Members[1].Audit.Found = []Overlap{{KeyHash: partition.HashOf("prove-1").String(), Fences: [2]string{fenceWords(3003 * ms), fenceWords(4205 * ms)}, Says: "planted"}}
		}, "", func(v *Verdict) bool { return v.Overlaps == 0 && v.Frozen > 5 && v.Refused == 0 }},
		"handler that worked on after it stood still": {func(s *scene) {
			s.note(0, Record{Kind: WasSent, At: 3000 * ms, Event: EventOf(0, 501), Key: 1})
			s.handle(0, 501, 3003*ms, 5300*ms, Cancelled)
			s.note(0, Record{Kind: WasStopped, At: 3004 * ms, Until: 4900 * ms, Process: 1})
		}, overlap, nil},
		"late write": {func(s *scene) {
			s.note(0, Record{Kind: WasSent, At: 3000 * ms, Event: EventOf(0, 501), Key: 1})
			s.fenced(0, 501, 3003*ms, 5100*ms, Done, 1)
			s.note(0, Record{Kind: WasStopped, At: 3004 * ms, Until: 5000 * ms, Process: 1})
		}, fences, func(v *Verdict) bool { return v.Refused == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			one.plant(s)
			v := Judge(&s.run)
			if got := broken(v); got != one.want {
				t.Errorf("it finds %q, want %q\n%v", got, one.want, v.Examples)
			}
			if one.also != nil && !one.also(v) {
				t.Errorf("the verdict is %s", brief(v))
			}
		})
	}
}

// runAhead gives member b a clock of its own, that is ahead, and some trips by which the clocks are compared.
func (s *scene) runAhead(ahead int64) {
	b := &s.run.Members[1]
	b.ClockID, b.trips = "2", nil
	for at := int64(0); at < 8000*ms; at += 500 * ms {
		b.trips = append(b.trips, trip{at, at + 2*ms, at + ms + ahead})
	}
	for i := range b.Records {
		b.Records[i].At += ahead
	}
}

// TestJudgeByTwoClocks: an overlap of two machines counts if it is one whatever their clocks say, and is undecided if they cannot tell.
func TestJudgeByTwoClocks(t *testing.T) {
	const ahead = 3_600_000 * ms // b's clock
	shifted := func(overlap int64) *Verdict {
		s := newScene()
		s.handle(1, 11, 209*ms-overlap, 250*ms, Cancelled)
		s.runAhead(ahead)
		return Judge(&s.run)
	}
	if v := shifted(-30 * ms); v.Overlaps != 0 || v.Undecided != 0 || v.Machines != 2 || !v.Held {
		t.Errorf("30 ms apart: %d overlaps, %d undecided, %d machines; %q", v.Overlaps, v.Undecided, v.Machines, broken(v))
	}
	if v := shifted(2 * ms); v.Overlaps != 0 || v.Undecided != 1 || !v.Held {
		t.Errorf("2 ms over each other: %d overlaps, %d undecided", v.Overlaps, v.Undecided)
	}
	s := newScene()
	s.handle(1, 5, 100*ms, 280*ms, Failed)
	b := &s.run.Members[1]
	b.ClockID, b.trips = "2", []trip{{0, 2 * ms, ms + ahead}, {500 * ms, 502 * ms, 501*ms + ahead}}
	for i := range b.Records {
		b.Records[i].At += ahead
	}
	s.handle(0, 15, 150*ms, 240*ms, Failed)
	if v := Judge(&s.run); v.Overlaps != 1 {
		t.Errorf("90 ms over each other: %d overlaps, %d undecided", v.Overlaps, v.Undecided)
	}
}

// TestFenceThatGoesBackBesideAnotherClock: two handlings of one machine show that the fence went back, whatever another machine has told between them, and also
// if a third one has told a greater fence so late that its order is not known.
func TestFenceThatGoesBackBesideAnotherClock(t *testing.T) {
	const ahead = 3_600_000 * ms // b's clock
	apart := func(plant func(*scene)) *Verdict {
		s := newScene()
		plant(s)
		s.runAhead(ahead)
		return Judge(&s.run)
	}
	const us = ms / 1000
	for name, plant := range map[string]func(*scene){
		"within a moment": func(s *scene) {
			s.fenced(0, 1, 3003*ms, 3003*ms+100*us, Failed, 3003e6)
			s.fenced(1, 11, 3003*ms+300*us, 3003*ms+400*us, Failed, 3004e6)
			s.fenced(0, 21, 3003*ms+600*us, 3003*ms+700*us, Failed, 3002e6)
		},
		"long after": func(s *scene) {
			s.fenced(1, 11, 3103*ms, 3103*ms+100*us, Failed, 3104e6)
			s.fenced(0, 21, 3103*ms+300*us, 3103*ms+400*us, Failed, 3002e6) // that of 3005 ms is greater
		},
	} {
		if v := apart(plant); v.Back != 1 {
			t.Errorf("%s: %d fences went back, want 1", name, v.Back)
		}
	}
	if v := apart(func(s *scene) { // the order of the two is not known
		s.fenced(1, 11, 3103*ms, 3103*ms+100*us, Failed, 3104e6)
		s.fenced(0, 21, 3103*ms+300*us, 3103*ms+400*us, Failed, 3103e6)
	}); v.Back != 0 || !v.Held {
		t.Errorf("%d fences went back; %q", v.Back, broken(v))
	}
	if v := apart(func(s *scene) {
		s.fenced(0, 1, 3003*ms, 3004*ms, Done, 3003e6)
		s.fenced(1, 11, 3003*ms+300*us, 3003*ms+400*us, Failed, 3003e6+1) // perhaps later
		s.fenced(0, 21, 3003*ms+600*us, 3003*ms+700*us, Failed, 3003e6+2)
	}); v.Refused != 1 {
		t.Errorf("a sink refuses %d writes, want 1", v.Refused)
	}
}

// TestClonedMachines: an equal clock id does not help if the round trips contradict it.
func TestClonedMachines(t *testing.T) {
	clocks := clocksOf("1", []Member{{ClockID: "1", trips: []trip{{0, ms, 900 * ms}}}})
	if here, slack, ok := clocks[0].at(900 * ms); !ok || clocks[0].same || slack == 0 || here < 0 || here > ms {
		t.Errorf("it is %d give or take %d, %v", here, slack, ok)
	}
	if _, _, ok := (&memberClock{trips: []trip{{0, ms, 900 * ms}, {0, ms, 2}}}).at(5); ok {
		t.Error("trips that contradict each other are believed")
	}
	if _, _, ok := (&memberClock{}).at(5); ok {
		t.Error("a clock without trips is believed")
	}
}

// TestReport: the page is whole, asks nobody for anything, and escapes what it is told.
func TestReport(t *testing.T) {
	s := newScene()
	s.run.Members[0].Name, s.run.Faults[0].Member = `<script>alert(1)</script>`, `<script>alert(1)</script>`
	s.run.Command = "router prove --yes"
	v := Judge(&s.run)
	html, err := HTML(v)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Every promise held", "<polyline", "fault 1: kill at &lt;script&gt;", "router prove --yes", "prefers-color-scheme: dark", "</html>"} {
		if !bytes.Contains(html, []byte(want)) {
			t.Errorf("%q is missing", want)
		}
	}
	if bad := regexp.MustCompile(`(?i)<script|<link|src=|href=|url\(|@import|https?://|NaN|Inf`).Find(html); bad != nil {
		t.Errorf("the page has %q", bad)
	}
	if n := bytes.Count(html, []byte("<svg")); n != 3 {
		t.Errorf("%d plots, want 3", n)
	}
	s.publish(401, 7000*ms)
	v = Judge(&s.run)
	if html, err = HTML(v); err != nil || !bytes.Contains(html, []byte("A promise was broken")) || !bytes.Contains(html, []byte("An event was lost")) && !bytes.Contains(html, []byte("an event was lost")) {
		t.Errorf("a lost event is not on the page: %v", err)
	}
	text, err := JSON(v)
	var back Verdict
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil || back.Lost != 1 || back.Held || len(back.Checks) != len(v.Checks) || !slices.Equal(back.Series, v.Series) {
		t.Errorf("as JSON it is %.300s (%v)", text, err)
	}
	if empty, err := HTML(Judge(&Run{Until: 1})); err != nil || !bytes.Contains(empty, []byte("too little was shown")) && !bytes.Contains(empty, []byte("A promise")) {
		t.Errorf("an empty proof: %v", err)
	}
}

func TestAxis(t *testing.T) {
	for _, one := range []struct {
		log  bool
		most float64
		want string
	}{
		{false, 0, "0 1"}, {false, 230, "0 100 200 300"}, {false, 1000, "0 500 1000"}, {true, 0, "1 ms 10 ms"}, {true, 2.5, "1 ms 10 ms 100 ms 1 s 10 s"},
	} {
		a := newAxis(one.log, one.most)
		var labels []string
		for _, tick := range a.ticks {
			labels = append(labels, a.label(tick))
		}
		if got := strings.Join(labels, " "); got != one.want {
			t.Errorf("up to %v (logarithmic: %v): %s, want %s", one.most, one.log, got, one.want)
		}
		if top := a.y(one.most); top < marginTop || top > plotHeight-marginBottom {
			t.Errorf("%v is drawn at %v", one.most, top)
		}
	}
	if got := strings.Join([]string{timeWords(0), timeWords(90), timeWords(120), timeWords(600), timeWords(3600), timeWords(5400)}, " "); got != "0s 1m30s 2m 10m 1h 1h30m" {
		t.Errorf("times are %s", got)
	}
	if got := fmt.Sprint(timeTicks(600)); got != "[0 120 240 360 480 600]" {
		t.Errorf("ticks of ten minutes: %s", got)
	}
}
