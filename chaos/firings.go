package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/pipeline/schedule"
)

// firingPrefix and timerPrefix begin the names of firings and of timers in journals, where events have numbers.
const (
	firingPrefix = "firing:"
	timerPrefix  = "timer:"
)

// isEvent reports whether a journal's name is that of one of the publisher's events.
func isEvent(name string) bool { return !strings.Contains(name, ":") }

// firingName is the name of a firing in journals: its schedule, its time, and how many earlier ones it stands for.
func firingName(name string, at time.Time, missed int) string {
	text := firingPrefix + name + ":" + strconv.FormatInt(at.Unix(), 10)
	if missed > 0 {
		text += "+" + strconv.Itoa(missed)
	}
	return text
}

func parseFiring(text string) (name string, at time.Time, missed int, ok bool) {
	rest, ok := strings.CutPrefix(text, firingPrefix)
	colon := strings.LastIndexByte(rest, ':')
	if !ok || colon < 0 {
		return "", at, 0, false
	}
	seconds, more, has := strings.Cut(rest[colon+1:], "+")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err == nil && has {
		missed, err = strconv.Atoi(more)
	}
	return rest[:colon], time.Unix(unix, 0).UTC(), missed, err == nil
}

// plannedSchedules returns the schedules that every application declares: half of them have the policy all, of the rest two in three the policy latest.
func plannedSchedules(n int) ([]schedule.Definition, error) {
	all := make([]schedule.Definition, 0, n)
	for i := range n {
		d := schedule.Definition{
			Missed: schedule.All, Every: 10 * time.Second,
			Grace:  []time.Duration{10 * time.Minute, time.Hour, 24 * time.Hour}[i%3], // longer than any outage
			Jitter: []time.Duration{0, 2 * time.Second, 0, 9 * time.Second}[i%4],
		}
		if k := i - (n+1)/2; k >= 0 {
			d.Missed = schedule.Latest
			if k%3 == 2 {
				d.Missed = schedule.Skip
			}
			d.Every = []time.Duration{10 * time.Second, 15 * time.Second}[k%2]
			d.Grace = []time.Duration{30 * time.Second, 5 * time.Minute, time.Hour}[(k/2)%3]
			d.Jitter = []time.Duration{0, time.Second, 7 * time.Second}[(k/3)%3]
		}
		d.Name = fmt.Sprintf("%v-%d", d.Missed, i)
		parsed, err := d.Parse()
		if err != nil {
			return nil, err
		}
		all = append(all, parsed)
	}
	return all, nil
}

const (
	timerMax     = 20 * time.Second // from the handling that sets one
	timersAtOnce = 3                // of one event
)

// timerName is the name of the nth timer of an event, in its payload and in journals.
func timerName(event string, n int) string { return timerPrefix + event + ":" + strconv.Itoa(n) }

// timersOf returns after which times the timers of an event are due: the same each time. A share of the events has some.
func timersOf(event string, share float64) []time.Duration {
	hash := xxhash.Sum64String(timerPrefix + event)
	if float64(hash%10_000) >= share*10_000 {
		return nil
	}
	hash /= 10_000
	after := make([]time.Duration, 1+hash%timersAtOnce)
	for i := range after {
		hash = hash*6364136223846793005 + 1442695040888963407
		after[i] = time.Duration(hash>>32) % (timerMax / time.Millisecond) * time.Millisecond
	}
	return after
}

// sent records the end of an event that a caller has published with Send.
type sent string

// What became of them.
const (
	sentSafe  sent = "sent"
	sentNot   sent = "not_sent"
	sentMaybe sent = "maybe_sent"
)

// sendMade is one event that a caller has published, with all its repeats.
type sendMade struct {
	withID bool
	after  time.Duration
	begun  clock.Instant // before the first try
	tries  int
	answer sent
}

// sendName is the name of an event that a caller has published: its payload.
func sendName(number int) string { return timerName("send", number) }

// firingCounts are the firings of a run by what became of them.
type firingCounts struct {
	Schedules int `json:"schedules"`
	Times     int `json:"times"`    // between the first whole group and the end of the load
	Ran       int `json:"ran"`      // of them, with a run that was done
	Covered   int `json:"covered"`  // latest: a later one ran, and told so
	Untold    int `json:"untold"`   // latest: a later one ran after a fault, and did not tell
	Skipped   int `json:"skipped"`  // skip: more than a minute late, after a fault
	TooLate   int `json:"too_late"` // latest: nothing ran within the grace, after a fault
	Started   int `json:"started"`  // runs
	Again     int `json:"again"`    // runs of a time that was done before its owner was a victim
	Raced     int `json:"raced"`    // runs of a time that was done at a former owner of the key, which no fault had hit

	LatenessMS map[string]spread `json:"lateness_ms"` // of first runs: calm, kill if the owner of the schedule was killed, planned, else fault

	// The broken promises.
	Unrun   int `json:"unrun"`   // times that did not run, and had to
	Early   int `json:"early"`   // runs before their time
	Late    int `json:"late"`    // runs later than their policy permits, without a fault
	Stalled int `json:"stalled"` // times whose first run came long after their time and after the last fault
	Twice   int `json:"twice"`   // runs of a time that was done, and whose owner was no victim since
	Strange int `json:"strange"`
	examples

	names int // of all that were done
}

// timerCounts are the timers of a run by what became of them.
type timerCounts struct {
	Set     int          `json:"set"`     // by handlings that were done
	Sent    map[sent]int `json:"sent"`    // by callers, by answer
	Ran     int          `json:"ran"`     // timers and sent events that were done
	Started int          `json:"started"` // handlings
	Again   int          `json:"again"`   // as of firings
	Raced   int          `json:"raced"`   // as of firings

	LatenessMS map[string]spread `json:"lateness_ms"` // of first handlings, from the end of the one that set it and its time on

	// The broken promises.
	Unrun   int `json:"unrun"` // set or sent, and never done
	Early   int `json:"early"`
	Twice   int `json:"twice"`
	Strange int `json:"strange"`  // that nobody has set
	NotSent int `json:"not_sent"` // whose sender heard that they were not published
	examples

	names int
}

// The tolerances of the judge.
const (
	earlyTolerance  = 20 * time.Millisecond // timers count milliseconds, and the clocks of the run are read twice
	lateTolerance   = 2 * time.Second       // on a busy machine, between the decision to run and the start
	awayTolerance   = 5 * time.Second       // after a fault, until what a victim held has been published again
	stallMax        = 40 * time.Second      // a firing that has not come is published again after 5 s; a broker that restarts needs its time
	aroundMax       = 10 * time.Minute      // in which firings may run before the group is whole and after the load
	answerTolerance = 2 * time.Second       // after its end, in which a result may be under way when its owner becomes a victim
)

// firingRun holds the judge's data about a run's schedules, timers and clocks.
type firingRun struct {
	schedules []schedule.Definition
	share     float64 // of the events, which set timers
	sends     []sendMade

	wall        time.Time     // when the lease clock was 0
	whole, over clock.Instant // when the group was whole first, and when the load ended
}

func (f *firingRun) instant(t time.Time) clock.Instant { return clock.Instant(t.Sub(f.wall)) }

// judgeFirings reads the firings and timers of all journals.
func judgeFirings(runs []appRun, outcomes []outcome, of firingRun) (*firingCounts, *timerCounts, error) {
	j := &firingJudge{firingRun: of, runs: runs, outcomes: outcomes, open: map[at]*turnRun{}, turns: map[string][]*turnRun{}, setBy: map[string]clock.Instant{}, setTimes: map[string]int{}}
	if err := journal.Walk(pathsOf(filesOf(runs)), j.visit); err != nil {
		return nil, nil, err
	}
	return j.firings(), j.timers(), nil
}

// firingJudge collects the runs of firings and timers.
type firingJudge struct {
	firingRun
	runs     []appRun
	outcomes []outcome

	open     map[at]*turnRun
	turns    map[string][]*turnRun    // by name, without the number of missed times, in the order of their starts
	setBy    map[string]clock.Instant // when the first handling of an event was done that sets timers
	setTimes map[string]int           // how many of its handlings were done: of more than one the publisher may have sent it twice, and each copy has timers of its own
}

// turnRun is one run of a firing, or one handling of a timer or of an event that sets timers.
type turnRun struct {
	name       string // in the journal
	missed     int
	file       int
	token      int64
	start, end clock.Instant
	outcome    journal.Outcome // 0: it has no end
}

func (t *turnRun) done() bool { return t.outcome == journal.Done }

func (j *firingJudge) visit(s journal.Step) error {
	here := at{s.File, s.Handling}
	if s.Outcome != 0 {
		t := j.open[here]
		if t == nil {
			return nil
		}
		delete(j.open, here)
		if t.end, t.outcome = s.At, s.Outcome; isEvent(t.name) && t.done() {
			j.setTimes[t.name]++
			if _, known := j.setBy[t.name]; !known {
				j.setBy[t.name] = s.At
			}
		}
		return nil
	}
	t := &turnRun{name: s.Event, file: s.File, token: s.Token, start: s.At}
	switch {
	case strings.HasPrefix(s.Event, firingPrefix), strings.HasPrefix(s.Event, timerPrefix):
		name := s.Event
		if schedule, at, missed, ok := parseFiring(s.Event); ok {
			name, t.missed = firingName(schedule, at, 0), missed
		}
		j.turns[name] = append(j.turns[name], t)
	case !isEvent(s.Event) || timersOf(s.Event, j.share) == nil:
		return nil
	}
	j.open[here] = t
	return nil
}

// firings judges the runs of schedules.
func (j *firingJudge) firings() *firingCounts {
	c := &firingCounts{Schedules: len(j.schedules), LatenessMS: map[string]spread{}}
	known := map[string]bool{}
	late := map[string]durations{}
	for _, d := range j.schedules {
		j.schedule(c, d, known, late)
	}
	for name, runs := range j.turns {
		if strings.HasPrefix(name, firingPrefix) && !known[name] {
			c.Strange++
			c.example("%s ran %d times, and is no time of a schedule", name, len(runs))
		}
	}
	for class, d := range late {
		c.LatenessMS[class] = d.spread()
	}
	return c
}

// timeOf is one time of a schedule with its runs.
type timeOf struct {
	at   time.Time
	due  clock.Instant
	runs []*turnRun
	ran  *turnRun // the first that was done
}

// timesOf returns all times of a schedule that were due in the run, or have run.
func (j *firingJudge) timesOf(d schedule.Definition, known map[string]bool) (all []timeOf) {
	end := j.wall.Add(time.Duration(j.over) + aroundMax)
	for at, ok := d.Next(j.wall.Add(time.Duration(j.whole) - aroundMax)); ok && at.Before(end); at, ok = d.Next(at) {
		name := firingName(d.Name, at, 0)
		t := timeOf{at: at, due: j.instant(at.Add(d.Offset())), runs: j.turns[name]}
		known[name] = true
		for _, run := range t.runs {
			if run.done() && (t.ran == nil || run.end.Before(t.ran.end)) {
				t.ran = run
			}
		}
		if t.runs != nil || t.due.After(j.whole) && !t.due.After(j.over) {
			all = append(all, t)
		}
	}
	return all
}

// schedule judges one schedule.
func (j *firingJudge) schedule(c *firingCounts, d schedule.Definition, known map[string]bool, late map[string]durations) {
	times := j.timesOf(d, known)
	allowed := d.Grace
	if d.Missed == schedule.Skip {
		allowed = min(allowed, schedule.LateMax)
	}
	owner := ofNoMember
	for i, t := range times {
		for _, run := range t.runs {
			c.Started++
			name := run.name
			c.broken(&c.Early, run.start.Before(t.due.Add(-earlyTolerance)), "%s began %v before it was due", name, t.due.Sub(run.start))
			c.broken(&c.Late, run.start.After(t.due.Add(allowed+lateTolerance)) && !j.troubled(t.due, run.start), "%s began %v after it was due, without a fault", name, run.start.Sub(t.due))
		}
		again, raced, twice := j.doubles(t.runs)
		c.Again += again
		c.Raced += raced
		c.broken(&c.Twice, twice != "", "%s ran again after it was done, without a fault of its owner: %s", firingName(d.Name, t.at, 0), twice)
		if len(t.runs) > 0 {
			first := t.runs[0]
			stood := first.start.Sub(max(t.due, j.wholeBefore(first.start)))
			c.broken(&c.Stalled, stood > stallMax && !first.start.After(t.due.Add(allowed+lateTolerance)), "%s began %v after it was due and the group was whole", first.name, stood)
			class := j.lateClass(t.due, first.start, owner)
			late[class] = append(late[class], max(0, first.start.Sub(t.due)))
			owner = j.runs[t.runs[len(t.runs)-1].file].member
		}
		if t.ran != nil {
			c.names += countNames(t.runs)
		}
		if t.due.After(j.whole) && !t.due.After(j.over) {
			c.Times++
			j.judgeTime(c, d, times[i:], allowed)
		}
	}
}

// judgeTime judges the first of times, which had to run.
func (j *firingJudge) judgeTime(c *firingCounts, d schedule.Definition, times []timeOf, allowed time.Duration) {
	t := times[0]
	name := firingName(d.Name, t.at, 0)
	if t.ran != nil {
		c.Ran++
		return
	}
	switch d.Missed {
	case schedule.All:
		c.broken(&c.Unrun, true, "%s never ran", name)
	case schedule.Skip:
		excused := j.troubled(t.due.Add(-d.Every), t.due.Add(allowed))
		if excused {
			c.Skipped++
		}
		c.broken(&c.Unrun, !excused, "%s never ran, without a fault", name)
	case schedule.Latest:
		next := slices.IndexFunc(times, func(o timeOf) bool { return o.ran != nil })
		switch {
		case next < 0 || times[next].ran.start.After(t.due.Add(allowed+lateTolerance)):
			excused := j.troubled(t.due.Add(-d.Every), t.due.Add(allowed))
			if excused {
				c.TooLate++
			}
			c.broken(&c.Unrun, !excused, "%s never ran, nor did a later one within %v, without a fault", name, allowed)
		case times[next].ran.missed >= d.Count(t.at, times[next].at, schedule.CountMax):
			c.Covered++
		case j.troubled(t.due.Add(-d.Every), times[next].ran.start):
			c.Untold++
		default:
			c.broken(&c.Unrun, true, "%s never ran, and %s does not say that it stands for it, without a fault", name, times[next].ran.name)
		}
	}
}

// countNames counts the different names under which runs were done.
func countNames(runs []*turnRun) int {
	names := map[string]bool{}
	for _, run := range runs {
		if run.done() {
			names[run.name] = true
		}
	}
	return len(names)
}

// doubles counts the runs that began after another one was done: those after a fault that may have hit its owner, those at a later owner of the key, which had
// not got the id of the first, and an example of the others: the owner that had done it did it again.
func (j *firingJudge) doubles(runs []*turnRun) (again, raced int, twice string) {
	for i, run := range runs {
		var before *turnRun // the one that was done last
		for _, other := range runs[:i] {
			if other.done() && other.end.Before(run.start) && (before == nil || other.end.After(before.end)) {
				before = other
			}
		}
		switch {
		case before == nil:
		case j.hit(j.runs[before.file].member, before.end.Add(-answerTolerance), run.start):
			again++
		case before.token < run.token:
			raced++
		default:
			twice = fmt.Sprintf("done at %v by m%d, begun at %v by m%d", time.Duration(before.end), j.runs[before.file].member, time.Duration(run.start), j.runs[run.file].member)
		}
	}
	return again, raced, twice
}

// breaks reports whether faults of a kind break something of a member, or of the broker.
func (k kind) breaks() bool {
	p := profiles[k]
	return !p.graceful && !p.holder && k != kindCallerGivesUp && k != kindRegroup
}

// hit reports whether a fault between two instants may have cost a member what it knew of a handling that was done, or the broker acks.
func (j *firingJudge) hit(member int, from, until clock.Instant) bool {
	return slices.ContainsFunc(j.outcomes, func(o outcome) bool {
		victim := o.Fault.Member == member || profiles[o.Fault.Kind].broker
		return o.Fault.Kind.breaks() && victim && o.From.Before(until) && from.Before(o.Whole)
	})
}

// wholeBefore returns when the group was whole after the last fault that had begun before an instant; 0: there was none.
func (j *firingJudge) wholeBefore(until clock.Instant) (whole clock.Instant) {
	for _, o := range j.outcomes {
		if o.Fault.Kind.breaks() && o.From.Before(until) {
			whole = max(whole, o.Whole)
		}
	}
	return whole
}

// troubled reports whether a fault, of any member, or what it left behind, was between two instants.
func (j *firingJudge) troubled(from, until clock.Instant) bool {
	return slices.ContainsFunc(j.outcomes, func(o outcome) bool {
		return o.Fault.Kind.breaks() && o.From.Before(until) && from.Before(o.Whole.Add(strandedMax))
	})
}

// lateClass says among which a lateness counts.
func (j *firingJudge) lateClass(due, start clock.Instant, owner int) string {
	class := "calm"
	for _, o := range j.outcomes {
		near := o.From.Before(start) && due.Before(o.Whole.Add(awayTolerance))
		switch {
		case !near:
		case o.Lone && classOf(o.Fault) == "kill" && o.Fault.Member == owner && class != "fault":
			class = "kill"
		case o.Fault.Kind.breaks():
			class = "fault" // also of one that was killed soon after another fault
		case profiles[o.Fault.Kind].graceful && class == "calm":
			class = "planned"
		}
	}
	return class
}

// timers judges the handlings of timers and of sent events.
func (j *firingJudge) timers() *timerCounts {
	c := &timerCounts{Sent: map[sent]int{}, LatenessMS: map[string]spread{}}
	late := map[string]durations{}
	known := map[string]bool{}
	judge := func(name string, due clock.Instant, must bool, set int) {
		known[name] = true
		runs := j.turns[name]
		c.Started += len(runs)
		n := countNames(runs)
		c.names += n
		c.Ran += n
		c.broken(&c.Unrun, must && n == 0, "%s never ran", name)
		again, raced, twice := j.doubles(runs)
		c.Again += again
		c.Raced += raced
		if twice != "" && set > 1 {
			c.Again, twice = c.Again+1, ""
		}
		c.broken(&c.Twice, twice != "", "%s was handled again after it was done, without a fault of its owner: %s", name, twice)
		for _, run := range runs {
			c.broken(&c.Early, run.start.Before(due.Add(-earlyTolerance)), "%s began %v before it was due", name, due.Sub(run.start))
		}
		if len(runs) > 0 {
			class := j.lateClass(due, runs[0].start, ofNoMember)
			late[class] = append(late[class], max(0, runs[0].start.Sub(due)))
		}
	}
	for name, done := range j.setBy {
		for i, after := range timersOf(name, j.share) {
			c.Set++
			judge(timerName(name, i), done.Add(after), true, j.setTimes[name])
		}
	}
	for i, s := range j.sends {
		c.Sent[s.answer]++
		name := sendName(i)
		runs := len(j.turns[name])
		c.broken(&c.NotSent, s.answer == sentNot && runs > 0, "%s was handled, and its sender heard that it was not published", name)
		judge(name, s.begun.Add(s.after), s.answer == sentSafe, 1)
	}
	for name := range j.turns {
		if strings.HasPrefix(name, timerPrefix) && !known[name] {
			c.Strange++
			c.example("%s was handled, and nobody has set it", name)
		}
	}
	for class, d := range late {
		c.LatenessMS[class] = d.spread()
	}
	return c
}

// String tells the firings in one line.
func (c *firingCounts) String() string {
	return fmt.Sprintf("%d times of %d: %d ran, %d stood for by a later one (%d untold), %d skipped, %d too late; %d runs, %d again after a fault of their owner, %d at the next owner",
		c.Times, c.Schedules, c.Ran, c.Covered+c.Untold, c.Untold, c.Skipped, c.TooLate, c.Started, c.Again, c.Raced)
}

// String tells the timers in one line.
func (c *timerCounts) String() string {
	return fmt.Sprintf("%d set, %d sent, %d perhaps, %d not; %d were handled, in %d handlings, %d of them again after a fault of their owner, %d at the next owner",
		c.Set, c.Sent[sentSafe], c.Sent[sentMaybe], c.Sent[sentNot], c.Ran, c.Started, c.Again, c.Raced)
}
