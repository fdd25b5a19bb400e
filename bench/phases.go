package main

import (
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ringfence/router/internal/base/clock"
)

// plan divides a paced load into a warm-up, an undisturbed half and a disturbed one,
// by the numbers of its events.
type plan struct {
	from, half, to int
	rate           int // events a second
}

func (o Options) plan() plan {
	return plan{from: o.eventsIn(o.WarmUp), half: o.eventsIn(o.WarmUp + o.Measure), to: o.eventsIn(o.WarmUp + 2*o.Measure), rate: o.Rate}
}

// of returns the half that the n-th event belongs to, false for neither.
func (p plan) of(n int) (half int, ok bool) {
	switch {
	case n < p.from || n >= p.to:
		return 0, false
	case n < p.half:
		return 0, true
	}
	return 1, true
}

// after returns the half of the round at a time after the n-th event was to be published.
func (p plan) after(n int, d time.Duration) (half int, ok bool) {
	return p.of(n + int(d.Seconds()*float64(p.rate)))
}

// disturbance is the treatment of some keys by applications from the disturbed half on: the
// first keys are slow, the next ones fail.
type disturbance struct {
	slow  int           // keys whose handler takes longer
	fails int           // keys whose handler fails
	takes time.Duration // a handler of the slow ones
}

// keys returns the number of disturbed keys, before and during the disturbance. Figures are about
// all other keys.
func (d disturbance) keys() int { return d.slow + d.fails }

// never is the time of an event that has not happened.
const never = math.MaxUint32

// times holds the first start and the first end of each event of a plan, in microseconds after the
// event was due. Redeliveries, also to another process, do not count.
type times struct {
	Start, End []uint32 // by number
}

func newTimes(p plan) times {
	t := times{Start: make([]uint32, p.to), End: make([]uint32, p.to)}
	for n := range p.to {
		t.Start[n], t.End[n] = never, never
	}
	return t
}

// merge adds another process's observations.
func (t times) merge(other times) error {
	if len(other.Start) != len(t.Start) || len(other.End) != len(t.End) {
		return errors.New("the times are of another plan")
	}
	for n := range t.Start {
		t.Start[n], t.End[n] = min(t.Start[n], other.Start[n]), min(t.End[n], other.End[n])
	}
	return nil
}

// timeline records when one application began and finished events of undisturbed keys. Safe for
// concurrent use.
type timeline struct {
	plan plan

	mu    sync.Mutex
	times times
}

func newTimeline(p plan) *timeline { return &timeline{plan: p, times: newTimes(p)} }

func (d *timeline) started(payload []byte, now clock.Instant)  { d.note(d.times.Start, payload, now) }
func (d *timeline) finished(payload []byte, now clock.Instant) { d.note(d.times.End, payload, now) }

func (d *timeline) note(at []uint32, payload []byte, now clock.Instant) {
	n, published, err := readStamp(payload)
	if err != nil || n >= d.plan.to {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at[n] = min(at[n], uint32(min(max(0, now.Sub(published).Microseconds()), never-1)))
}

func (d *timeline) write(path string) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(file).Encode(d.times), file.Close())
}

// mergeTimeline adds the timeline of a worker to t.
func mergeTimeline(path string, t times) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("the timeline of an application: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	var other times
	if err := gob.NewDecoder(file).Decode(&other); err != nil {
		return fmt.Errorf("the timeline of an application: %w", err)
	}
	return t.merge(other)
}

// half is the sum of all applications' observations in one half.
type half struct {
	published  int
	handled    int // of any events, in its time
	late       int // of its events, not begun when the round was over
	start, end *hdrhistogram.Histogram
}

func newHalf() half { return half{start: newHistogram(), end: newHistogram()} }

// halves sums up. others are the numbers of the events of undisturbed keys; those that have not
// begun count as if they had, lateMax after the end of the round.
func (t times) halves(p plan, others []int) [2]half {
	both := [2]half{newHalf(), newHalf()}
	for _, n := range others {
		if i, ok := p.of(n); ok {
			h := &both[i]
			h.published++
			start := time.Duration(t.Start[n]) * time.Microsecond
			if t.Start[n] == never {
				h.late++
				start = time.Duration(float64(p.to-n)/float64(p.rate)*float64(time.Second)) + lateMax
			}
			recordLatency(h.start, start)
		}
		if t.End[n] == never {
			continue
		}
		end := time.Duration(t.End[n]) * time.Microsecond
		if i, ok := p.of(n); ok {
			recordLatency(both[i].end, end)
		}
		if i, ok := p.after(n, end); ok {
			both[i].handled++
		}
	}
	return both
}
