package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ringfence/router/internal/clock"
)

// plan divides a paced load into a warm-up, an undisturbed half and a disturbed one,
// by the numbers of its events.
type plan struct {
	from, half, to int
	rate           int // events a second
}

func (o Options) plan() plan {
	events := func(d time.Duration) int { return int(d.Seconds() * float64(o.Rate)) }
	return plan{from: events(o.WarmUp), half: events(o.WarmUp + o.Measure), to: events(o.WarmUp + 2*o.Measure), rate: o.Rate}
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

// during returns the half of the round in which now lies, by the stamp of any event.
func (p plan) during(now clock.Instant, n int, at clock.Instant) (half int, ok bool) {
	return p.of(n + int(now.Sub(at).Seconds()*float64(p.rate)))
}

// disturbance is what applications do to some keys from the disturbed half on: the
// first keys are slow, the next ones fail.
type disturbance struct {
	slow  int           // keys whose handler takes longer
	fails int           // keys whose handler fails
	takes time.Duration // a handler of the slow ones
}

// keys are those that are disturbed, or will be: figures are about the others.
func (d disturbance) keys() int { return d.slow + d.fails }

// half is what the applications saw of the other keys in one half of the round.
type half struct {
	handled    int // in that time
	start, end *hdrhistogram.Histogram
}

func newHalf() half { return half{start: newHistogram(), end: newHistogram()} }

// halves are those of one application process. Safe for concurrent use.
type halves struct {
	plan plan

	mu   sync.Mutex
	both [2]half
}

func newHalves(p plan) *halves { return &halves{plan: p, both: [2]half{newHalf(), newHalf()}} }

func (h *halves) started(payload []byte, now clock.Instant) {
	n, at, err := readStamp(payload)
	if err != nil {
		return
	}
	if i, ok := h.plan.of(n); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		recordLatency(h.both[i].start, now.Sub(at))
	}
}

func (h *halves) finished(payload []byte, now clock.Instant) {
	n, at, err := readStamp(payload)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if i, ok := h.plan.of(n); ok {
		recordLatency(h.both[i].end, now.Sub(at))
	}
	if i, ok := h.plan.during(now, n, at); ok {
		h.both[i].handled++
	}
}

// halfFile is what a worker leaves of one half.
type halfFile struct {
	Handled int `json:"handled"`
	latencyFile
}

func (h *halves) write(path string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var files [2]halfFile
	for i, one := range h.both {
		var err error
		files[i].Handled = one.handled
		if files[i].latencyFile, err = encodeLatencies(one.start, one.end); err != nil {
			return err
		}
	}
	b, err := json.Marshal(files)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// mergeHalves adds the file of a worker to both halves.
func mergeHalves(path string, both *[2]half) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("what an application saw: %w", err)
	}
	var files [2]halfFile
	if err := json.Unmarshal(b, &files); err != nil {
		return err
	}
	for i := range files {
		both[i].handled += files[i].Handled
		if err := files[i].merge(both[i].start, both[i].end); err != nil {
			return err
		}
	}
	return nil
}
