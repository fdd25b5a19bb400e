package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/outcome"
)

// The limits of a Book.
const (
	SchedulesMax = 256    // of one worker
	NamesMax     = 4096   // of all workers
	ArmsMax      = 64     // that are under way at once
	MissedMax    = 100    // firings that All runs late
	CountMax     = 10_000 // firings for which one can say that it stands
	ranMax       = 128    // firings of a schedule that are remembered, to find copies of them; more than MissedMax
	entriesMax   = 160    // firings of a schedule that are followed; more than MissedMax

	LateMax    = time.Minute     // by which Skip runs a firing late
	UnseenMax  = 5 * time.Second // from its time on, until an armed firing that has not come is armed again
	LostMax    = 2 * time.Minute // for which a firing that was told to wait, or whose retry is due, may not ask again; a broker redelivers within one
	askAgain   = time.Second
	askSoon    = 100 * time.Millisecond
	retryFirst = 200 * time.Millisecond
	retryLast  = 30 * time.Second
	againLast  = 5 * time.Minute
)

// KeyOf returns the key whose owner fires the schedule of that name.
func KeyOf(name string) string { return "schedule/" + name }

// Firing is one firing of a schedule, as its message carries it.
type Firing struct {
	Name         string
	DefinitionID uint64
	Time         time.Time // the occurrence; it is due by the jitter later
	Missed       int       // earlier ones for which it stands
}

// Arm asks for the publication of one firing. It is under way until [Book.Armed].
type Arm struct {
	Definition Definition
	Time       time.Time
	ID         uint64
	Due        time.Time
	Delay      time.Duration // 0: it is due
	Missed     int
}

// Reason says why a firing waits, or is dropped.
//
//exhaustive:enforce
type Reason uint8

// The reasons to wait come first.
const (
	NoReason   Reason = iota
	NotOwner          // the gate of its key is not open here
	Early             // its time by this node's wall clock has not come
	Unknown           // the worker that has its key does not declare it; one that does may come
	Arming            // the firing that follows is not safe yet
	Overlap           // another firing of the schedule is in the lane
	Order             // an earlier one, that All runs first, is on its way
	Undeclared        // from here on: dropped
	Redefined
	TooLate
	TooMany
	Superseded
	Skipped
	Duplicate
	NotScheduled // the definition has no such occurrence
	reasons
)

var reasonNames = [reasons]string{"", "not_owner", "early", "unknown", "arming", "overlap", "order", "undeclared", "redefined", "too_late", "too_many", "superseded", "skipped", "duplicate", "not_scheduled"}

// String returns the reason as metrics and logs spell it.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "invalid"
}

// Verdict is the decision about a firing that arrived.
//
//exhaustive:enforce
type Verdict uint8

const (
	// NotYet leaves it with its sender, who asks again at Decision.Until.
	NotYet Verdict = iota
	// Enter puts it into the lane of its key. [Book.Done] follows.
	Enter
	// Drop settles it without a run.
	Drop
)

// Decision answers [Book.Arrive].
type Decision struct {
	Verdict Verdict
	Reason  Reason    // of NotYet and Drop
	Until   time.Time // of NotYet
	Missed  int       // of Enter: how many earlier firings this one stands for
}

// Book is the owner's half of schedules: which firings this node must arm, and what to do with those
// that arrive. now is the wall clock, which may jump either way. Not safe for concurrent use.
//
// The caller publishes what [Book.Tick] returns, and says of each how that ended; it calls Tick again when
// [Book.Next] says, and after any other call. A Book may be lost: the firings in the topic are all that
// the next owner needs, but for the memory of what has just run.
type Book struct {
	schedules map[string]*line
	names     []string // sorted
	opened    map[partition.ID]time.Time
	underway  map[uint64]*flight
	stopped   map[string]Stop // by the name of the schedule, for those whose key is stopped
	counts    Counts
}

// Counts are totals since the Book was made.
type Counts struct {
	Armed, ArmFailures, Rearmed, Entered, Missed uint64
	Dropped                                      [reasons]uint64 // by Reason
}

// flight is an Arm that is under way.
type flight struct {
	name  string
	at    time.Time
	stale bool // the gate was opened again meanwhile, so another owner may have consumed the copy
}

// line is one schedule.
type line struct {
	name      string
	partition partition.ID
	by        []declared // in the order in which they came
	def       Definition // the newest of them
	has       bool       // there is one
	since     time.Time  // if not: from when on
	entries   []entry    // by time: firings that should be safe and have not entered
	ran       []time.Time
	newest    time.Time // the newest that ran since the gate opened; zero: none
	running   Firing    // in the lane
	runs      bool
	window    window
	status    Status // its counters
}

type declared struct {
	worker uint64
	def    Definition
}

// entry is a firing that has to be safe in the topic.
type entry struct {
	at       time.Time
	id       uint64
	missed   int
	safe     bool
	seen     bool // it came here, and waits with its sender
	entered  bool // it was in the lane and was not settled, and is retried as an event is; or it was skipped by an operator: it is not armed again
	dead     bool // it is a dead letter: no other waits for it
	owed     bool // it follows one that was skipped: until it is safe it is armed without the gate, too, since nothing else leads a later owner to it
	lastSeen time.Time
	returns  time.Duration // from lastSeen until its retry is due
	tried    time.Time     // when it was wanted, failed, or became safe
	wait     time.Duration
	retry    backoff.Backoff
	again    backoff.Backoff
}

// window is the neighbourhood of an instant among the occurrences of a schedule.
type window struct {
	valid     bool
	from, end time.Time // it holds from `from` until end
	next      time.Time // the first occurrence after from; zero: none
	newest    time.Time // within the grace; zero: none
	oldest    time.Time // that All still runs
}

// NewBook returns a Book without schedules and with all gates closed.
func NewBook() *Book {
	return &Book{schedules: map[string]*line{}, opened: map[partition.ID]time.Time{}, underway: map[uint64]*flight{}, stopped: map[string]Stop{}}
}

// Declare replaces the schedules of a worker. Of workers that declare a name differently, the one
// that came last wins. After an error nothing has changed.
func (b *Book) Declare(now time.Time, worker uint64, defs []Definition) error {
	if len(defs) > SchedulesMax {
		return fmt.Errorf("schedule: %d schedules, want at most %d of one worker", len(defs), SchedulesMax)
	}
	parsed := map[string]Definition{}
	added := 0
	for _, d := range defs {
		d, err := d.Parse()
		if err != nil {
			return err
		}
		if _, twice := parsed[d.Name]; twice {
			return fmt.Errorf("schedule %q is declared twice; give each a name of its own", d.Name)
		}
		parsed[d.Name] = d
		if b.schedules[d.Name] == nil {
			added++
		}
	}
	if len(b.names)+added > NamesMax {
		return fmt.Errorf("schedule: more than %d schedules in all workers; declare fewer", NamesMax)
	}
	for _, d := range defs {
		if b.schedules[d.Name] == nil {
			b.schedules[d.Name] = &line{name: d.Name, partition: partition.Of(KeyOf(d.Name)), since: now}
			at, _ := slices.BinarySearch(b.names, d.Name)
			b.names = slices.Insert(b.names, at, d.Name)
		}
	}
	b.replace(now, worker, parsed)
	return nil
}

// Forget removes the schedules of a worker that left.
func (b *Book) Forget(now time.Time, worker uint64) { b.replace(now, worker, nil) }

// Declarer returns the worker that declared the schedule of that name last, of those that have not left; 0: there is none.
func (b *Book) Declarer(name string) (worker uint64) {
	if l := b.schedules[name]; l != nil && len(l.by) > 0 {
		worker = l.by[len(l.by)-1].worker
	}
	return worker
}

// replace makes these the schedules of a worker, as its newest word.
func (b *Book) replace(now time.Time, worker uint64, defs map[string]Definition) {
	for _, name := range b.names {
		l := b.schedules[name]
		l.by = slices.DeleteFunc(l.by, func(d declared) bool { return d.worker == worker })
		if d, ok := defs[name]; ok {
			l.by = append(l.by, declared{worker, d})
		}
		l.choose(now)
	}
}

// choose makes the newest declaration the one that counts.
func (l *line) choose(now time.Time) {
	if len(l.by) == 0 {
		if l.has {
			l.has, l.since, l.entries = false, now, nil
		}
		return
	}
	def := l.by[len(l.by)-1].def
	if !l.has || l.def.ID() != def.ID() {
		l.entries = nil
		if l.def.parsed != nil && l.def.ID() != def.ID() {
			l.ran, l.newest = nil, time.Time{}
		}
	}
	l.has, l.def, l.window = true, def, window{}
}

// Opened says that the gate of a partition has opened: what this node knew of firings on their
// way is out of date, since other owners may have run them.
func (b *Book) Opened(now time.Time, p partition.ID) {
	b.opened[p] = now
	for _, l := range b.schedules {
		if l.partition == p {
			l.entries = slices.DeleteFunc(l.entries, func(e entry) bool { return !e.owed || e.safe })
			l.window, l.newest = window{}, time.Time{}
		}
	}
	for _, f := range b.underway {
		f.stale = f.stale || partition.Of(KeyOf(f.name)) == p
	}
}

// Closed says that the gate of a partition has closed.
func (b *Book) Closed(p partition.ID) { delete(b.opened, p) }

// owned reports whether this node arms the firings of l.
func (b *Book) owned(l *line) bool {
	_, open := b.opened[l.partition]
	return open && l.has
}

// Tick returns what is to be published now.
func (b *Book) Tick(now time.Time) []Arm {
	type order struct {
		tried time.Time
		arm   Arm
	}
	var orders []order
	for _, name := range slices.Clone(b.names) {
		l := b.schedules[name]
		if l.since.After(now) { // the clock was ahead
			l.since = now
		}
		if !l.has && !l.runs && now.Sub(l.since) >= GraceDefault {
			delete(b.schedules, name)
			b.names = slices.DeleteFunc(b.names, func(n string) bool { return n == name })
			continue
		}
		owned := b.owned(l)
		if owned {
			b.follow(now, l)
		}
		for _, e := range l.entries {
			if !owned && !l.owes(now, &e) {
				continue
			}
			if e.safe || b.underway[e.id] != nil || !elapsed(now, e.tried, e.wait) {
				continue
			}
			due := l.due(e.at)
			orders = append(orders, order{e.tried, Arm{Definition: l.def, Time: e.at, ID: e.id, Due: due, Delay: max(0, due.Sub(now)), Missed: e.missed}})
		}
	}
	// Those that wait longest go first, so that schedules whose publication fails do not hold up others.
	slices.SortStableFunc(orders, func(x, y order) int { return x.tried.Compare(y.tried) })
	var wanted []Arm
	for _, o := range orders[:min(len(orders), ArmsMax-len(b.underway))] {
		b.underway[o.arm.ID] = &flight{name: o.arm.Definition.Name, at: o.arm.Time}
		wanted = append(wanted, o.arm)
	}
	return wanted
}

// owes reports whether a firing is armed without the gate.
func (l *line) owes(now time.Time, e *entry) bool {
	if !e.owed || e.safe {
		return false
	}
	_, dropped := l.dropped(now, e.at)
	return !dropped
}

// follow brings the entries of l up to date: the next firing is one of them, those that no longer
// need to run are none, and those that did not come are armed again.
func (b *Book) follow(now time.Time, l *line) {
	w := l.look(now)
	if !w.next.IsZero() {
		l.want(now, w.next, 0)
	}
	for i := 0; i < len(l.entries); i++ {
		e := &l.entries[i]
		if e.seen && !elapsed(now, e.lastSeen, LostMax) {
			continue
		}
		if e.seen {
			e.seen, e.tried, e.wait = false, e.lastSeen, 0
		}
		at, missed := e.at, e.missed
		if l.due(at).After(now) || b.underway[e.id] != nil {
			continue
		}
		if _, dropped := l.dropped(now, at); dropped {
			// Nobody needs to be told first: if a copy of it comes, it is dropped then, after its successor is safe.
			l.entries = slices.Delete(l.entries, i, i+1)
			if successor, ok := l.successor(now, at); ok {
				l.want(now, successor, l.standsFor(now, at, missed, successor))
			}
			i = -1 // an earlier one may have been added
			continue
		}
		if e.safe && !e.entered && b.stopped[l.name] == 0 && !now.Before(l.due(at).Add(UnseenMax)) && elapsed(now, e.tried, max(e.wait, UnseenMax)) {
			e.safe, e.tried, e.wait = false, now, 0
			b.counts.Rearmed++
			l.status.Rearmed++
		}
	}
}

// Armed says how the publication of an Arm ended. A failed one is tried again, with growing delays.
func (b *Book) Armed(now time.Time, id uint64, err error) {
	f := b.underway[id]
	if f == nil {
		return
	}
	delete(b.underway, id)
	if err == nil {
		b.counts.Armed++
	} else {
		b.counts.ArmFailures++
	}
	l := b.schedules[f.name]
	if l == nil {
		return
	}
	l.status.ArmError = ""
	if err != nil {
		l.status.ArmFailures++
		l.status.ArmError = err.Error()
	}
	e := l.find(f.at)
	if e == nil || e.id != id || e.safe || f.stale {
		return
	}
	e.tried = now
	if err != nil {
		e.retry.Min, e.retry.Max = retryFirst, retryLast
		e.wait = e.retry.Next()
		return
	}
	e.retry.Reset()
	e.again.Min, e.again.Max = UnseenMax, againLast
	e.safe, e.wait = true, e.again.Next()
}

// Arrive decides about a firing that its sender brings to the owner of its key.
func (b *Book) Arrive(now time.Time, f Firing) Decision { return b.arrive(now, f, true) }

// ArriveUndeclared is Arrive for a firing at a worker that does not declare it. The firing never enters: it waits for a
// worker that declares it.
func (b *Book) ArriveUndeclared(now time.Time, f Firing) Decision { return b.arrive(now, f, false) }

func (b *Book) arrive(now time.Time, f Firing, declared bool) Decision {
	opened, open := b.opened[partition.Of(KeyOf(f.Name))]
	if !open {
		return wait(NotOwner, now.Add(askAgain))
	}
	if f.Time.Before(firstTime) || !f.Time.Before(lastTime) {
		return b.drop(nil, NotScheduled)
	}
	l := b.schedules[f.Name]
	if l == nil || !l.has {
		return b.arriveUnknown(now, f, l, opened)
	}
	switch {
	case f.DefinitionID != l.def.ID():
		return b.drop(l, Redefined)
	case !l.def.Occurs(f.Time):
		return b.drop(l, NotScheduled)
	case l.hasRun(f.Time):
		return b.drop(l, Duplicate)
	case l.due(f.Time).After(now):
		return wait(Early, l.due(f.Time))
	case l.runs && l.running.DefinitionID == f.DefinitionID && l.running.Time.Equal(f.Time):
		return wait(Overlap, now.Add(askAgain))
	}

	f.Missed = min(max(f.Missed, 0), CountMax)
	e := l.want(now, f.Time, f.Missed)
	e.safe, e.seen, e.lastSeen, e.dead, e.returns = true, true, now, false, 0
	f.Missed = e.missed
	reason, dropped := l.dropped(now, f.Time)
	if successor, ok := l.successor(now, f.Time); ok {
		stands := 0
		if dropped {
			stands = l.standsFor(now, f.Time, f.Missed, successor)
		}
		l.want(now, successor, stands)
		if !l.covers(successor) {
			return wait(Arming, now.Add(askSoon))
		}
	}
	switch {
	case dropped:
		l.remove(f.Time)
		return b.drop(l, reason)
	case l.runs:
		return wait(Overlap, now.Add(askAgain))
	case l.def.Missed == All && l.precedes(now, f.Time):
		return wait(Order, now.Add(askAgain))
	case !declared:
		return wait(Unknown, now.Add(askAgain))
	}
	l.remove(f.Time)
	f.Missed = l.missedBefore(f.Time, f.Missed)
	l.runs, l.running = true, f
	b.counts.Entered++
	b.counts.Missed += uint64(f.Missed)
	l.status.Missed += uint64(f.Missed)
	return Decision{Verdict: Enter, Missed: f.Missed}
}

// arriveUnknown decides about a firing that no worker here declares. A deploy under way may bring a
// worker that does, so it waits, from the moment on at which this node could know.
func (b *Book) arriveUnknown(now time.Time, f Firing, l *line, opened time.Time) Decision {
	since := opened
	if l != nil && l.since.After(since) {
		since = l.since
	}
	if since.After(now) && !f.Time.After(now) { // the clock was ahead: the wait begins now, and not in years
		since = now
		if opened.After(now) {
			b.opened[partition.Of(KeyOf(f.Name))] = now
		}
		if l != nil && l.since.After(now) {
			l.since = now
		}
	}
	if f.Time.After(since) {
		since = f.Time
	}
	switch {
	case f.Time.After(now):
		return wait(Early, f.Time)
	case now.Before(since.Add(GraceDefault)):
		return wait(Unknown, now.Add(askAgain))
	}
	return b.drop(l, Undeclared)
}

// End is what becomes of a firing whose run is over.
type End struct {
	Settled bool          // it does not come again: further copies of it are dropped
	Dead    bool          // not Settled: it is a dead letter, and comes again only if that is replayed
	After   time.Duration // neither: until its retry is due; 0: at once
}

// EndOf returns the end of a run by its result and the outcome of its event, the zero Outcome if that is not known.
func EndOf(result event.ResultKind, o outcome.Outcome) End {
	switch {
	case result == event.ResultDone || result == event.ResultReject: // the handler has decided
		return End{Settled: true}
	case o.Kind == outcome.DeadLetter:
		return End{Dead: true}
	}
	return End{After: o.Delay}
}

// Done ends what Enter began.
func (b *Book) Done(now time.Time, f Firing, end End) {
	l := b.schedules[f.Name]
	if l == nil || !l.runs || l.running.DefinitionID != f.DefinitionID || !l.running.Time.Equal(f.Time) {
		return
	}
	l.runs = false
	known := l.has && l.def.ID() == f.DefinitionID
	switch {
	case end.Settled:
		l.status.LastRun = f.Time
		if l.def.ID() == f.DefinitionID {
			l.remember(f.Time)
			l.newest = later(l.newest, f.Time)
		}
	case known:
		e := l.want(now, f.Time, l.running.Missed)
		e.safe, e.seen, e.entered, e.lastSeen, e.dead, e.returns = true, !end.Dead, true, now, end.Dead, end.After
	}
}

// Skip says that an operator has skipped an event of a key. If it is a firing, it is a dead letter, so it is not armed again: it enters if the letter is
// replayed.
func (b *Book) Skip(now time.Time, key event.Key, message event.MessageID) {
	l, e := b.entryOf(key, message)
	if l == nil {
		return
	}
	if e == nil {
		at, ok := l.timeOf(now, message) // it came to an earlier owner, or was armed by one
		if !ok {
			return
		}
		if e = l.want(now, at, 0); e == nil {
			return
		}
	}
	e.safe, e.entered, e.dead = true, true, true
	if successor, ok := l.successor(now, e.at); ok { // it may be skipped before it came here, which arms its successor
		if next := l.want(now, successor, 0); next != nil {
			next.owed = true
		}
	}
}

// Stop is why an operator's act keeps the events of a key from running.
type Stop uint8

// The reasons. A key can have both.
const (
	OnHold Stop = 1 << iota
	Parked      // also while its letters come back
)

// Stop says that an act stops a key, or does not any more. Its firings come, and wait in the lane or are parked without a word to the Book: they are not armed
// again until it ends, and then only if they do not come.
func (b *Book) Stop(now time.Time, key event.Key, why Stop, stops bool) {
	name, ok := strings.CutPrefix(string(key), KeyOf(""))
	before := b.stopped[name]
	switch {
	case !ok:
	case stops:
		b.stopped[strings.Clone(name)] = before | why
	case before == why:
		delete(b.stopped, name)
		if l := b.schedules[name]; l != nil {
			for i := range l.entries {
				if e := &l.entries[i]; e.safe {
					e.tried, e.wait = now, 0
				}
			}
		}
	case before != 0:
		b.stopped[name] = before &^ why
	}
}

// Over says that an event of a key has finished before, mostly at an earlier owner, so that copies of it do not come here. If it is a firing that is waited for, it
// is over: others need not wait until it comes, and it is not armed again. It reports whether it was one.
func (b *Book) Over(key event.Key, message event.MessageID) bool {
	l, e := b.entryOf(key, message)
	if e == nil {
		return false
	}
	at := e.at
	l.remember(at)
	l.remove(at)
	return true
}

// entryOf returns the schedule whose firings have a key, nil if none is declared, and its entry of the firing with a message id, nil if it has none.
func (b *Book) entryOf(key event.Key, message event.MessageID) (*line, *entry) {
	name, ok := strings.CutPrefix(string(key), KeyOf(""))
	l := b.schedules[name]
	if !ok || l == nil || !l.has {
		return nil, nil
	}
	i := slices.IndexFunc(l.entries, func(e entry) bool { return MessageID(name, e.id) == message })
	if i < 0 {
		return l, nil
	}
	return l, &l.entries[i]
}

// remember notes a firing that has run.
func (l *line) remember(at time.Time) {
	if l.ran = append(l.ran, at); len(l.ran) > ranMax {
		l.ran = slices.Delete(l.ran, 0, 1)
	}
}

// timesMax bounds the times that timeOf looks at.
const timesMax = 10_000

// timeOf returns the time of a firing that is due and not too late, by its message id; false: there is none.
func (l *line) timeOf(now time.Time, message event.MessageID) (time.Time, bool) {
	at, ok := l.def.Next(now.Add(-l.def.Offset() - l.def.Grace))
	for range timesMax {
		if !ok || l.due(at).After(now) {
			break
		}
		if MessageID(l.def.Name, FiringID(l.def, at)) == message {
			return at, true
		}
		at, ok = l.def.Next(at)
	}
	return time.Time{}, false
}

// Next returns when [Book.Tick] has something to do; the zero Time: not before another call.
func (b *Book) Next(now time.Time) time.Time {
	var next time.Time
	at := func(t time.Time) {
		if t.Before(now) {
			t = now
		}
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, name := range b.names {
		l := b.schedules[name]
		if !l.has && !l.runs {
			at(l.since.Add(GraceDefault))
		}
		if !b.owned(l) {
			for _, e := range l.entries {
				if l.owes(now, &e) && b.underway[e.id] == nil && len(b.underway) < ArmsMax {
					at(after(now, e.tried, e.wait))
				}
			}
			continue
		}
		switch a := now.Add(-l.def.Offset()); {
		case !l.window.holds(a):
			at(now)
		case !l.window.next.IsZero():
			at(l.due(l.window.next))
		}
		for _, e := range l.entries {
			due := l.due(e.at)
			switch {
			case e.seen:
				at(after(now, e.lastSeen, LostMax))
			case e.entered, e.safe && b.stopped[name] != 0:
			case b.underway[e.id] != nil:
			case e.safe && due.After(now):
				at(due.Add(UnseenMax))
			case e.safe:
				at(later(due.Add(UnseenMax), after(now, e.tried, max(e.wait, UnseenMax))))
			case len(b.underway) < ArmsMax:
				at(after(now, e.tried, e.wait))
			}
		}
	}
	return next
}

// Status is one schedule in an [Book.Overview].
type Status struct {
	Definition  Definition // that counts; if no worker declares it, the last one
	Owned       bool       // this node arms it
	Workers     int        // that declare it
	Conflict    bool       // not all of them alike
	Next        time.Time  // when it is due next; zero: never, or not owned
	Armed       bool       // that firing is safe
	Running     time.Time  // the firing in the lane; zero: none
	LastRun     time.Time  // the newest firing that was settled here
	Waiting     int        // firings that came and were told to wait
	Missed      uint64     // firings for which others stood
	Rearmed     uint64
	ArmFailures uint64
	ArmError    string          // why the newest publication failed; "": it did not
	Dropped     [reasons]uint64 // by Reason
}

// Overview returns all schedules, by name.
func (b *Book) Overview() []Status {
	all := make([]Status, 0, len(b.names))
	for _, name := range b.names {
		l := b.schedules[name]
		s := l.status
		s.Definition, s.Owned, s.Workers = l.def, b.owned(l), len(l.by)
		for _, d := range l.by {
			s.Conflict = s.Conflict || d.def.ID() != l.def.ID() || d.def.Missed != l.def.Missed || d.def.Grace != l.def.Grace
		}
		if s.Owned && l.window.valid && !l.window.next.IsZero() {
			s.Next, s.Armed = l.due(l.window.next), l.covers(l.window.next)
		}
		if l.runs {
			s.Running = l.running.Time
		}
		for _, e := range l.entries {
			if e.seen {
				s.Waiting++
			}
		}
		all = append(all, s)
	}
	return all
}

// Counts returns the totals, for metrics.
func (b *Book) Counts() Counts { return b.counts }

func wait(r Reason, until time.Time) Decision {
	return Decision{Verdict: NotYet, Reason: r, Until: until}
}

func (b *Book) drop(l *line, r Reason) Decision {
	b.counts.Dropped[r]++
	if l != nil {
		l.status.Dropped[r]++
	}
	return Decision{Verdict: Drop, Reason: r}
}

// due is when the firing of an occurrence may run.
func (l *line) due(at time.Time) time.Time { return at.Add(l.def.Offset()) }

// elapsed reports whether wait has passed since then. If the clock went back by more than wait
// nobody knows, and it counts as passed: a step of the clock delays nothing for hours.
func elapsed(now, then time.Time, wait time.Duration) bool {
	d := now.Sub(then)
	return d >= wait || d < -wait
}

// after is when elapsed becomes true.
func after(now, then time.Time, wait time.Duration) time.Time {
	if elapsed(now, then, wait) {
		return now
	}
	return then.Add(wait)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func (w window) holds(a time.Time) bool {
	return w.valid && !a.Before(w.from) && (w.end.IsZero() || a.Before(w.end))
}

// look returns the neighbourhood of now, which it computes only once between two occurrences.
func (l *line) look(now time.Time) window {
	a := now.Add(-l.def.Offset())
	if l.window.holds(a) {
		return l.window
	}
	w := window{valid: true, from: a}
	if next, ok := l.def.Next(a); ok {
		w.next, w.end = next, next
	}
	oldest := a.Add(-l.def.Grace - 1)
	if newest, ok := l.def.Newest(oldest, a, 1); ok {
		w.newest = newest
	}
	if l.def.Missed == All {
		if at, ok := l.def.Newest(oldest, a, MissedMax); ok {
			w.oldest = at
		}
	}
	l.window = w
	return w
}

// bound returns the time from which on firings are to run, now; earlier ones are dropped, for that
// reason or because they are older than the grace.
func (l *line) bound(now time.Time) (time.Time, Reason) {
	w, a := l.look(now), now.Add(-l.def.Offset())
	graced := a.Add(-l.def.Grace)
	switch l.def.Missed {
	case Latest:
		return later(w.newest, graced), Superseded
	case All:
		return later(w.oldest, graced), TooMany
	case Skip:
		if !w.newest.IsZero() && a.Sub(w.newest) <= LateMax {
			return later(w.newest, graced), Skipped
		}
	}
	return a.Add(1), Skipped
}

// dropped reports whether the policy drops the firing at that time.
func (l *line) dropped(now, at time.Time) (Reason, bool) {
	bound, reason := l.bound(now)
	if now.Add(-l.def.Offset() - l.def.Grace).After(at) {
		reason = TooLate
	}
	return reason, at.Before(bound)
}

// successor returns the firing that is to run after the one at that time, or instead of it; false: none.
func (l *line) successor(now, at time.Time) (time.Time, bool) {
	bound, _ := l.bound(now)
	return l.def.Next(later(bound.Add(-1), at))
}

// standsFor returns how many firings the successor of a dropped one stands for.
func (l *line) standsFor(now, at time.Time, missed int, successor time.Time) int {
	if l.def.Missed != Latest || l.due(successor).After(now) {
		return 0
	}
	return l.missedBefore(successor, min(missed+l.def.Count(at, successor, CountMax), CountMax))
}

// missedBefore returns how many firings the one at that time stands for: those since the newest run, or else as many as its message and the dropped
// firings say. These counts are too high or too low if a firing waited behind that run, or failed after it.
func (l *line) missedBefore(at time.Time, told int) int {
	if l.def.Missed != Latest || l.newest.IsZero() || !l.newest.Before(at) {
		return told
	}
	return l.def.Count(l.newest, at, CountMax+1) - 1
}

// covers reports whether the firing at that time is safe, or is over.
func (l *line) covers(at time.Time) bool {
	e := l.find(at)
	return e != nil && e.safe || e == nil && l.past(at)
}

// past reports whether the firing at that time has entered.
func (l *line) past(at time.Time) bool {
	return l.hasRun(at) || l.runs && l.running.DefinitionID == l.def.ID() && l.running.Time.Equal(at)
}

func (l *line) hasRun(at time.Time) bool { return slices.ContainsFunc(l.ran, at.Equal) }

// precedes reports whether a firing before that time is still to run. It is waited for until its retry is due, and as long as a
// broker may take to bring it again.
func (l *line) precedes(now, at time.Time) bool {
	return slices.ContainsFunc(l.entries, func(e entry) bool {
		if e.dead || !e.at.Before(at) || elapsed(now, later(l.due(e.at), e.lastSeen), e.returns+LostMax) {
			return false
		}
		_, dropped := l.dropped(now, e.at)
		return !dropped
	})
}

func (l *line) search(at time.Time) (int, bool) {
	return slices.BinarySearchFunc(l.entries, at, func(e entry, at time.Time) int { return e.at.Compare(at) })
}

func (l *line) find(at time.Time) *entry {
	if i, ok := l.search(at); ok {
		return &l.entries[i]
	}
	return nil
}

func (l *line) remove(at time.Time) {
	if i, ok := l.search(at); ok {
		l.entries = slices.Delete(l.entries, i, i+1)
	}
}

// want makes the firing at that time one of the entries, unless it has entered; then it returns nil.
func (l *line) want(now, at time.Time, missed int) *entry {
	i, ok := l.search(at)
	if !ok {
		if l.past(at) {
			return nil
		}
		l.entries = slices.Insert(l.entries, i, entry{at: at, id: FiringID(l.def, at), tried: now})
		if last := len(l.entries) - 1; last >= entriesMax {
			// A clock that jumps to and fro makes them many. The latest is wanted again when its time is near.
			if i == last {
				last--
			}
			l.entries = slices.Delete(l.entries, last, last+1)
			i, _ = l.search(at)
		}
	}
	e := &l.entries[i]
	e.missed = max(e.missed, missed)
	return e
}
