package schedule

import (
	"time"

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
func KeyOf(name string) string { return "schedule/" + name }

// Firing is one firing of a schedule, as its message carries it.
type Firing struct {
	Name         string
	DefinitionID uint64
	Time         time.Time // the occurrence; it is due by the jitter later
	Missed       int       // earlier ones for which it stands
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
	letters   []time.Time // firings that are to be dead letters: they are not armed again, but run if a copy of them comes
	newest    time.Time   // the newest that ran since the gate opened; zero: none
	running   Firing      // in the lane
	runs      bool
	window    window
	status    Status // its counters
}

// NewBook returns a Book without schedules and with all gates closed.
func NewBook() *Book {
	return &Book{schedules: map[string]*line{}, opened: map[partition.ID]time.Time{}, underway: map[uint64]*flight{}, stopped: map[string]Stop{}}
}

// Opened says that the gate of a partition has opened: what this node knew of firings on their
// way is out of date, since other owners may have run them.
func (b *Book) Opened(now time.Time, p partition.ID) {
	b.opened[p] = now
	for _, l := range b.schedules {
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
	return open && l.has
}

// due is when the firing of an occurrence may run.
func (l *line) due(at time.Time) time.Time { return at.Add(l.def.Offset()) }
