package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/client"
)

// runs checks the runs of all jobs as they begin and end. Its methods are safe for concurrent use.
type runs struct {
	say  func(format string, args ...any)
	name func(endpoint string) string // of the application
	kill chan<- string                // the name of an application whose run is to be cut

	mu     sync.Mutex
	jobs   map[string]*history
	faults []error
	begun  int
	every  int  // how many runs pass between two that are cut; 0: all
	outage bool // there was one
}

// history holds the runs of a job.
type history struct {
	running *attempt // nil: none
	times   []*attempt
}

// attempt is a run.
type attempt struct {
	time   time.Time
	missed int
	at     string
	fence  client.Fence
	ended  bool
	cut    bool // its process was killed, or has lost the key
}

// faultsMax bounds what is told.
const faultsMax = 20

// wrong notes a fault. The mutex is held.
func (r *runs) wrong(format string, args ...any) {
	if len(r.faults) < faultsMax {
		r.faults = append(r.faults, fmt.Errorf(format, args...))
	}
}

func (r *runs) of(job string) *history {
	if r.jobs == nil {
		r.jobs = make(map[string]*history)
	}
	if r.jobs[job] == nil {
		r.jobs[job] = new(history)
	}
	return r.jobs[job]
}

const clockTime = "15:04:05"

// wrote is told of every row that is written: a run begins or ends.
func (r *runs) wrote(job string, fence client.Fence, _, after []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var is row
	if err := json.Unmarshal(after, &is); err != nil {
		r.wrong("%s: %w", job, err)
		return
	}
	h := r.of(job)
	at := r.name(is.At)
	if is.Ended {
		if a := h.running; a == nil || a.fence != fence || !a.time.Equal(is.Time) {
			r.wrong("%s of %s ends at %s with fence %v, and has not begun so: %+v", job, is.Time.Format(clockTime), at, fence, a)
			return
		}
		h.running.ended, h.running = true, nil
		return
	}
	if a := h.running; a != nil {
		r.wrong("two at once: %s of %s begins at %s with fence %v, while that of %s runs at %s with fence %v", job, is.Time.Format(clockTime), at, fence, a.time.Format(clockTime), a.at, a.fence)
	}
	if len(h.times) > 0 && !h.times[len(h.times)-1].fence.Before(fence) {
		r.wrong("%s of %s has fence %v, which is no greater than %v before", job, is.Time.Format(clockTime), fence, h.times[len(h.times)-1].fence)
	}
	if time.Now().Before(is.Time) {
		r.wrong("%s of %s begins before its time", job, is.Time.Format(clockTime))
	}
	again := ""
	if n := len(h.times); n > 0 && h.times[n-1].time.Equal(is.Time) {
		again = ", again: the one before was cut"
	}
	h.running = &attempt{time: is.Time, missed: is.Missed, at: at, fence: fence}
	h.times = append(h.times, h.running)
	r.say("%-8s of %s runs at %s, %d missed, fence %s%s", job, is.Time.Local().Format(clockTime), at, is.Missed, short(fence), again)
	if r.begun++; r.every > 0 && r.begun%r.every == 0 {
		select {
		case r.kill <- at:
		default: // one is being killed
		}
	}
}

// short is a fence for people: token and turn.
func short(f client.Fence) string { return fmt.Sprintf("%d.%d", f.Token, f.Turn) }

// noted is told what else a run says.
func (r *runs) noted(job string, fence client.Fence, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.of(job)
	switch {
	case text == doneBefore:
		r.say("%-8s comes again with fence %s, and was done", job, short(fence))
	case h.running != nil && h.running.fence == fence:
		h.running.cut, h.running = true, nil
	}
}

// died says that an application is dead.
func (r *runs) died(at string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.jobs {
		if h.running != nil && h.running.at == at {
			h.running.cut, h.running = true, nil
		}
	}
}

// noteOutage says that all processes are killed.
func (r *runs) noteOutage() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outage = true
}

// done reports whether every job has run to its end for that time, or a later one.
func (r *runs) done(due time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, job := range jobs {
		h := r.of(job)
		if n := len(h.times); n == 0 || h.running != nil || !h.times[n-1].ended || h.times[n-1].time.Before(due) {
			return false
		}
	}
	return true
}

// sums are the counts of all runs.
type sums struct {
	times, cut, missed, untold int
	members                    []string
	faults                     []error
}

// sum checks that each time ran once, from the first one that did to the one that was due last: a run is for the time after the newest one that has ended,
// or for a later one if it tells how many it stands for. Only of a run that was cut may there be another one.
func (r *runs) sum(due time.Time) (s sums) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, job := range jobs {
		h := r.of(job)
		if len(h.times) == 0 {
			r.wrong("%s has not run", job)
			continue
		}
		ended := h.times[0].time.Add(-time.Duration(1+h.times[0].missed) * every)
		killed := false // since then
		for _, a := range h.times {
			if !slices.Contains(s.members, a.at) {
				s.members = append(s.members, a.at)
			}
			// An owner that dies may take a part of the count with it.
			untold := int(a.time.Sub(ended)/every) - 1 - a.missed
			if !a.time.After(ended) || untold < 0 || untold > 0 && !killed && !r.outage {
				r.wrong("%s runs for %s and %d before it, fence %v, after a run for %s has ended", job, a.time.Format(clockTime), a.missed, a.fence, ended.Format(clockTime))
			}
			switch {
			case a.ended:
				ended, killed = a.time, false
				s.times++
				s.missed += a.missed
				s.untold += untold
			case a.cut:
				killed = true
				s.cut++
			default:
				r.wrong("%s of %s with fence %v has not ended, and nobody has cut it", job, a.time.Format(clockTime), a.fence)
			}
		}
		if ended.Before(due) {
			r.wrong("%s has not run for %s: its newest run was for %s", job, due.Format(clockTime), ended.Format(clockTime))
		}
	}
	slices.Sort(s.members)
	s.faults = r.faults
	return s
}
