package schedule

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/partition"
)

// world is the surroundings of two Books: a topic that keeps each copy until it is settled, homes that
// bring the copies to the owner and ask again, a lane that runs firings, clocks that jump, owners that change.
type world struct {
	*testing.T
	rng   *rand.Rand
	seed  uint64
	now   time.Time // true time
	nodes [2]*host
	owner int // -1: no gate is open
	pack  int // which set of definitions workers declare now

	copies []*message
	kinds  kinds
	pace   time.Duration        // the least time between two steps: what becomes due within it happens together
	once   bool                 // nothing happens that may run a firing twice
	busy   bool                 // handlers are slow at times, and get lost
	runs   map[uint64]int       // how often a firing was settled after a run
	newest map[string]time.Time // the newest time for which a schedule of that name has run
	began  map[uint64]time.Time // when a firing entered, last
	judged map[uint64]bool      // dropped by its policy, rightly
	dead   map[uint64]bool      // its retries ended in the dead letter topic
	first  map[string]time.Time // that was published
	log    []string
	seen   *rare
	caught func(string) // takes what is wrong, instead of the test; it does not return
}

// kinds are the events that a history may have.
type kinds struct{ jumps, moves, redefines, failures, copies, deadLetters bool }

// rare counts what histories went through, over all of them.
type rare struct {
	reasons                                                       [reasons]int
	enters, entersLate, missed, crashes, staleArms, rearms, jumps int
	lateArms, lostRuns, deadLetters, lateRetries                  int
}

type host struct {
	book   *Book
	offset time.Duration // of its wall clock
	open   bool
	arms   []pending
	lane   map[string]*running
	tick   time.Time // true time
}

type pending struct {
	arm Arm
	at  time.Time // when Armed is called
	err error
}

type message struct {
	firing Firing
	id     uint64
	ask    time.Time
	done   bool
	retry  time.Time // it has failed, and comes again then; zero: it has not
	told   Reason
}

type running struct {
	firing  Firing
	message *message
	end     time.Time
	how     End
}

func (w *world) failf(format string, args ...any) {
	w.Helper()
	if w.caught != nil {
		w.caught(fmt.Sprintf("seed %d: "+format, append([]any{w.seed}, args...)...))
	}
	for _, line := range w.log[max(0, len(w.log)-60):] {
		w.Log(line)
	}
	w.Fatalf("seed %d, %v: "+format, append([]any{w.seed, w.now.Format(time.TimeOnly)}, args...)...)
}

func (w *world) say(format string, args ...any) {
	w.log = append(w.log, w.now.Format("02 15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

func (h *host) wall(w *world) time.Time { return w.now.Add(h.offset) }

var packs = [][]Definition{
	{
		{Name: "latest", Every: time.Minute, Jitter: 20 * time.Second},
		{Name: "all", Every: time.Minute, Missed: All, Grace: GraceMax},
		{Name: "skip", Cron: "*/2 * * * *", Missed: Skip},
		{Name: "short", Cron: "*/7 * * * *", Grace: 10 * time.Minute, Jitter: 30 * time.Second},
		{Name: "few", Every: 20 * time.Minute, Missed: All, Grace: 30 * time.Minute},
		{Name: "once", At: time.Date(2026, 3, 29, 3, 0, 0, 0, time.UTC)},
	},
	{
		{Name: "latest", Every: 2 * time.Minute},
		{Name: "all", Every: time.Minute, Missed: All, Grace: GraceMax},
		{Name: "skip", Cron: "*/3 * * * *", Missed: Skip},
	},
}

func newWorld(t *testing.T, seed uint64, seen *rare) *world {
	w := &world{
		T: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 3, 29, 0, 0, 30, 0, time.UTC),
		runs: map[uint64]int{}, newest: map[string]time.Time{}, began: map[uint64]time.Time{}, judged: map[uint64]bool{}, dead: map[uint64]bool{}, first: map[string]time.Time{}, seen: seen, owner: -1, busy: true,
	}
	w.kinds = kinds{jumps: seed%5 == 4, moves: seed%2 == 1, redefines: seed%7 == 3, failures: seed%3 > 0, copies: seed%4 > 1, deadLetters: seed%3 == 0}
	w.once = !w.kinds.moves && !w.kinds.jumps
	w.pace = time.Second
	if w.kinds.jumps { // what a jump does is rarer
		w.pace = 200 * time.Millisecond
	}
	for i := range w.nodes {
		w.boot(i)
	}
	w.move(0)
	return w
}

// boot gives a node an empty Book, and its workers' declarations.
func (w *world) boot(i int) {
	h := w.nodes[i]
	if h == nil {
		h = &host{}
		w.nodes[i] = h
	}
	for _, r := range h.lane { // what ran is lost with its owner, settled or not
		r.message.ask = w.now.Add(time.Second)
	}
	for _, p := range h.arms { // the send may have got through
		if w.chance(2) {
			w.publish(p.arm)
		}
	}
	h.book, h.open, h.arms, h.lane, h.tick = NewBook(), false, nil, map[string]*running{}, w.now
	w.declare(i, 1)
}

func (w *world) declare(i int, worker uint64) {
	h := w.nodes[i]
	if err := h.book.Declare(h.wall(w), worker, packs[w.pack]); err != nil {
		w.failf("declare: %v", err)
	}
	h.tick = w.now
}

func (w *world) move(to int) {
	for i, h := range w.nodes {
		if h.open && i != to {
			h.open = false
			for _, d := range packs[0] {
				h.book.Closed(partition.Of(KeyOf(d.Name)))
			}
		}
	}
	if w.owner = to; to >= 0 && !w.nodes[to].open {
		h := w.nodes[to]
		h.open, h.tick = true, w.now
		for _, d := range packs[0] {
			h.book.Opened(h.wall(w), partition.Of(KeyOf(d.Name)))
		}
	}
	w.say("owner %d", to)
}

func (w *world) publish(a Arm) {
	m := &message{firing: Firing{Name: a.Definition.Name, DefinitionID: a.Definition.ID(), Time: a.Time, Missed: a.Missed}, id: a.ID}
	m.ask = later(w.now, a.Due).Add(time.Duration(w.rng.Int64N(int64(2 * time.Second))))
	if w.kinds.copies && w.chance(20) {
		m.ask = m.ask.Add(time.Duration(w.rng.Int64N(int64(3 * time.Minute)))) // the broker is slow
	}
	w.copies = append(w.copies, m)
	if w.kinds.copies && w.chance(20) {
		again := *m
		again.ask = m.ask.Add(time.Duration(w.rng.Int64N(int64(2 * time.Minute))))
		w.copies = append(w.copies, &again)
	}
	if first, ok := w.first[a.Definition.Name]; !ok || a.Time.Before(first) {
		w.first[a.Definition.Name] = a.Time
	}
}

// safe reports whether the firing is in the topic, or has run.
func (w *world) safe(d Definition, at time.Time) bool {
	id := FiringID(d, at)
	return w.runs[id] > 0 || w.dead[id] || slices.ContainsFunc(w.copies, func(m *message) bool { return m.id == id && !m.done })
}

// runTick publishes what the Book of a node wants published.
func (w *world) runTick(i int) {
	h := w.nodes[i]
	arms := h.book.Tick(h.wall(w))
	for name := range w.newest {
		if h.open && h.book.line(name) == nil {
			delete(w.newest, name) // no worker declares it for so long that its runs are forgotten
		}
	}
	if len(arms) > ArmsMax {
		w.failf("%d arms in one tick", len(arms))
	}
	for _, a := range arms {
		if slices.ContainsFunc(h.arms, func(p pending) bool { return p.arm.ID == a.ID }) {
			w.failf("%s of %v is armed twice at once", a.Definition.Name, a.Time)
		}
		if !a.Due.Equal(a.Time.Add(a.Definition.Offset())) || a.ID != FiringID(a.Definition, a.Time) {
			w.failf("arm %+v", a)
		}
		if !h.open {
			w.failf("a node arms with its gate closed")
		}
		if w.dead[a.ID] && w.once && !w.kinds.redefines {
			w.failf("%s of %v is armed again, though its retries ended in the dead letter topic", a.Definition.Name, a.Time)
		}
		w.say("node %d arms %s %v", i, a.Definition.Name, a.Time.Format(time.TimeOnly))
		p := pending{arm: a, at: w.now.Add(time.Duration(w.rng.Int64N(int64(50 * time.Millisecond))))}
		if w.kinds.failures && w.chance(6) {
			p.at = w.now.Add(time.Duration(w.rng.Int64N(int64(20 * time.Second))))
			w.seen.lateArms++
		}
		if w.kinds.failures && w.chance(6) {
			p.err = errors.New("broken")
		}
		h.arms = append(h.arms, p)
	}
	next := h.book.Next(h.wall(w))
	if !next.IsZero() && !next.After(h.wall(w)) {
		w.failf("after a Tick, Next asks for another one at once")
	}
	if h.tick = w.now.AddDate(1, 0, 0); !next.IsZero() {
		h.tick = next.Add(-h.offset)
	}
}

// runArms ends publications.
func (w *world) runArms(i int) {
	h := w.nodes[i]
	for _, p := range slices.Clone(h.arms) {
		if p.at.After(w.now) {
			continue
		}
		h.arms = slices.DeleteFunc(h.arms, func(q pending) bool { return q.arm.ID == p.arm.ID })
		if p.err == nil || w.chance(4) {
			w.publish(p.arm)
		}
		h.book.Armed(h.wall(w), p.arm.ID, p.err)
		h.tick = w.now
	}
}

// runCopies brings copies to the owner.
func (w *world) runCopies() {
	if w.owner < 0 {
		return
	}
	h := w.nodes[w.owner]
	var asking []*message
	for _, m := range w.copies {
		if !m.done && !m.ask.After(w.now) {
			asking = append(asking, m)
		}
	}
	w.rng.Shuffle(len(asking), func(i, j int) { asking[i], asking[j] = asking[j], asking[i] })
	for _, m := range asking {
		d := h.book.Arrive(h.wall(w), m.firing)
		w.seen.reasons[d.Reason]++
		if d.Reason != m.told || d.Verdict == Enter {
			w.say("%s %v asks node %d: %d %v", m.firing.Name, m.firing.Time.Format(time.TimeOnly), w.owner, d.Verdict, d.Reason)
			m.told = d.Reason
		}
		var def *Definition
		if l := h.book.line(m.firing.Name); l != nil && len(l.by) > 0 {
			def = &l.by[len(l.by)-1].def
		}
		switch d.Verdict {
		case NotYet:
			if !d.Until.After(h.wall(w)) || d.Reason == NoReason || d.Reason >= Undeclared {
				w.failf("not yet, for %v, until %v", d.Reason, d.Until)
			}
			m.ask = d.Until.Add(-h.offset)
			if h.offset != 0 && m.ask.After(w.now.Add(time.Minute)) {
				m.ask = w.now.Add(time.Minute) // clocks change; homes ask again now and then
			}
			if d.Reason == Overlap || d.Reason == Order {
				m.ask = m.ask.Add(time.Duration(w.rng.Int64N(int64(25 * time.Second))))
			}
			if w.kinds.copies && w.chance(300) { // its home dies
				m.ask = m.ask.Add(time.Minute)
			}
		case Drop:
			w.checkDrop(h, m.firing, def, d.Reason)
			m.done = true
		case Enter:
			w.checkEnter(h, m.firing, def, d)
			r := &running{firing: m.firing, message: m, end: w.now.Add(time.Duration(w.rng.Int64N(int64(10 * time.Second)))), how: End{Settled: true}}
			if w.busy && w.chance(12) {
				r.end = w.now.Add(time.Duration(w.rng.Int64N(int64(12 * time.Minute))))
			}
			if w.busy && w.chance(20) {
				r.how.Settled = false
				if w.chance(2) {
					r.how.After = time.Duration(w.rng.Int64N(int64(10 * time.Minute)))
				}
				r.how.Dead = w.kinds.deadLetters && w.chance(2)
			}
			h.lane[m.firing.Name] = r
			m.ask = w.now.AddDate(1, 0, 0)
			if w.kinds.copies && w.chance(20) {
				m.ask = w.now.Add(time.Minute) // its home dies while it runs
			}
		}
		h.tick = w.now
	}
}

func (w *world) checkEnter(h *host, f Firing, def *Definition, d Decision) {
	w.seen.enters++
	w.seen.missed += d.Missed
	switch {
	case def == nil || def.ID() != f.DefinitionID:
		w.failf("%+v enters, but is not declared so", f)
	case h.wall(w).Before(f.Time.Add(def.Offset())):
		w.failf("%s of %v enters before its time", f.Name, f.Time)
	case h.lane[f.Name] != nil:
		w.failf("%s of %v enters beside %v", f.Name, f.Time, h.lane[f.Name].firing.Time)
	}
	if reason := w.policy(h, f, *def); reason != NoReason {
		w.failf("%s of %v enters, want %v", f.Name, f.Time, reason)
	}
	if successor, ok := def.Next(f.Time); ok && !w.safe(*def, successor) {
		w.failf("%s of %v enters before %v is safe", f.Name, f.Time, successor)
	}
	if def.Missed == All && w.once && !w.kinds.redefines {
		for _, m := range w.copies { // it waits for those before it that failed, until they are over
			if m.firing.Name == f.Name && m.firing.Time.Before(f.Time) && w.now.Before(m.retry.Add(LostMax)) && !m.done && w.runs[m.id] == 0 && w.policy(h, m.firing, *def) == NoReason {
				w.failf("%s of %v enters before %v, which comes again", f.Name, f.Time, m.firing.Time)
			}
		}
	}
	if ran := w.newest[f.Name]; w.once && !w.kinds.redefines && !ran.IsZero() && ran.Before(f.Time) { // an owner does not know the runs before its gate opened
		stands := 0
		if def.Missed == Latest {
			stands = def.Count(ran, f.Time, CountMax) - 1
		}
		if d.Missed != stands {
			w.failf("%s of %v stands for %d, want %d: the run before it was for %v", f.Name, f.Time, d.Missed, stands, ran)
		}
	}
	if h.wall(w).Sub(f.Time) > LateMax {
		w.seen.entersLate++
	}
	w.began[FiringID(*def, f.Time)] = w.now
	if w.runs[FiringID(*def, f.Time)] > 0 {
		if w.once {
			w.failf("%s of %v runs twice", f.Name, f.Time)
		}
	}
}

// policy is what the policy of a definition says about a firing, by the simplest means.
func (w *world) policy(h *host, f Firing, d Definition) Reason {
	a := h.wall(w).Add(-d.Offset())
	if a.Sub(f.Time) > d.Grace {
		return TooLate
	}
	most := 1 // as many as decide
	if d.Missed == All {
		most = MissedMax
	}
	newer := 0
	for at, ok := d.Next(f.Time); ok && !at.After(a) && newer < most; at, ok = d.Next(at) {
		newer++
	}
	switch {
	case d.Missed == Latest && newer > 0:
		return Superseded
	case d.Missed == Skip && (newer > 0 || a.Sub(f.Time) > LateMax):
		return Skipped
	case d.Missed == All && newer >= MissedMax:
		return TooMany
	}
	return NoReason
}

func (w *world) checkDrop(h *host, f Firing, def *Definition, reason Reason) {
	switch reason {
	case Undeclared:
		if def != nil || h.wall(w).Sub(f.Time) < GraceDefault {
			w.failf("%+v is dropped as undeclared", f)
		}
	case Redefined:
		if def == nil || def.ID() == f.DefinitionID {
			w.failf("%+v is dropped as redefined", f)
		}
	case Duplicate:
		if def == nil || w.runs[FiringID(*def, f.Time)] == 0 {
			w.failf("%+v is dropped as a duplicate, but never ran", f)
		}
	default:
		if want := w.policy(h, f, *def); want != reason {
			w.failf("%s of %v is dropped: %v, want %v", f.Name, f.Time, reason, want)
		}
		w.judged[FiringID(*def, f.Time)] = true
		successor, ok := def.Next(f.Time)
		for ok && successor.Add(def.Offset()).Before(h.wall(w)) && w.policy(h, Firing{Time: successor}, *def) != NoReason {
			w.judged[FiringID(*def, successor)] = true
			successor, ok = def.Next(successor)
		}
		if r := h.lane[f.Name]; ok && !w.safe(*def, successor) && (r == nil || !r.firing.Time.Equal(successor)) {
			w.failf("%s of %v is dropped before %v is safe", f.Name, f.Time, successor)
		}
	}
}

// runLane ends handlers.
func (w *world) runLane(i int) {
	h := w.nodes[i]
	for _, d := range packs[0] {
		r := h.lane[d.Name]
		if r == nil || r.end.After(w.now) {
			continue
		}
		delete(h.lane, d.Name)
		if r.how.Settled {
			r.message.done = true
			old := r.firing
			for _, pack := range packs {
				for _, d := range pack {
					if d.Name == old.Name && d.ID() == old.DefinitionID {
						w.runs[FiringID(d, old.Time)]++
						w.newest[d.Name] = later(w.newest[d.Name], old.Time)
					}
				}
			}
		} else {
			w.seen.lostRuns++
			r.message.retry = w.now.Add(r.how.After)
			if d.Missed == All && r.how.After > LostMax {
				w.seen.lateRetries++
			}
			r.message.ask = r.message.retry.Add(time.Second)
			if r.how.Dead {
				w.seen.deadLetters++
				r.message.done, w.dead[r.message.id] = true, true
			}
		}
		w.say("node %d ends %s %v, settled: %v", i, r.firing.Name, r.firing.Time.Format(time.TimeOnly), r.how.Settled)
		h.book.Done(h.wall(w), r.firing, r.how)
		h.tick = w.now
	}
}

// step does everything that is due, and advances to the next thing that will be.
func (w *world) step(limit time.Time) {
	for i := range w.nodes {
		w.runArms(i)
		w.runLane(i)
	}
	w.runCopies()
	next := limit
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	for i, h := range w.nodes {
		if !h.tick.After(w.now) {
			w.runTick(i)
		}
		earlier(h.tick)
		for _, p := range h.arms {
			earlier(p.at)
		}
		for _, r := range h.lane {
			earlier(r.end)
		}
	}
	w.copies = slices.DeleteFunc(w.copies, func(m *message) bool { return m.done })
	if w.owner >= 0 {
		for _, m := range w.copies {
			earlier(m.ask)
		}
	}
	w.now = later(w.now.Add(w.pace), next)
}

// disturb makes one of the rare events happen.
func (w *world) disturb() {
	i := w.rng.IntN(2)
	switch w.rng.IntN(9) {
	case 0, 1:
		if w.kinds.moves {
			w.move(w.rng.IntN(2))
		}
	case 2:
		if w.kinds.moves {
			w.seen.crashes++
			w.say("node %d crashes", i)
			open := w.owner == i
			if open {
				w.owner = -1
			}
			w.boot(i)
			if open {
				w.move(1 - i)
			}
		}
	case 3: // the gate closes and opens again
		if w.kinds.moves && w.owner >= 0 {
			at := w.owner
			w.seen.staleArms += len(w.nodes[at].arms)
			w.move(-1)
			w.move(at)
		}
	case 4: // nobody owns anything for a while
		if w.kinds.moves || !w.kinds.jumps {
			back := max(0, w.owner)
			w.owner = -1
			w.nodes[back].tick = w.now.AddDate(1, 0, 0)
			w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(time.Hour * time.Duration(1+w.rng.IntN(3))))))
			w.say("outage ends")
			w.owner = back
			w.nodes[back].tick = w.now
			if !w.nodes[back].open {
				w.move(back)
			}
		}
	case 5:
		if w.kinds.jumps {
			w.seen.jumps++
			w.nodes[i].offset = time.Duration(w.rng.Int64N(int64(10*time.Hour))) - 5*time.Hour
			w.nodes[i].tick = w.now
			w.say("clock of node %d: %v", i, w.nodes[i].offset)
		}
	case 6:
		if w.kinds.redefines {
			w.pack = 1 - w.pack
			worker := uint64(1 + w.rng.IntN(2))
			w.say("node %d: worker %d declares pack %d", i, worker, w.pack)
			w.declare(i, worker)
		}
	case 7:
		if w.kinds.redefines {
			h := w.nodes[i]
			h.book.Forget(h.wall(w), uint64(1+w.rng.IntN(2)))
			h.tick = w.now
			w.say("node %d: a worker leaves", i)
		}
	case 8:
		w.declare(i, uint64(2+w.rng.IntN(2)))
	}
}

var histories = flag.Int("schedule.histories", 48, "histories of the model test")

// Random histories: see [world]. After each all is well again, and every firing that no policy drops must have
// entered, without any call but those for which Next asks.
func TestBookModel(t *testing.T) {
	parsePacks(t)
	seen := &rare{}
	for seed := range uint64(*histories) {
		newWorld(t, seed, seen).play()
	}
	t.Logf("%+v", *seen)
	for r := NotOwner; r < reasons; r++ {
		if r != NotOwner && r != NotScheduled && seen.reasons[r] == 0 { // the world asks owners only, and for occurrences only
			t.Errorf("no firing was told %v", r)
		}
	}
	if seen.enters == 0 || seen.entersLate == 0 || seen.missed == 0 || seen.crashes == 0 || seen.staleArms == 0 || seen.rearms == 0 || seen.jumps == 0 || seen.lostRuns == 0 || seen.lateArms == 0 || seen.deadLetters == 0 || seen.lateRetries == 0 {
		t.Error("something never happened; these runs proved little")
	}
}

func parsePacks(t *testing.T) {
	for i, pack := range packs {
		for j := range pack {
			packs[i][j] = parse(t, pack[j])
		}
	}
}

// play goes through one history.
func (w *world) play() {
	end := w.now.Add(4 * time.Hour)
	for quake := w.now.Add(time.Minute); w.now.Before(end); {
		w.step(quake)
		if !w.now.Before(quake) {
			w.disturb()
			quake = w.now.Add(time.Duration(w.rng.Int64N(int64(12 * time.Minute))))
		}
	}
	w.heal()
}

func (w *world) heal() {
	redefined := w.kinds.redefines
	jumped := w.kinds.jumps
	w.say("heal")
	for i, h := range w.nodes {
		h.offset, h.tick = 0, w.now
		h.book.Forget(w.now, 2)
		h.book.Forget(w.now, 3)
		w.pack = 0
		w.declare(i, 1)
	}
	if w.owner < 0 {
		w.move(0)
	}
	w.kinds, w.busy = kinds{redefines: redefined}, false
	healed := w.now
	for until := w.now.Add(3 * time.Hour); w.now.Before(until); {
		w.step(until)
	}
	for _, h := range w.nodes {
		w.seen.rearms += int(h.book.Counts().Rearmed)
	}
	for _, d := range packs[0] {
		from, ok := w.first[d.Name]
		if whole := d.Missed == All && !redefined && !jumped; !ok || !whole {
			from = later(from, healed.Add(time.Hour)) // each earlier one that was dropped was judged then
		}
		for at, ok := d.Next(from.Add(-1)); ok && at.Before(w.now.Add(-30*time.Minute)); at, ok = d.Next(at) {
			if id := FiringID(d, at); w.runs[id] > 0 || w.dead[id] || d.Missed == All && w.judged[id] {
				continue
			}
			// A policy may have dropped it, before it was published. Then the next one that ran tells why.
			ran, ok := d.Next(at)
			for ok && ran.Before(w.now) && w.runs[FiringID(d, ran)] == 0 && !w.dead[FiringID(d, ran)] {
				ran, ok = d.Next(ran)
			}
			if !ok || !ran.Before(w.now) {
				w.failf("%s of %v never ran, nor any after it", d.Name, at)
			}
			began := w.began[FiringID(d, ran)]
			late := began.Sub(at) - d.Offset()
			switch {
			case d.Missed == All && late <= d.Grace && d.Count(at, began, MissedMax) < MissedMax:
				w.failf("%s of %v never ran, though the next was %v, at %v", d.Name, at, ran, began)
			case d.Missed != All && late > 20*time.Minute:
				w.failf("%s of %v never ran, nor any until %v", d.Name, at, ran)
			}
		}
	}
}
