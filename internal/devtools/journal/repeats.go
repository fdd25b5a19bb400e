package journal

import (
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// ReportMax bounds the time after the end of a handling in which the router beside the
// application may be the only node that knows of it.
const ReportMax = time.Second

// Why is the reason for which an event was handled again.
//
//exhaustive:enforce
type Why uint8

// Why an event can be handled again. Only after the last three had an earlier handling
// come to its end with the event done.
const (
	WhyFailed      Why = 1 // the handler had failed
	WhyCut         Why = 2 // its handler had been cancelled
	WhyDied        Why = 3 // its handler had died with its process
	WhyReport      Why = 4 // its handler's report was lost with its owner, which died while it ran or within ReportMax
	WhyWindow      Why = 5 // its owner died later, and with it the window of finished events
	WhyUnexplained Why = 6 // its owner lived, and should have known
)

// String returns the reason in a word or two.
func (w Why) String() string {
	switch w {
	case WhyFailed:
		return "failed"
	case WhyCut:
		return "cut"
	case WhyDied:
		return "died"
	case WhyReport:
		return "report lost"
	case WhyWindow:
		return "window lost"
	case WhyUnexplained:
		return "unexplained"
	}
	return "unknown"
}

// Repeat is one handling of an event that had been handled before.
type Repeat struct {
	Event string
	Key   event.Key
	At    clock.Instant // its start
	Path  string        // its journal
	Was   string        // the journal of the earlier handling that it is explained by
	Ended clock.Instant // the end of that handling, 0 if it had none
	Why   Why
}

// FindRepeats reads the journals of a load and explains each repeat by the journals and the
// deaths, in the order of time. A death is the KilledAt of a file, or a Kill of the router
// beside.
//
// The owner of a key knows its finished events. The owner is taken to be the router beside the
// application that last handled any event of the key.
func FindRepeats(files []File, kills []Kill) ([]Repeat, error) {
	f := &repeats{files: files, deaths: make([][]clock.Instant, len(files)), events: map[uint64]*story{}, owners: map[uint64]*owner{}, running: map[runningIn]*story{}}
	for i, file := range files {
		if file.KilledAt != 0 {
			f.deaths[i] = append(f.deaths[i], file.KilledAt)
		}
		for _, k := range kills {
			if k.Path == file.Path {
				f.deaths[i] = append(f.deaths[i], k.At)
			}
		}
		slices.Sort(f.deaths[i])
	}
	if err := merge(files, f); err != nil {
		return nil, err
	}
	return f.found, nil
}

// repeats is the follower of FindRepeats.
type repeats struct {
	files   []File
	deaths  [][]clock.Instant // by file, sorted
	events  map[uint64]*story
	owners  map[uint64]*owner // by key
	running map[runningIn]*story
	found   []Repeat
}

// story is the history of an event: its newest finished handling, or else its newest one.
type story struct {
	file       int
	start, end clock.Instant
	outcome    Outcome // 0: it runs, or died
	died       bool
}

// owner is the last handler of a key, and the last death of its owner before the key moved.
type owner struct {
	file  int
	since clock.Instant // start of its newest handling there
	died  clock.Instant // 0: never
}

func (f *repeats) start(file int, r record) error {
	at := runningIn{file, r.handling}
	if f.running[at] != nil {
		return fmt.Errorf("handling %d starts twice", r.handling)
	}
	died := f.follow(xxhash.Sum64String(string(r.key)), file, r.at)
	now := &story{file: file, start: r.at}
	f.running[at] = now
	id := xxhash.Sum64String(r.event)
	before := f.events[id]
	if before == nil {
		f.events[id] = now
		return nil
	}
	f.found = append(f.found, Repeat{
		Event: r.event, Key: r.key, At: r.at, Path: f.files[file].Path,
		Was: f.files[before.file].Path, Ended: before.end, Why: before.why(died),
	})
	if !before.outcome.over() {
		f.events[id] = now
	}
	return nil
}

// follow notes the owner of a key, and returns the time of the last death of an owner of it.
func (f *repeats) follow(key uint64, file int, now clock.Instant) clock.Instant {
	o := f.owners[key]
	if o == nil {
		o = &owner{file: file}
		f.owners[key] = o
	} else {
		for _, at := range f.deaths[o.file] {
			if !at.Before(o.since) && !now.Before(at) {
				o.died = at
			}
		}
	}
	o.file, o.since = file, now
	return o.died
}

// why explains a handling that starts after s. died is the last death of an owner of its key, 0
// for none.
func (s *story) why(died clock.Instant) Why {
	switch {
	case s.died:
		return WhyDied
	case s.outcome == Failed:
		return WhyFailed
	case s.outcome == Cancelled:
		return WhyCut
	case !s.outcome.over() || died == 0 || died.Before(s.start):
		return WhyUnexplained // one that still runs overlaps, which Check tells
	case died.Before(s.end.Add(ReportMax)):
		return WhyReport
	}
	return WhyWindow
}

func (f *repeats) end(file int, r record) error {
	at := runningIn{file, r.handling}
	s := f.running[at]
	if s == nil {
		return fmt.Errorf("handling %d ends without a start", r.handling)
	}
	delete(f.running, at)
	s.end, s.outcome = r.at, r.outcome
	return nil
}

func (f *repeats) endOfFile(file int, _ clock.Instant, _ bool) {
	for at, s := range f.running {
		if at.file == file {
			s.died = true
			delete(f.running, at)
		}
	}
}
