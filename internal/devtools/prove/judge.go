package prove

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// wakeMax is how long after a stop a handler that has lost its key may still run: it must notice the loss first.
const wakeMax = int64(200 * time.Millisecond)

// binsMax is the number of points of a plot.
const binsMax = 120

// handling is one run of the handler, by the command's clock.
type handling struct {
	member, process int
	clock           *memberClock
	event           uint64
	key             int
	token           int64
	turn            uint64
	start, end      int64
	slack           int64
	outcome         string // "": it has not ended
	uncompared      bool   // with some that ran at the time
	vague           bool   // it has no end, and that may be among the records that are missing: it ran until end at most
}

type stop struct{ from, until int64 }

// fate is what became of an event.
type fate struct {
	key       int
	published bool // or sent, without an answer
	confirmed bool
	sent      int64
	handlings []*handling // in the order of their starts
	done      []*handling // those that did it
}

// waits returns the times in which an event waited for a handler: since its publication, and since a handler was lost without a result. It does not wait for
// a handler while a failure delays its next attempt.
func (f *fate) waits(last int64) (all []stop) {
	from := f.sent
	for _, h := range f.handlings {
		all = append(all, stop{from, max(from, h.start)})
		if from = h.end; h.outcome == Done || h.outcome == Failed {
			return all
		}
	}
	return append(all, stop{from, max(from, last)})
}

// process names the handlers of one member.
type process struct{ member, number int }

// judging collects what a Verdict tells.
type judging struct {
	run       *Run
	v         *Verdict
	clocks    []*memberClock
	handlings []*handling
	byNumber  map[process]map[uint64]*handling
	killed    map[process]int64
	stops     map[process][]stop
	fates     map[uint64]*fate
	frozen    map[Overlap]bool // pairs of which one stood still, without words
	unmapped  int              // records whose time is not known
	gaps      []bool           // of each member: some of its records were lost, or have no known time
	last      int64            // newest instant
	newest    []int64          // of the records of each member
}

// Judge judges a proof.
func Judge(run *Run) *Verdict {
	j := &judging{
		run: run, clocks: clocksOf(run.ClockID, run.Members), byNumber: map[process]map[uint64]*handling{}, killed: map[process]int64{},
		stops: map[process][]stop{}, fates: map[uint64]*fate{}, frozen: map[Overlap]bool{}, newest: make([]int64, len(run.Members)), gaps: make([]bool, len(run.Members)), last: run.Until,
		v: &Verdict{
			Run: run.ID, Group: run.Group, Version: run.Version, Command: run.Command, Began: run.Began.UTC().Truncate(time.Second), Seed: run.Seed, Rate: run.Rate, Keys: run.Keys,
			Seconds: seconds(run.Until - run.From), Members: run.Members, Faults: slices.Clone(run.Faults), Remain: run.Remain,
		},
	}
	clocks := map[*memberClock]bool{}
	for i := range run.Members {
		clocks[j.clocks[i]] = true
		j.read(i)
		j.v.Audit.add(run.Members[i].Audit)
	}
	j.v.Machines = len(clocks)
	j.finish()
	j.perKey()
	j.perEvent()
	j.perFault()
	j.series()
	j.decide()
	return j.v
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// read reads the records of one member.
func (j *judging) read(member int) {
	c := j.clocks[member]
	j.gaps[member] = j.run.Members[member].Lost > 0 || j.run.Members[member].Refused > 0
	for i := range j.run.Members[member].Records {
		r := &j.run.Members[member].Records[i]
		at, slack, ok := c.at(r.At)
		if !ok {
			j.unmapped++
			j.gaps[member] = true
			continue
		}
		j.v.Slack = max(j.v.Slack, seconds(slack))
		j.last = max(j.last, at)
		j.newest[member] = max(j.newest[member], at)
		who := process{member, r.Process}
		switch r.Kind {
		case WasPublished, WasSent:
			f := j.fate(r.Event, r.Key)
			f.published, f.confirmed, f.sent = true, r.Kind == WasPublished, at
		case HasStarted:
			h := &handling{member: member, process: r.Process, clock: c, event: r.Event, key: r.Key, token: r.Token, turn: r.Turn, start: at, slack: slack}
			j.handlings = append(j.handlings, h)
			if j.byNumber[who] == nil {
				j.byNumber[who] = map[uint64]*handling{}
			}
			j.byNumber[who][r.Handling] = h
		case HasEnded:
			if h := j.byNumber[who][r.Handling]; h != nil {
				h.end, h.outcome, h.slack = at, r.Outcome, max(h.slack, slack)
			}
		case WasKilled:
			j.killed[who] = at
		case WasStopped:
			until, _, _ := c.at(r.Until)
			j.stops[who] = append(j.stops[who], stop{at, max(at, until)})
		case EndedByItself:
			j.run.Trouble = append(j.run.Trouble, fmt.Sprintf("%s: %s", j.run.Members[member].Name, r.Text))
		case FaultBegan:
			for n := range j.v.Faults {
				if r.Fault != nil && j.v.Faults[n].Number == r.Fault.Number && j.v.Faults[n].Member == j.run.Members[member].Name {
					j.v.Faults[n].Begun = seconds(at - j.run.From)
				}
			}
		}
	}
}

func (j *judging) fate(event uint64, key int) *fate {
	f := j.fates[event]
	if f == nil {
		f = &fate{key: key}
		j.fates[event] = f
	}
	return f
}

// finish gives an end to handlings that have none: that of their process, or that of the proof. If that was cut short, the newest record of their member.
func (j *judging) finish() {
	for _, h := range j.handlings {
		if h.outcome != "" {
			continue
		}
		h.end = j.last
		h.vague = j.gaps[h.member]
		if j.run.Cut {
			h.end = max(h.start, j.newest[h.member])
		}
		if at, ok := j.killed[process{h.member, h.process}]; ok {
			h.end = max(h.start, at)
			j.v.Died++
		}
	}
	slices.SortFunc(j.handlings, func(a, b *handling) int { return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.turn, b.turn)) })
	for _, stops := range j.stops {
		slices.SortFunc(stops, func(a, b stop) int { return cmp.Compare(a.from, b.from) })
		for i := 1; i < len(stops); i++ { // stoodStill looks at one
			stops[i].until = max(stops[i].until, stops[i-1].until)
		}
	}
}

// perKey compares the handlings of each key.
func (j *judging) perKey() {
	byKey := map[int][]*handling{}
	for _, h := range j.handlings {
		byKey[h.key] = append(byKey[h.key], h)
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		var running []*handling
		var before *handling
		leftUntil := int64(math.MinInt64) // when the last of those ends with which no more are compared
		j.fences(byKey[key])
		for _, h := range byKey[key] {
			running = slices.DeleteFunc(running, func(r *handling) bool { return r.end+between(r, h)+callMax < h.start })
			for _, r := range running {
				j.pair(r, h)
			}
			if leftUntil >= h.start-h.slack {
				h.uncompared = true
			}
			running = append(running, h)
			if len(running) > runningMax {
				i := leave(running)
				leftUntil = max(leftUntil, running[i].end+running[i].slack+callMax)
				running = slices.Delete(running, i, i+1)
			}
			if before != nil && before.member != h.member {
				j.v.Moves++
			}
			before = h
		}
		// A sink keeps the greatest fence of each key that it has seen begin, which is the strictest there is.
		for i, h := range byKey[key] {
			if h.outcome != Done {
				continue
			}
			for n, later := range byKey[key][i+1:] {
				if later.start >= h.end {
					break
				}
				if n == runningMax {
					h.uncompared = true
					break
				}
				if later.start+between(h, later) < h.end && fence(h, later) < 0 {
					j.v.Refused++
					break
				}
			}
		}
	}
}

// leave returns the one of too many running handlings that is compared no more: one that shows no overlap, else the one that ends first.
func leave(running []*handling) int {
	first := 0
	for i, r := range running {
		switch best := running[first]; {
		case r.vague && best.vague, !r.vague && !best.vague:
			if r.end < best.end {
				first = i
			}
		case r.vague:
			first = i
		}
	}
	return first
}

// fences compares the fence of each handling of a key with those that began before it, whatever the clocks say.
func (j *judging) fences(all []*handling) {
	greatest := make([]*handling, len(all)) // of those up to each
	most := int64(0)                        // slack
	for i, h := range all {
		most = max(most, h.slack)
		if greatest[i] = h; i > 0 && fence(greatest[i-1], h) >= 0 {
			greatest[i] = greatest[i-1]
		}
	}
	for i, h := range all {
		if i == 0 || greatest[i] == h {
			continue // it is greater than all before
		}
		for n := i - 1; n >= 0; n-- {
			earlier := all[n]
			if i-n > runningMax {
				h.uncompared = true
				break
			}
			if h.start-earlier.start > h.slack+most {
				earlier, n = greatest[n], 0 // this one and all before it began earlier
			}
			if h.start-earlier.start > between(earlier, h) && fence(earlier, h) >= 0 {
				j.v.Back++
				j.example("the fence of a key went back: %s began after %s", j.words(h), j.words(earlier))
				break
			}
		}
	}
}

// between bounds the error of the order of two handlings: none if one clock has timed both.
func between(a, b *handling) int64 {
	if a.clock == b.clock {
		return 0
	}
	return a.slack + b.slack
}

// fence compares the fences of two handlings.
func fence(a, b *handling) int {
	return cmp.Or(cmp.Compare(a.token, b.token), cmp.Compare(a.turn, b.turn))
}

// pair judges two handlings of one key of which later did not begin first.
func (j *judging) pair(earlier, later *handling) {
	from, until := max(earlier.start, later.start), min(earlier.end, later.end)
	slack := between(earlier, later)
	frozen := j.stoodStill(earlier, from, until) || j.stoodStill(later, from, until)
	if frozen {
		hash, a, b := partition.HashOf(keyName(earlier.key)).String(), event.Fence{Token: earlier.token, Turn: earlier.turn}.String(), event.Fence{Token: later.token, Turn: later.turn}.String()
		j.frozen[Overlap{KeyHash: hash, Fences: [2]string{a, b}}], j.frozen[Overlap{KeyHash: hash, Fences: [2]string{b, a}}] = true, true
	}
	switch {
	case earlier.vague || later.vague || until-from <= -slack:
	case until-from <= slack:
		if slack > 0 {
			j.v.Undecided++
		}
	case frozen:
		j.v.Frozen++
	default:
		j.v.Overlaps++
		j.example("two handlers of a key ran at once for %.3f ms: %s and %s", float64(until-from-slack)/1e6, j.words(earlier), j.words(later))
	}
}

// callMax is by how much the live auditor's interval of a handling may be longer than the handler's own: it has the call around it.
const callMax = int64(5 * time.Millisecond)

// stoodStill reports whether the process of h was stopped for the whole time, up to the moment in which a handler notices that it has lost its key.
func (j *judging) stoodStill(h *handling, from, until int64) bool {
	stops := j.stops[process{h.member, h.process}]
	i, _ := slices.BinarySearchFunc(stops, min(from, until), func(s stop, at int64) int {
		if s.from <= at {
			return -1
		}
		return 1
	})
	return i > 0 && max(from, until) <= stops[i-1].until+wakeMax
}

func (j *judging) words(h *handling) string {
	return fmt.Sprintf("event %d.%d of %s at %s (process %d, fence %d.%d, %.3f s to %.3f s, %s)", h.event>>40, h.event&(1<<40-1), keyName(h.key), j.run.Members[h.member].Name,
		h.process, h.token, h.turn, seconds(h.start-j.run.From), seconds(h.end-j.run.From), cmp.Or(h.outcome, "no end"))
}

func (j *judging) example(format string, args ...any) {
	if len(j.v.Examples) < examplesMax {
		j.v.Examples = append(j.v.Examples, fmt.Sprintf(format, args...))
	}
}

// perEvent finds out what became of each event.
func (j *judging) perEvent() {
	v := j.v
	v.Handlings = len(j.handlings)
	for _, h := range j.handlings {
		f := j.fate(h.event, h.key)
		f.handlings = append(f.handlings, h)
		if h.uncompared {
			v.Uncompared++
		}
		switch h.outcome {
		case Done:
			f.done = append(f.done, h)
		case Failed:
			v.Failed++
		case Cancelled:
			v.Cancelled++
		}
		if !f.published {
			v.Foreign++
		}
	}
	for _, event := range slices.Sorted(maps.Keys(j.fates)) {
		f := j.fates[event]
		switch {
		case !f.published:
			j.example("an event was handled that no member published: %d.%d of prove-%d", event>>40, event&(1<<40-1), f.key)
			continue
		case f.confirmed:
			v.Published++
		default:
			v.Unknown++
		}
		switch {
		case len(f.done) > 0:
			v.Handled++
		case f.confirmed:
			v.Lost++
			j.example("an event was lost: %d.%d of prove-%d, published at %.3f s", event>>40, event&(1<<40-1), f.key, seconds(f.sent-j.run.From))
		}
		for i := 1; i < len(f.done); i++ { // handlings are in the order of their start
			v.Duplicates++
			if !j.explained(f.done[i-1], f.done[i]) {
				v.Unexplained++
			}
		}
	}
}

// explained reports whether a fault can have lost the result of the first of two handlings, or its ack, and counts it for that fault.
func (j *judging) explained(first, second *handling) bool {
	from, until := seconds(first.start-j.run.From), seconds(second.start-j.run.From)
	for i := range j.v.Faults {
		f := &j.v.Faults[i]
		if f.Kind != Drain && f.From <= until && (f.Ready == 0 || f.Ready >= from) {
			f.Duplicates++
			return true
		}
	}
	return false
}

// perFault finds the waits of events that waited during each fault.
func (j *judging) perFault() {
	for i := range j.v.Faults {
		f := &j.v.Faults[i]
		from, until := j.run.From+int64(f.From*1e9), j.last
		if f.Ready != 0 {
			until = j.run.From + int64(f.Ready*1e9)
		}
		var waits []float64
		for _, one := range j.fates {
			if !one.published {
				continue
			}
			for _, w := range one.waits(j.last) {
				if w.from <= until && w.until >= from {
					waits = append(waits, seconds(w.until-w.from))
				}
			}
		}
		slices.Sort(waits)
		f.Events = len(waits)
		f.Waited, f.WaitedP50 = quantile(waits, 1), quantile(waits, 0.5)
		at := j.run.From + int64(cmp.Or(f.Begun, f.From)*1e9)
		for _, h := range j.handlings {
			if j.run.Members[h.member].Name == f.Member && h.start <= at && h.end >= at {
				f.Running++
			}
		}
	}
}

// quantile returns a value of an ascending list, 0 of an empty one.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// series makes the points of the plots.
func (j *judging) series() {
	length := max(1, j.run.Until-j.run.From)
	n := int(min(binsMax, max(1, length/int64(time.Second))))
	width := length/int64(n) + 1
	bins := make([]Bin, n)
	waits, latencies := make([][]float64, n), make([][]float64, n)
	in := func(at int64) (int, bool) {
		i := int((at - j.run.From) / width)
		return i, at >= j.run.From && i < n
	}
	per := 1 / seconds(width)
	for _, f := range j.fates {
		if !f.published {
			continue
		}
		if i, ok := in(f.sent); ok && f.confirmed {
			bins[i].Published += per
		}
		if len(f.handlings) > 0 {
			if i, ok := in(f.handlings[0].start); ok {
				waits[i] = append(waits[i], seconds(max(0, f.handlings[0].start-f.sent)))
			}
		}
		if len(f.done) > 0 {
			if i, ok := in(f.done[0].end); ok {
				latencies[i] = append(latencies[i], seconds(max(0, f.done[0].end-f.sent)))
				bins[i].Done += per
			}
		}
	}
	for i := range bins {
		slices.Sort(waits[i])
		slices.Sort(latencies[i])
		b := &bins[i]
		b.At = seconds(int64(i)*width + width/2)
		b.WaitP50, b.WaitP99, b.WaitMax = quantile(waits[i], 0.5), quantile(waits[i], 0.99), quantile(waits[i], 1)
		b.LatencyP50, b.LatencyP99 = quantile(latencies[i], 0.5), quantile(latencies[i], 0.99)
	}
	j.v.Series = bins
}

// decide draws the conclusions.
func (j *judging) decide() {
	v := j.v
	promise := func(name string, held bool, format string, args ...any) {
		v.Checks = append(v.Checks, Check{Name: name, Held: held, Says: fmt.Sprintf(format, args...), Kind: "promise"})
	}
	exercise := func(name string, held bool, format string, args ...any) {
		v.Checks = append(v.Checks, Check{Name: name, Held: held, Says: fmt.Sprintf(format, args...), Kind: "exercise"})
	}
	whole := promise // for what only all records together can show
	if j.run.Cut {
		whole = func(name string, held bool, format string, args ...any) {
			exercise(name, held, "not known, since the proof was cut short: "+format, args...)
		}
	}
	records := whole // for what a single missing record can feign
	if slices.Contains(j.gaps, true) {
		records = func(name string, held bool, format string, args ...any) {
			exercise(name, held, "not known, since records are missing: "+format, args...)
		}
	}
	promise("one handler of a key at a time, by the handlers' own intervals", v.Overlaps == 0,
		"%d overlaps in %d handlings; %d pairs of which one stood still in a stopped process; %d that the clocks cannot tell", v.Overlaps, v.Handlings, v.Frozen, v.Undecided)
	stray := j.stray()
	promise("one handler of a key at a time, by the live auditor", stray == 0,
		"%d overlaps, of which one side stood still in a stopped process in all but %d; it compared %d handlings, some at several members", v.Audit.Overlaps, stray, v.Audit.Handlings)
	records("no event is lost", v.Lost == 0, "%d of %d published events were not handled", v.Lost, v.Published)
	records("no event from elsewhere", v.Foreign == 0, "%d handlings of events that no member published", v.Foreign)
	promise("fences grow", v.Back == 0, "%d handlings of %d had a fence that was not greater than an earlier one of their key", v.Back, v.Handlings)
	promise("no assertion of a router failed", v.Audit.InvariantFailures == 0, "%d failed", v.Audit.InvariantFailures)
	var drained, open, lost int
	for _, m := range v.Members {
		open, lost = open+m.Open, lost+m.Lost
		if m.Drained {
			drained++
		}
	}
	whole("everything is settled in the end", drained == len(v.Members) && open == 0, "%d of %d members have drained; %d events are not settled", drained, len(v.Members), open)
	recovered := 0
	for _, f := range v.Faults {
		if f.Ready != 0 {
			recovered++
		}
	}
	whole("the group recovers from each fault", recovered == len(v.Faults), "%d of %d times all members were ready again", recovered, len(v.Faults))

	trouble := len(j.run.Trouble)
	exercise("the proof itself went well", trouble == 0 && lost == 0 && j.unmapped == 0 && v.Uncompared == 0, "%s",
		cmp.Or(strings.Join(j.run.Trouble[:min(trouble, examplesMax)], "; "), fmt.Sprintf("%d records were lost, %d have no known time; %d handlings were not compared with all others", lost, j.unmapped, v.Uncompared)))
	exercise("events were handled", v.Handled > 0, "%d events of %d keys", v.Handled, v.Keys)
	exercise("faults happened", len(v.Faults) > 0, "%d", len(v.Faults))
	running := 0
	for _, f := range v.Faults {
		running += f.Running
	}
	exercise("faults hit running handlers", running > 0, "%d handlers ran where a fault began", running)
	exercise("keys moved between members", v.Moves > 0, "%d times", v.Moves)
	exercise("the live auditor watched", v.Audit.Handlings > 0, "it compared %d handlings", v.Audit.Handlings)
	v.Held, v.Exercised = true, true
	for _, c := range v.Checks {
		if c.Kind == "promise" {
			v.Held = v.Held && c.Held
		} else {
			v.Exercised = v.Exercised && c.Held
		}
	}
	if v.Unexplained > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d duplicates have no fault between their handlings. Delivery is at least once, so no promise is broken; a restart of the broker or a slow machine causes them.", v.Unexplained))
	}
	if v.Undecided > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d pairs of handlings lie closer together than the clocks of two machines can tell (%.1f ms); the live auditor measures these clocks better.", v.Undecided, 1e3*v.Slack))
	}
	if v.Uncompared > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d handlings were not compared with all others of their key that may have run at the time, as these were more than %d: what is wrong among them is not counted.", v.Uncompared, runningMax))
	}
	if v.Frozen > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d handlings stood still in a stopped process while their key went on elsewhere: they did nothing meanwhile, and the fence refuses what they write afterwards.", v.Frozen))
	}
	if len(v.Remain) > 0 {
		v.Notes = append(v.Notes, "topics that may be left: "+strings.Join(v.Remain, ", "))
	}
}

// stray counts the overlaps of the live auditor that are not pairs of which one side stood still. A handler that stood still reports its interval when it wakes, and
// each member that the key has gone to may count the pair; of many at a time a router shows only the newest.
func (j *judging) stray() (n uint64) {
	for _, m := range j.run.Members {
		for _, o := range m.Audit.Found {
			says := o.Says
			if o.Says = ""; !j.frozen[o] {
				n++
				j.example("the live auditor: %s", says)
			}
		}
	}
	pairs := uint64(len(j.frozen) / 2 * len(j.run.Members))
	if j.v.Audit.Overlaps > pairs {
		n = max(n, j.v.Audit.Overlaps-pairs)
	}
	return n
}
