package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// The limits of a Book.
const (
	SchedulesMax = 256    // of one worker
	NamesMax     = 4096   // of all workers
	ArmsMax      = 64     // that are under way at once
	MissedMax    = 100    // firings that All runs late
	CountMax     = 10_000 // most firings that one is reported to stand for
	ranMax       = 128    // firings of a schedule that are remembered, to find copies of them; more than MissedMax
	entriesMax   = 160    // firings of a schedule that are followed; more than MissedMax

	LateMax    = time.Minute     // by which Skip runs a firing late
	UnseenMax  = 5 * time.Second // this long after its time, an armed firing that has not come is armed again
	LostMax    = 2 * time.Minute // for which a firing that was told to wait, or whose retry is due, may not ask again; a broker redelivers within one
	askAgain   = time.Second
	askSoon    = 100 * time.Millisecond
	retryFirst = 200 * time.Millisecond
	retryLast  = 30 * time.Second
	againLast  = 5 * time.Minute
)

// KeyOf returns the key whose owner fires the schedule of that name.
func KeyOf(name string) string { return event.ScheduleKeys + name }

// Firing is one firing of a schedule, as its message carries it.
type Firing struct {
	Name         string
	DefinitionID uint64
	Time         time.Time // the occurrence; it is due by the jitter later
	Missed       int       // earlier ones for which it stands
}

// MessageID returns what all copies of a firing have in common, by the schedule's name and [Arm.ID].
func MessageID(name string, id uint64) event.MessageID {
	return event.SentMessageID(event.Key(KeyOf(name)), "schedule", fmt.Sprintf("%016x", id))
}

// FiringOf returns the firing that has come as a published event, which must have one.
func FiringOf(sent *event.Sent) Firing {
	return Firing{Name: sent.Name, DefinitionID: sent.Firing.Definition, Time: time.UnixMilli(sent.Firing.Time), Missed: int(sent.Firing.Missed)}
}

// Book is the owner's half of schedules: which firings this node must arm, and what to do with those
// that arrive. now is the wall clock, which may jump either way. Not safe for concurrent use.
//
// The caller publishes what [Book.Tick] returns, and says of each how that ended; it calls Tick again when
// [Book.Next] says, and after any other call. A Book may be lost: the firings in the topic are all that
// the next owner needs, but for the memory of what has just run.
type Book struct {
	lines    []*line // by name
	opened   map[partition.ID]time.Time
	underway map[uint64]*flight
	stopped  map[string]Stop // by the name of the schedule, for those whose key is stopped
	counts   Counts
}

// line is one schedule.
type line struct {
	name      string
	partition partition.ID
	by        []declared // in the order in which they came; empty: no worker declares it any more
	def       Definition // the newest of them, or the last one
	since     time.Time  // without any: from when on
	entries   []entry    // by time: firings that should be safe and have not entered
	ran       []time.Time
	letters   []time.Time // firings that are to be dead letters: they are not armed again, but run if a copy of them comes
	newest    time.Time   // the newest that ran since the gate opened; zero: none
	running   Firing      // in the lane
	runs      bool
	window    window
	status    Status // its counters
}

// NewBook returns a Book without schedules and with all gates closed.
func NewBook() *Book {
	return &Book{opened: map[partition.ID]time.Time{}, underway: map[uint64]*flight{}, stopped: map[string]Stop{}}
}

func (b *Book) search(name string) (at int, found bool) {
	return slices.BinarySearchFunc(b.lines, name, func(l *line, name string) int { return strings.Compare(l.name, name) })
}

// line returns the schedule of a name, nil if it is not known.
func (b *Book) line(name string) *line {
	if at, found := b.search(name); found {
		return b.lines[at]
	}
	return nil
}

// declared reports whether a worker declares l.
func (l *line) declared() bool { return len(l.by) > 0 }

// Opened says that the gate of a partition has opened: what this node knew of firings on their
// way is out of date, since other owners may have run them.
func (b *Book) Opened(now time.Time, p partition.ID) {
	b.opened[p] = now
	for _, l := range b.lines {
		if l.partition == p {
			l.entries = nil
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
	return open && l.declared()
}

// due is when the firing of an occurrence may run.
func (l *line) due(at time.Time) time.Time { return at.Add(l.def.Offset()) }

// Counts are totals since the Book was made.
type Counts struct {
	Rearmed, Entered, Missed uint64
	Dropped                  [reasons]uint64 // by Reason
}

// Status is one schedule in an [Book.Overview].
type Status struct {
	Definition Definition      // that counts; if no worker declares it, the last one
	Owned      bool            // this node arms it
	Workers    int             // that declare it
	Conflict   bool            // not all of them alike
	Next       time.Time       // when it is due next; zero: never, or not owned
	Armed      bool            // that firing is safe
	Running    time.Time       // the firing in the lane; zero: none
	LastRun    time.Time       // the newest firing that was settled here
	Waiting    int             // firings that came and were told to wait
	Missed     uint64          // firings for which others stood
	ArmError   string          // why the newest publication failed; "": it did not
	Dropped    [reasons]uint64 // by Reason
}

// Overview returns all schedules, by name.
func (b *Book) Overview() []Status {
	all := make([]Status, 0, len(b.lines))
	for _, l := range b.lines {
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

// elapsed reports whether wait has passed since then. It also reports true if the clock went back by more than wait:
// it is then unknown how much time has passed, and a step of the clock must not delay anything for hours.
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
