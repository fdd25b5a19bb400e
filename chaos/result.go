package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/devtools/journal"
)

// result is the result of a run. Its JSON is for machines: fields are only added.
type result struct {
	Seed   uint64       `json:"seed"`
	Faults map[kind]int `json:"faults"`

	Events     uint64 `json:"events"`      // that the broker had
	Unsure     int    `json:"unsure"`      // of which it is unknown whether the broker had them
	Handled    uint64 `json:"handled"`     // done at least once
	Lost       uint64 `json:"lost"`        // of Events, never done
	Duplicates uint64 `json:"duplicates"`  // handlings of an event that was done already
	Overlaps   uint64 `json:"overlaps"`    // pairs of handlings of one key at the same time
	Woken      uint64 `json:"woken"`       // pairs of which one stood still: its process was stopped
	StaleEnded uint64 `json:"stale_ended"` // handlings that began or were done after a later delivery had begun

	StaleEndedSameToken uint64 `json:"stale_ended_same_token"` // of StaleEnded, those under the later one's token: by one owner

	RepeatedFences uint64 `json:"repeated_fences"` // handlings that began with the fence of an earlier one of their key

	OverlapMaxMS float64 `json:"overlap_max_ms"`

	SinkWrites            uint64 `json:"sink_writes"`              // claims and writes that the sinks accepted
	StaleTokenWrites      uint64 `json:"stale_token_writes"`       // of them, after a greater fence of the key
	StaleSameToken        uint64 `json:"stale_same_token"`         // of StaleTokenWrites, those under the greater fence's token: by one owner
	StaleRefused          uint64 `json:"stale_refused"`            // claims and writes that the sinks refused
	StaleRefusedSameToken uint64 `json:"stale_refused_same_token"` // of StaleRefused, those that no higher token explains: by one owner

	ClockRateError float64 `json:"clock_rate_error,omitempty"` // the most by which a router has seen its system clock run off, as a part of its rate

	AuditHandlings uint64 `json:"audit_handlings"` // that the routers' live auditors compared, without those since the last round of a router that was killed
	AuditOverlaps  uint64 `json:"audit_overlaps"`  // that they logged

	Joiners []joiner `json:"joiners,omitempty"` // routers with other settings than the group

	Calls callCounts `json:"calls"`

	Reservations reservationCounts `json:"reservations"`

	Firings firingCounts `json:"firings"`
	Timers  timerCounts  `json:"timers"`

	Moves      int               `json:"moves"` // of keys from one owner to the next
	MovedKeys  map[kind]int      `json:"moved_keys"`
	TakeoverMS map[string]spread `json:"takeover_ms"`
	HandoffMS  spread            `json:"handoff_ms"`
	StillMS    spread            `json:"still_ms"`
	DeployMS   spread            `json:"deploy_wait_ms"`
	ResumeMS   spread            `json:"broker_resume_ms"`
	StrandedMS spread            `json:"stranded_ms"`
	LongMS     spread            `json:"unexplained_ms"`

	Seconds  float64  `json:"seconds"` // from the first handling to the last
	Rate     float64  `json:"rate"`    // handled events per second
	Journals string   `json:"journals"`
	Replay   string   `json:"replay"`
	Oddities []string `json:"oddities,omitempty"` // processes that ended unexpectedly
	Broken   []string `json:"broken,omitempty"`   // promises that did not hold, and reasons why the run proves nothing

	examples []journal.Overlap
	lost     []string
	failed   error  // of a fault, of a member that did not come back, or of the wait at the end
	verdict  string // of a run in which nothing is broken
}

func summarise(o options, report journal.Report, t *times, outcomes []outcome, sent *publication, calls *callCounts, reserved *reservationCounts, fired *firingCounts, timed *timerCounts) *result {
	r := &result{
		Seed: o.Seed, Faults: map[kind]int{}, Replay: o.replay(),
		Events: report.Published, Unsure: sent.failed(), Handled: report.Events - uint64(calls.Handled) - uint64(reserved.Ended) - uint64(fired.names) - uint64(timed.names),
		Calls: *calls, Reservations: *reserved, Firings: *fired, Timers: *timed, Lost: report.Lost,
		Duplicates: report.Duplicates, Overlaps: report.Overlaps, Woken: report.Woken, StaleEnded: report.StaleTokens, StaleEndedSameToken: report.StaleSameToken, RepeatedFences: report.RepeatedFences,
		OverlapMaxMS: milliseconds(report.OverlapMax),
		Moves:        t.moves, MovedKeys: t.moved, TakeoverMS: map[string]spread{},
		HandoffMS: t.handoffs.spread(), StillMS: t.still.spread(), DeployMS: t.deploys.spread(), ResumeMS: t.resumes.spread(),
		StrandedMS: t.stranded.spread(), LongMS: t.long.spread(),
		Seconds:      report.LastEnd.Sub(report.FirstStart).Round(time.Second).Seconds(),
		StaleRefused: t.refused, StaleRefusedSameToken: t.refusedSameToken,
		examples: report.OverlapExamples, lost: report.LostExamples,
	}
	for _, o := range outcomes {
		r.Faults[o.Fault.Kind]++
	}
	for class, d := range t.takeovers {
		r.TakeoverMS[class] = d.spread()
	}
	if r.Seconds > 0 {
		r.Rate = float64(int(float64(r.Handled) / r.Seconds))
	}
	return r
}

// steeredLeast is the deviation of some router's clock, as a fraction of its rate, that a run
// with steered clocks needs to count. Routers measure over 10 s, in which rates alternate.
const steeredLeast = 0.02

// judge records the broken promises, and the reasons why the run proves nothing.
func (r *result) judge(o options) {
	broken := func(is bool, format string, args ...any) {
		if is {
			r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
		}
	}
	r.verdict = "every promise held"
	total := 0
	for _, n := range r.Faults {
		total += n
	}
	broken(r.Events == 0 || r.Handled == 0, "nothing was handled: this run proves nothing")
	broken(total != o.Faults, "%d faults were done, not %d: this run proves less than it claims", total, o.Faults)
	broken(o.slewed() && r.ClockRateError < steeredLeast, "no router has seen a steered clock: this run proves nothing about clocks")
	if o.Control != "" {
		r.verdict = "the control run overlaps, as it must"
		broken(r.Overlaps == 0, "the control run does not overlap: what sees no overlap here proves nothing elsewhere")
		return
	}
	r.judgeCalls(o, broken)
	r.judgeReservations(o, broken)
	r.judgeFirings(o, broken)
	moving := slices.ContainsFunc(slices.Collect(maps.Keys(r.Faults)), func(k kind) bool {
		return profiles[k].graceful || k == kindKill || k == kindPower || k == kindDelete
	})
	broken(moving && r.Moves == 0, "no key has moved: this run proves nothing")
	broken(r.Lost > 0, "nothing lost: %d events were sent and never done, such as %v", r.Lost, r.lost)
	broken(r.RepeatedFences > 0, "fencing: %d handlings had the fence of an earlier one of their key", r.RepeatedFences)
	broken(r.StaleTokenWrites > 0, "fencing: the sinks accepted %d stale writes, %d of them of the newest owner's", r.StaleTokenWrites, r.StaleSameToken)
	broken(o.Share > 0 && r.SinkWrites == 0, "nothing was written to the sinks: this run proves less than it claims")
	for _, n := range r.Joiners {
		broken(!n.refused(), "one group: a joining router with another %s ended with code %d after %v, want %d; named setting and values: %v; %d members lost their incarnation",
			n.Setting, n.Code, n.Took.Round(time.Millisecond), refusedCode, n.Named, n.Lost)
	}
	// Clocks are steered by process, not by machine: auditors then find the intervals of workers implausible.
	broken(!o.slewed() && r.AuditHandlings == 0, "the live auditors compared nothing: this run proves nothing about them")
	broken(r.AuditOverlaps > r.Overlaps+r.Woken, "the live auditors logged %d overlaps, the journals have %d, and %d with a stopped process", r.AuditOverlaps, r.Overlaps, r.Woken)
	broken(r.failed != nil, "nobody blocked: %v", r.failed)
	if o.Stubborn {
		broken(o.Share > 0 && r.StaleRefused == 0, "no application tried a stale write: this run proves nothing about the sinks")
		broken(o.Share > 0 && r.StaleRefusedSameToken == 0 && r.Faults[kindCrashWorker] > 0, "no worker tried a stale write after another one of its member: this run proves nothing about fences within a member")
		return
	}
	r.judgeTimes(o, broken)
	broken(r.Overlaps > 0, "exclusive: %d times two handlers of one key ran at the same time, for up to %v ms", r.Overlaps, r.OverlapMaxMS)
}

// judgeCalls records the broken promises to callers.
func (r *result) judgeCalls(o options, broken func(is bool, format string, args ...any)) {
	c := &r.Calls
	broken(o.Calls > 0 && c.Answers[replied] == 0, "no call was replied to: this run proves nothing about calls")
	broken(c.OnceAgain > 0, "once: %d calls without an id were started more than once, such as %q", c.OnceAgain, c.Examples)
	broken(c.RunNotRun > 0, "not run: %d calls have run, and their callers heard that they never would, such as %q", c.RunNotRun, c.Examples)
	broken(c.UnrunReplies > 0, "answers: %d calls have the answer of a handler that did not end so, such as %q", c.UnrunReplies, c.Examples)
	broken(c.WrongReplies > 0, "answers: %d calls have the reply of another one, such as %q", c.WrongReplies, c.Examples)
	broken(c.Strange > 0, "%d calls were handled that nobody made, such as %q", c.Strange, c.Examples)
}

// judgeReservations records the broken promises to holders.
func (r *result) judgeReservations(o options, broken func(is bool, format string, args ...any)) {
	c := &r.Reservations
	broken(o.Reservations > 0 && c.Released == 0, "no reservation was granted and released: this run proves nothing about reservations")
	broken(o.Reservations > 0 && c.Covered == 0, "no reservation with a ttl was granted: this run proves nothing about them")
	broken(c.Twice > 0, "once: %d reservations had two answers, such as %q", c.Twice, c.Examples)
	broken(c.Backward > 0, "fences: %d reservations had one that was not greater than those before, such as %q", c.Backward, c.Examples)
	broken(c.Early > 0, "deadlines: %d times a key was given away before that of its reservation, such as %q", c.Early, c.Examples)
	broken(c.Overdue > 0, "deadlines: %d holders went on after theirs, such as %q", c.Overdue, c.Examples)
}

// judgeFirings records the broken promises of schedules and timers.
func (r *result) judgeFirings(o options, broken func(is bool, format string, args ...any)) {
	f, t := &r.Firings, &r.Timers
	broken(o.Schedules > 0 && f.Ran == 0, "no schedule has run: this run proves nothing about schedules")
	broken(f.Unrun > 0, "schedules: %d times did not run, such as %q", f.Unrun, f.Examples)
	broken(f.Early > 0, "schedules: %d runs began before their time, such as %q", f.Early, f.Examples)
	broken(f.Late > 0, "schedules: %d runs began later than their policy permits, such as %q", f.Late, f.Examples)
	broken(f.Stalled > 0, "schedules: %d times ran long after they were due and the group was whole, such as %q", f.Stalled, f.Examples)
	broken(f.Twice > 0, "schedules: %d runs of a time that was done, and whose owner was no victim, such as %q", f.Twice, f.Examples)
	broken(f.Strange > 0, "schedules: %d runs of a time that no schedule has, such as %q", f.Strange, f.Examples)
	broken(o.Timers > 0 && t.Ran == 0, "no timer was handled: this run proves nothing about timers")
	broken(t.Unrun > 0, "timers: %d were set or sent, and never handled, such as %q", t.Unrun, t.Examples)
	broken(t.Early > 0, "timers: %d handlings began before their time, such as %q", t.Early, t.Examples)
	if t.Twice > 0 { // delivery is at least once
		r.Oddities = append(r.Oddities, fmt.Sprintf("timers: %d were handled again, and their owner was no victim, such as %q", t.Twice, t.Examples))
	}
	broken(t.Strange > 0, "timers: %d were handled that nobody has set, such as %q", t.Strange, t.Examples)
	broken(t.NotSent > 0, "sent: %d were handled, and their sender heard that they were not published, such as %q", t.NotSent, t.Examples)
}

// The times that --limits holds a run to, in milliseconds.
const (
	killMax      = 2500 // p99 of takeovers that the peers have evidence for: sockets close
	powerMax     = 3500 // p99 of takeovers without evidence but silence
	cutMaxAll    = 4000 // p99 of takeovers after a cut from all members and the broker
	handoffMax   = 50   // p99 in planned changes
	stillMax     = 100  // the longest for keys that do not move
	deployMax    = 1000 // the longest for any event in a rolling deploy
	resumeMax    = 1000 // the longest after a broker's restart
	samplesLeast = 20   // fewer samples prove nothing
)

// judgeTimes holds the run to the limits, if it is asked for: they mean something only
// on a machine that does nothing else.
func (r *result) judgeTimes(o options, broken func(is bool, format string, args ...any)) {
	if !o.Limits {
		return
	}
	limit := func(what string, s spread, value, most float64) {
		broken(s.Count >= samplesLeast && value > most, "%s: %v ms, want at most %v ms", what, value, most)
	}
	limit("takeover after a kill, p99", r.TakeoverMS["kill"], r.TakeoverMS["kill"].P99, killMax)
	limit("takeover after a loss of power, p99", r.TakeoverMS["power"], r.TakeoverMS["power"].P99, powerMax)
	limit("takeover after a full cut, p99", r.TakeoverMS["cut all"], r.TakeoverMS["cut all"].P99, cutMaxAll)
	limit("graceful handoff, p99", r.HandoffMS, r.HandoffMS.P99, handoffMax)
	limit("keys that do not move", r.StillMS, r.StillMS.Max, stillMax)
	limit("waits in a deploy", r.DeployMS, r.DeployMS.Max, deployMax)
	broken(r.ResumeMS.Max > resumeMax, "after a broker's restart: %v ms, want at most %v ms", r.ResumeMS.Max, resumeMax)
	broken(r.MovedKeys[kindBroker] > 0, "a broker's restart has moved %d keys, want none", r.MovedKeys[kindBroker])
}

// tell prints the result, and returns an error if a promise broke.
func (r *result) tell(w io.Writer, o options) error {
	r.judge(o)
	r.summary(w)
	if o.JSON {
		if err := json.NewEncoder(w).Encode(r); err != nil {
			return err
		}
	}
	if len(r.Broken) == 0 {
		return nil
	}
	errs := make([]error, len(r.Broken))
	for i, b := range r.Broken {
		errs[i] = errors.New(b)
	}
	return fmt.Errorf("%w\nreplay: %s", errors.Join(errs...), r.Replay)
}

func (r *result) summary(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-22s %s\n", name, fmt.Sprintf(format, args...))
	}
	for _, k := range kinds {
		if n := r.Faults[k]; n > 0 {
			line("faults: "+string(k), "%d (%d keys moved in rounds of their own)", n, r.MovedKeys[k])
		}
	}
	line("events", "%d, handled %d in %.0f s (%.0f/s), lost %d, duplicates %d, unsure %d", r.Events, r.Handled, r.Seconds, r.Rate, r.Lost, r.Duplicates, r.Unsure)
	line("calls", "%v", &r.Calls)
	line("reservations", "%v", &r.Reservations)
	line("schedules", "%v", &r.Firings)
	line("timers", "%v", &r.Timers)
	for _, late := range []struct {
		what string
		ms   map[string]spread
	}{{"late firings: ", r.Firings.LatenessMS}, {"late timers: ", r.Timers.LatenessMS}} {
		for _, class := range slices.Sorted(maps.Keys(late.ms)) {
			line(late.what+class, "%v", late.ms[class])
		}
	}
	line("overlaps", "%d, the longest %v ms; %d more stood still in a stopped process", r.Overlaps, r.OverlapMaxMS, r.Woken)
	for _, e := range r.examples {
		line("", "key %s, events %v, %v long, %v", e.Key, e.Events, e.Length, e.Paths)
	}
	if r.AuditHandlings == 0 {
		line("live auditors", "compared nothing: with slew the clocks of a machine's processes differ")
	} else {
		line("live auditors", "%d overlaps in %d handlings", r.AuditOverlaps, r.AuditHandlings)
	}
	line("sinks", "%d claims and writes accepted, %d of them stale (%d by one owner); %d refused (%d by one owner)", r.SinkWrites, r.StaleTokenWrites, r.StaleSameToken, r.StaleRefused, r.StaleRefusedSameToken)
	line("stale handlings", "%d, of which %d after a later delivery by the same owner", r.StaleEnded, r.StaleEndedSameToken)
	if r.ClockRateError >= steeredLeast {
		line("steered clocks", "by up to %.1f %%", 100*r.ClockRateError)
	}
	for _, n := range r.Joiners {
		line("joining router: "+n.Setting, "ended with code %d after %v", n.Code, n.Took.Round(time.Millisecond))
	}
	for _, class := range slices.Sorted(maps.Keys(r.TakeoverMS)) {
		line("takeover: "+class, "%v", r.TakeoverMS[class])
	}
	line("graceful handoff", "%v", r.HandoffMS)
	line("keys that do not move", "%v", r.StillMS)
	line("waits in a deploy", "%v", r.DeployMS)
	line("after broker restart", "%v", r.ResumeMS)
	line("stranded", "%v", r.StrandedMS)
	line("long, unexplained", "%v", r.LongMS)
	for _, odd := range r.Oddities {
		line("odd", "%s", odd)
	}
	if len(r.Broken) == 0 {
		line("verdict", "%s", r.verdict)
	}
	for _, b := range r.Broken {
		line("BROKEN", "%s", b)
	}
}

// String tells the calls in one line.
func (c *callCounts) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d, %d of them without an id; %d repeats; %d handlings, %d calls with an id ran again;", c.Made, c.Once, c.Repeats, c.Started, c.RanAgain)
	for _, a := range slices.Sorted(maps.Keys(c.Answers)) {
		fmt.Fprintf(&text, " %s %d", a, c.Answers[a])
	}
	for _, code := range slices.Sorted(maps.Keys(c.Codes)) {
		fmt.Fprintf(&text, " (%s %d)", code, c.Codes[code])
	}
	return text.String()
}

// String tells a spread in one line.
func (s spread) String() string {
	if s.Count == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, max %.1f ms (%d)", s.P50, s.P99, s.Max, s.Count)
}

// overlapLine is the message by which a live auditor logs an overlap.
const overlapLine = `handlers of one key overlapped`

var fenceLogged = regexp.MustCompile(`fence ([0-9]+\.[0-9]+)`)

// overlapsLogged adds the overlaps of a router's log to pairs, by their two fences.
func overlapsLogged(log string, pairs map[string]bool) {
	for line := range strings.Lines(log) {
		if !strings.Contains(line, overlapLine) {
			continue
		}
		var fences []string
		for _, found := range fenceLogged.FindAllStringSubmatch(line, -1) {
			fences = append(fences, found[1])
		}
		if slices.Sort(fences); len(fences) != 2 {
			fences = []string{line} // of no fences: by itself
		}
		pairs[strings.Join(fences, " ")] = true
	}
}
