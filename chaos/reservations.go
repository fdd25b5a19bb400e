package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

// The names of reservations in journals, where events have numbers.
const (
	reservationPrefix = "reservation:"
	coveredPrefix     = reservationPrefix + "ttl:" // begins the name of one with a ttl
	resumedMark       = "~"                        // is in the name of one that goes on at another owner, behind the name it had
)

func isReservation(event string) bool { return strings.HasPrefix(event, reservationPrefix) }

func isCovered(event string) bool { return strings.HasPrefix(event, coveredPrefix) }

// reservationCounts are the reservations of a run by what became of them.
type reservationCounts struct {
	Granted  int            `json:"granted"`
	Covered  int            `json:"covered"` // of them, with a ttl
	Resumed  int            `json:"resumed"` // times that one with a ttl went on at another owner
	Ended    int            `json:"ended"`   // well, before they went on or were released
	Released int            `json:"released"`
	Lost     int            `json:"lost"`    // the holder has noticed that it had to stop
	Cut      int            `json:"cut"`     // the holder was killed
	Refused  int            `json:"refused"` // or not free in time
	Codes    map[string]int `json:"codes,omitempty"`

	// The broken promises.
	Twice    int `json:"twice"`    // names that were granted twice, or both granted and refused
	Backward int `json:"backward"` // grants with a fence that was not greater than that of each earlier handling of the key
	Early    int `json:"early"`    // handlings that began before the newest deadline of a reservation of the key that had no end, also if its holder was dead
	Overdue  int `json:"overdue"`  // of holders that were not stopped, and went on after their deadline
	examples
}

// overdueMax is how long after its deadline a holder may write its end on a busy machine, if it was not stopped.
const overdueMax = time.Second

// judgeReservations reads the reservations of all journals.
func judgeReservations(files []journal.File) (*reservationCounts, error) {
	j := &reservationJudge{
		files: files, counts: &reservationCounts{Codes: map[string]int{}}, fences: map[event.Key]event.Fence{},
		open: map[at]*reserved{}, holding: map[event.Key]*reserved{}, names: map[string]bool{},
	}
	paths := pathsOf(files)
	if err := journal.WalkAll(paths, j.visit); err != nil {
		return nil, err
	}
	j.counts.Cut, j.counts.Released = len(j.open), j.counts.Ended-j.counts.Resumed
	for _, path := range paths {
		refused, err := readRefusedHolds(path)
		if err != nil {
			return nil, err
		}
		for _, r := range refused {
			j.counts.Refused++
			j.counts.Codes[r.code]++
			j.name(r.name)
		}
	}
	return j.counts, nil
}

// reservationJudge follows the reservations, and the fences of their keys, through all journals.
type reservationJudge struct {
	files  []journal.File
	counts *reservationCounts
	fences map[event.Key]event.Fence // the greatest so far
	open   map[at]*reserved
	names  map[string]bool

	holding map[event.Key]*reserved // the newest reservation without an end
}

type reserved struct {
	name     string
	key      event.Key
	deadline clock.Instant
}

func (j *reservationJudge) visit(s journal.Step) error {
	here := at{s.File, s.Handling}
	if s.Deadline != 0 {
		if r := j.open[here]; r != nil {
			j.overdue(s, r) // a deadline that has passed is never extended
			r.deadline = max(r.deadline, s.Deadline)
		}
		return nil
	}
	if s.Outcome == 0 {
		j.begin(here, s)
		return nil
	}
	r := j.open[here]
	if r == nil {
		return nil // of no reservation
	}
	delete(j.open, here)
	if j.holding[r.key] == r {
		delete(j.holding, r.key)
	}
	if s.Outcome == journal.Done {
		j.counts.Ended++
	} else {
		j.counts.Lost++
	}
	j.overdue(s, r)
	return nil
}

// overdue judges a holder by a record that it has written.
func (j *reservationJudge) overdue(s journal.Step, r *reserved) {
	if r.deadline != 0 && s.At.After(r.deadline.Add(overdueMax)) && !j.stopped(s.File, r.deadline, s.At) {
		j.counts.Overdue++
		j.counts.example("%s went on for %v after its deadline", r.name, s.At.Sub(r.deadline))
	}
}

func (j *reservationJudge) begin(here at, s journal.Step) {
	fence := event.Fence{Token: s.Token, Turn: s.Turn}
	before, known := j.fences[s.Key]
	if !known || before.Before(fence) {
		j.fences[s.Key] = fence
	}
	if r := j.holding[s.Key]; r != nil && s.At.Before(r.deadline) {
		j.counts.Early++
		j.counts.example("%s began %v before the deadline of %s", s.Event, r.deadline.Sub(s.At), r.name)
	}
	if !isReservation(s.Event) {
		return
	}
	switch covered := isCovered(s.Event); {
	case strings.Contains(s.Event, resumedMark):
		j.counts.Resumed++
	case covered:
		j.counts.Covered++
		fallthrough
	default:
		j.counts.Granted++
	}
	r := &reserved{name: s.Event, key: s.Key}
	j.open[here], j.holding[s.Key] = r, r
	j.name(s.Event)
	if known && !before.Before(fence) && !j.stopped(s.File, s.At.Add(-journal.WakeMax), s.At) {
		j.counts.Backward++
		j.counts.example("%s was granted with the fence %v after %v", s.Event, fence, before)
	}
}

// name notes that a reservation had an answer.
func (j *reservationJudge) name(name string) {
	if j.names[name] {
		j.counts.Twice++
		j.counts.example("%s had two answers", name)
	}
	j.names[name] = true
}

// stopped reports whether the process of a journal stood still at some time between two instants.
func (j *reservationJudge) stopped(file int, from, until clock.Instant) bool {
	return slices.ContainsFunc(j.files[file].Stops, func(s journal.Stop) bool { return s.From.Before(until) && from.Before(s.Until) })
}

// String tells the reservations in one line.
func (c *reservationCounts) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d granted: %d released, %d lost, %d cut with their holder; %d with a ttl, which went on at another owner %d times; %d refused",
		c.Granted, c.Released, c.Lost, c.Cut, c.Covered, c.Resumed, c.Refused)
	for _, code := range slices.Sorted(maps.Keys(c.Codes)) {
		fmt.Fprintf(&text, " (%s %d)", code, c.Codes[code])
	}
	return text.String()
}
