package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Sample is one measured repetition of a drain.
type Sample struct {
	PerSecond float64
	CPU       map[string]float64 // role → CPU microseconds per event
	Allocated map[string]float64 // role → bytes of heap allocated per event, with what the processes need to start
	Events    int                // in the backlog
	Allowance allowance          // the most; zero if the broker's admin API is not there
}

// drain fills a fresh topic, starts the mode's processes, waits until they have
// handled everything, and computes the steady window's figures.
func (r round) drain(ctx context.Context, events int) (s Sample, err error) {
	fill := func(ctx context.Context, p *publisher) error { return p.backlog(ctx, events) }
	err = r.onBacklog(ctx, fill, record{}, func(ctx context.Context, c *cluster) error {
		drain, done := context.WithTimeout(ctx, drainMax)
		defer done()
		profiler, allowance := profiler{path: r.options.Profile}, r.watchAllowance(drain, &s.Allowance)
		err = c.awaitHandled(drain, events, func() {
			allowance()
			profiler.watch(drain, c, events)
		})
		if err != nil && (ctx.Err() != nil || total(c.procs) < eventsMin) {
			return err
		}
		if err := profiler.wait(); err != nil {
			return err
		}
		most := s.Allowance
		s, err = window(r.options.Warm, min(events, total(c.procs)), c.procs)
		s.Events, s.Allowance = events, most
		if err == nil {
			s.Allocated, err = c.allocatedPerEvent(ctx)
		}
		return err
	})
	return s, err
}

// watchAllowance returns a function that keeps the maximum of the subscription's use of its allowance, if the broker can be asked.
func (r round) watchAllowance(ctx context.Context, most *allowance) func() {
	var asked time.Time
	return func() {
		if !r.admin.there() || time.Since(asked) < allowanceTick {
			return
		}
		asked = time.Now()
		if a, err := r.admin.allowanceOf(ctx, r.topic, r.partitions()); err == nil { // one answer less is no harm
			*most = most.max(a)
		}
	}
}

// awaitHandled waits until the applications have handled so many events, and calls watch all the time.
func (c *cluster) awaitHandled(ctx context.Context, events int, watch func()) error {
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d events were handled: %w", total(c.procs), events, errors.Join(ctx.Err(), c.lastWords()))
		case <-tick.C:
		}
		c.sampleCPU()
		watch()
		if total(c.procs) >= events {
			return nil
		}
	}
}

// drainMax bounds the time of draining a backlog. Of a slower one, the events handled by then
// count.
const drainMax = 90 * time.Second

// settle is the time between the last worker's first event and the begin of the steady window.
const settle = 500 * time.Millisecond

// windowShortest is the length of the shortest steady window with a meaningful result.
const windowShortest = 500 * time.Millisecond

// drainedAt is the part of the backlog with which the steady window ends.
const drainedAt = 0.95

// window computes the figures between the moment when warm of the backlog was
// handled, or a little after the last worker had begun where that was later, and the
// moment when drainedAt was.
func window(warm float64, events int, procs []*proc) (Sample, error) {
	var from time.Time
	for _, p := range procs {
		if p.role != roleApp {
			continue
		}
		began, ok := p.began()
		if !ok {
			return Sample{}, errors.New("one of the workers has handled nothing: ask for more --events")
		}
		if at := began.Add(settle); at.After(from) {
			from = at
		}
	}
	if at := reached(procs, warm*float64(events)); at.After(from) {
		from = at
	}
	to := reached(procs, drainedAt*float64(events))
	took := to.Sub(from)
	if took < windowShortest {
		return Sample{}, fmt.Errorf("the steady window is only %.2f s long: ask for more --events", took.Seconds())
	}
	n := eventsAt(procs, to) - eventsAt(procs, from)
	return Sample{PerSecond: n / took.Seconds(), CPU: cpuPerEvent(procs, from, to, n)}, nil
}

// cpuPerEvent is each role's CPU use for n events, in microseconds.
func cpuPerEvent(procs []*proc, from, to time.Time, n float64) map[string]float64 {
	cpu := map[string]float64{}
	for _, p := range procs {
		p.mu.Lock()
		cpu[p.role] += (valueAt(p.cpu, to) - valueAt(p.cpu, from)) * 1e6 / n
		p.mu.Unlock()
	}
	return cpu
}

// allocatedPerEvent is the heap that the processes of each role have allocated since they started, in bytes, divided by the events
// handled.
func (c *cluster) allocatedPerEvent(ctx context.Context) (map[string]float64, error) {
	bytes, n := map[string]float64{}, float64(total(c.procs))
	for _, p := range c.procs {
		p.mu.Lock()
		if p.allocated > 0 {
			bytes[p.role] += p.allocated / n
		}
		p.mu.Unlock()
	}
	for _, admin := range c.admins {
		allocated, err := routerAllocated(ctx, admin)
		if err != nil {
			return nil, err
		}
		bytes[roleRouter] += allocated / n
	}
	return bytes, nil
}

// routerAllocated asks a router for the bytes of heap that it has allocated.
func routerAllocated(ctx context.Context, admin string) (float64, error) {
	const metric = "go_memstats_alloc_bytes_total"
	body, err := get(ctx, "http://"+admin+"/metrics")
	if err != nil {
		return 0, fmt.Errorf("ask a router for its metrics: %w", err)
	}
	defer func() { _ = body.Close() }() // it was read
	for lines := bufio.NewScanner(body); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), metric+" "); found {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("a router at %s has no metric %s", admin, metric)
}

func total(procs []*proc) int {
	n := 0.0
	for _, p := range procs {
		p.mu.Lock()
		if len(p.events) > 0 {
			n += p.events[len(p.events)-1].value
		}
		p.mu.Unlock()
	}
	return int(n)
}

// reached returns the last moment of a report at which less than n events were handled.
func reached(procs []*proc, n float64) time.Time {
	var last time.Time
	for _, p := range procs {
		for _, e := range p.reported() {
			if e.at.After(last) && eventsAt(procs, e.at) < n {
				last = e.at
			}
		}
	}
	return last
}

// began returns when the worker reported its first event.
func (p *proc) began() (time.Time, bool) {
	for _, e := range p.reported() {
		if e.value > 0 {
			return e.at, true
		}
	}
	return time.Time{}, false
}

// reported returns the progress so far. The returned points are never changed.
func (p *proc) reported() []point {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.events
}

func eventsAt(procs []*proc, t time.Time) float64 {
	n := 0.0
	for _, p := range procs {
		n += valueAt(p.reported(), t)
	}
	return n
}

// valueAt interpolates between the points around t. Before the first one it is 0.
func valueAt(points []point, t time.Time) float64 {
	var before point
	for _, p := range points {
		if p.at.After(t) {
			if before.at.IsZero() {
				return 0
			}
			part := float64(t.Sub(before.at)) / float64(p.at.Sub(before.at))
			return before.value + part*(p.value-before.value)
		}
		before = p
	}
	return before.value
}
