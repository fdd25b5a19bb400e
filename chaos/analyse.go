package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

// appRun is one process of an application.
type appRun struct {
	member int
	file   journal.File
}

// filesOf returns the journals of processes, and pathsOf their paths.
func filesOf(runs []appRun) []journal.File {
	files := make([]journal.File, len(runs))
	for i, r := range runs {
		files[i] = r.file
	}
	return files
}

func pathsOf(files []journal.File) []string {
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = f.Path
	}
	return paths
}

// outcome is a fault that was done.
type outcome struct {
	Fault fault         `json:"fault"`
	From  clock.Instant `json:"from_ns"`
	Until clock.Instant `json:"until_ns"` // of a stop: the process continues; of a cut: it is healed; of a kill: the restart
	Whole clock.Instant `json:"whole_ns"` // every member takes part, every partition is open
	Lone  bool          `json:"lone"`     // no other fault was near: its times are measured
}

// strandedLeast is the wait from which an event counts as stranded, if a fault may be the
// cause: a dead node's keys wait for half of it. Stranded events are no measure of the
// takeover.
const strandedLeast = 5 * time.Second

// servedLag is the time, at this load, after every next owner of a victim's partitions has
// begun to work within which the remaining keys may follow: partitions that move together open
// together. An event that comes later, and when the victim is back, was held by the victim.
const servedLag = 500 * time.Millisecond

// strandedMax is the time after the end of a fault within which its stranded events may return:
// the broker checks its connections every 30 s.
const strandedMax = 70 * time.Second

// durations are samples of a time.
type durations []time.Duration

// spread sums up samples, in milliseconds.
type spread struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

// spread sorts the samples.
func (d durations) spread() spread {
	if len(d) == 0 {
		return spread{}
	}
	slices.Sort(d)
	at := func(q float64) float64 { return milliseconds(d[min(len(d)-1, int(q*float64(len(d))))]) }
	return spread{len(d), at(0.50), at(0.99), milliseconds(d[len(d)-1])}
}

func milliseconds(d time.Duration) float64 { return float64(d.Round(100*time.Microsecond)) / 1e6 }

// times are the waits in the journals, by the fault that caused them.
//
// An event waits from the time when the broker had it, or from the end of its key's last
// handling if that was later, to its first handling. A key has moved when its fencing token is
// higher than before. Takeovers, handoffs, deploys and still keys are measured only in rounds
// with one fault.
type times struct {
	takeovers map[string]durations // by class of fault: from it to the next handling of the victim's keys
	handoffs  durations            // waits of moved keys in planned changes
	still     durations            // waits of keys that did not move in planned changes
	deploys   durations            // waits of all events sent during a rolling deploy
	stranded  durations            // waits of events that a victim held, most likely
	long      durations            // waits beyond strandedLeast that no fault explains
	resumes   durations            // after a broker's restart, from its first append to the first handling
	moved     map[kind]int         // keys that moved, in rounds of one fault
	moves     int                  // in all rounds

	refused          uint64 // claims and writes, by sinks
	refusedSameToken uint64 // of them, because of another worker of the same member
}

// classOf names the class of comparable faults that cause a takeover.
func classOf(f fault) string {
	switch f.Kind {
	case kindKill:
		if f.Variant != atApp {
			return "kill"
		}
	case kindPower:
		return "power"
	case kindPause:
		if f.Variant != atApp {
			return "pause"
		}
	case kindCut, kindHalfCut:
		return string(f.Kind) + " " + f.Variant
	}
	return ""
}

// analyse reads the journals of all applications.
func analyse(runs []appRun, outcomes []outcome, sent *publication) (*times, error) {
	paths := pathsOf(filesOf(runs))
	outcomes = slices.Clone(outcomes)
	slices.SortFunc(outcomes, func(a, b outcome) int { return int(a.From - b.From) })
	a := &analyst{
		runs: runs, outcomes: outcomes, sent: sent,
		keys: make(map[event.Key]*keyTimes), running: make(map[at]*keyTimes), seen: make([]bool, len(sent.sent)),
		begun: make(map[int64][]beginning), backs: make([][]comeback, len(outcomes)), silences: make([]silence, len(outcomes)), current: -1,
		times: &times{takeovers: make(map[string]durations), moved: make(map[kind]int)},
	}
	if err := journal.Walk(paths, a.visit); err != nil {
		return nil, err
	}
	a.finish()
	return a.times, a.countRefusals(paths)
}

// analyst follows all keys through all journals.
type analyst struct {
	runs     []appRun
	outcomes []outcome // by From
	sent     *publication

	keys     map[event.Key]*keyTimes
	running  map[at]*keyTimes
	seen     []bool                // events that were handled before
	begun    map[int64][]beginning // by token, in their order: partitions that move together have the same
	current  int                   // index of the newest outcome that has begun, -1 before
	last     clock.Instant
	backs    [][]comeback // by outcome
	silences []silence    // by outcome

	times *times
}

// beginning is the first handling of one member with a token.
type beginning struct {
	member int
	at     clock.Instant
}

// ofNoMember is the number of the member of a holder's journal.
const ofNoMember = -1

type at struct {
	file     int
	handling journal.Handling
}

type keyTimes struct {
	owners    []ownerSince
	token     int64
	member    int // of the newest handling
	lastStart clock.Instant
	lastEnd   clock.Instant
	covered   clock.Instant // until when its newest reservation with a ttl was held; Forever: it has no end yet
	running   int
}

// ownerSince is the first handling of a key with a token higher than all before.
type ownerSince struct {
	token int64
	at    clock.Instant
}

// comeback is the first handling of a key after its owner became a victim.
type comeback struct {
	start, sent clock.Instant
	token       int64
}

// silence is the longest time in which no handling began.
type silence struct{ from, until clock.Instant }

func (a *analyst) visit(s journal.Step) error {
	if s.Outcome != 0 {
		if k := a.running[at{s.File, s.Handling}]; k != nil {
			if k.lastEnd = s.At; k.covered == clock.Forever {
				k.covered = s.At
			}
			k.running--
			delete(a.running, at{s.File, s.Handling})
		}
		return nil
	}
	for a.current+1 < len(a.outcomes) && !s.At.Before(a.outcomes[a.current+1].From) {
		a.current++
	}
	begun := a.begun[s.Token]
	if member := a.runs[s.File].member; member != ofNoMember && !slices.ContainsFunc(begun, func(b beginning) bool { return b.member == member }) {
		a.begun[s.Token] = append(begun, beginning{member, s.At})
	}
	k := a.keys[s.Key]
	if k == nil {
		k = &keyTimes{token: s.Token, member: ofNoMember}
		a.keys[s.Key] = k
	} else {
		a.measure(k, s)
	}
	if n := len(k.owners); n == 0 || s.Token > k.owners[n-1].token {
		k.owners = append(k.owners, ownerSince{s.Token, s.At})
	}
	if isEvent(s.Event) { // the others come while the broker is away, or at their own times, and their keys' moves are measured with the next event
		a.last = s.At
		k.token, k.member, k.lastStart = max(k.token, s.Token), a.runs[s.File].member, s.At
	}
	if isCovered(s.Event) {
		k.covered = clock.Forever
	}
	k.running++
	a.running[at{s.File, s.Handling}] = k
	return nil
}

// measure looks at one handling of a key that was handled before.
func (a *analyst) measure(k *keyTimes, s journal.Step) {
	number := a.sent.number(s.Event)
	if number < 0 {
		return // the checker counts it as unknown
	}
	held := k.covered // the key waited for its holder, not for its next owner
	if k.covered == clock.Forever {
		k.covered = s.At // its holder was killed
	}
	sentAt := a.sent.sent[number]
	first := !a.seen[number]
	a.seen[number] = true
	moved := s.Token > k.token
	if moved {
		a.times.moves++
	}
	wait := max(0, s.At.Sub(max(a.sent.had(number), k.lastEnd))) // it may be handled before its publisher hears
	if first && k.running == 0 && wait > strandedLeast {
		a.noteLong(sentAt, s.At, wait)
	}
	if a.current < 0 {
		return
	}
	o := &a.outcomes[a.current]
	a.noteSilence(s.At)
	if !o.Lone || moved && a.begun[s.Token][0].at.Before(o.From) {
		return // the key moved in an earlier round, and shows it only now
	}
	if moved {
		a.times.moved[o.Fault.Kind]++
	}
	if classOf(o.Fault) != "" {
		if moved && k.member == o.Fault.Member && k.lastStart.Before(o.From) && wait <= strandedLeast && !held.After(o.From) {
			a.backs[a.current] = append(a.backs[a.current], comeback{s.At, sentAt, s.Token})
		}
		return
	}
	if profiles[o.Fault.Kind].graceful && k.running == 0 && first && !sentAt.Before(o.From) {
		a.noteGraceful(o, moved, sentAt, wait)
	}
}

func (a *analyst) noteGraceful(o *outcome, moved bool, sentAt clock.Instant, wait time.Duration) {
	if sentAt.After(o.Whole) {
		return
	}
	if moved {
		a.times.handoffs = append(a.times.handoffs, wait)
	} else {
		a.times.still = append(a.times.still, wait)
	}
	if o.Fault.Kind == kindDeploy {
		a.times.deploys = append(a.times.deploys, wait)
	}
}

// noteLong separates events that a victim may have held from unexplained waits.
func (a *analyst) noteLong(sentAt, start clock.Instant, wait time.Duration) {
	for _, o := range a.outcomes[:a.current+1] {
		if !profiles[o.Fault.Kind].graceful && o.From.Before(start) && sentAt.Before(o.Whole.Add(strandedMax)) {
			a.times.stranded = append(a.times.stranded, wait)
			return
		}
	}
	a.times.long = append(a.times.long, wait)
}

// noteSilence keeps the longest time without a start since the newest fault began.
func (a *analyst) noteSilence(now clock.Instant) {
	s := &a.silences[a.current]
	if from := max(a.last, a.outcomes[a.current].From); now.Sub(from) > s.until.Sub(s.from) {
		*s = silence{from, now}
	}
}

// countRefusals separates a sink's refusals because of another owner from those because of
// another worker beside the same router: in the latter case no handling with a higher token had
// begun. Only writes of events count among the latter.
func (a *analyst) countRefusals(paths []string) error {
	for _, path := range paths {
		refusals, err := readRefusals(path)
		if err != nil {
			return err
		}
		for _, r := range refusals {
			fence, err := event.ParseFence(r.fence)
			if err != nil {
				return fmt.Errorf("%s%s: %q: %w", path, refusedSuffix, r.fence, err)
			}
			a.times.refused++
			if !isEvent(r.event) {
				continue // a handler of a call that ignores the end of its call's time meets later ones of its own worker
			}
			k := a.keys[r.key]
			if k == nil || !slices.ContainsFunc(k.owners, func(o ownerSince) bool { return o.token > fence.Token && o.at.Before(r.at) }) {
				a.times.refusedSameToken++
			}
		}
	}
	return nil
}

func (a *analyst) finish() {
	for i, o := range a.outcomes {
		if o.Lone && o.Fault.Kind == kindBroker && a.silences[i].until != 0 {
			s := a.silences[i]
			a.times.resumes = append(a.times.resumes, max(0, s.until.Sub(min(s.until, a.sent.back(s.from, s.until)))))
		}
		// Keys without a waiting event show nothing about the takeover, so a key counts only if its
		// next event was sent before the first key of the victim was back.
		first, token := clock.Forever, int64(math.MaxInt64) // that of the next owners
		for _, b := range a.backs[i] {
			first, token = min(first, b.start), min(token, b.token)
		}
		var open clock.Instant // when the last next owner began to work
		if nextOwners := a.begun[token]; len(nextOwners) > 0 {
			open = nextOwners[len(nextOwners)-1].at
		}
		for _, b := range a.backs[i] {
			switch class := classOf(o.Fault); {
			case !b.sent.Before(first):
			case b.start.After(o.Until) && b.start.Sub(open) > servedLag:
				a.times.stranded = append(a.times.stranded, b.start.Sub(max(b.sent, o.From)))
			default:
				a.times.takeovers[class] = append(a.times.takeovers[class], b.start.Sub(o.From))
			}
		}
	}
}
