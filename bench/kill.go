package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/journal"
)

// killSample is the evidence of the journals of a run with or without a kill.
type killSample struct {
	gap    journal.Spread // by key, from the kill on
	report journal.Report
}

// again returns the number of handlings that were repeated or cut.
func (s killSample) again() int {
	return max(0, int(s.report.Started)-int(s.report.Events))
}

func (s killSample) line(Options) string {
	return fmt.Sprintf("gap p99 %v  worst %v", s.gap.P99, s.gap.Max)
}

// killAfter is the part of the measured time before the kill.
const killAfter = 0.25

// lossWait is the time that a run waits for unhandled events after the last event was
// published, or the last handling seen.
const lossWait = time.Minute

// kill publishes at a fixed rate, ends a node by SIGKILL, and reads the effect on its keys from
// the journals.
func (r round) kill(ctx context.Context) (s killSample, err error) {
	load := r.options.load()
	err = r.onLoad(ctx, record{journals: true}, func(ctx context.Context, c *cluster, p *publisher) error {
		var killed clock.Instant
		at := r.options.WarmUp + time.Duration(killAfter*float64(r.options.Measure))
		times, err := r.paced(ctx, c, p, func(since time.Duration) {
			if killed == 0 && since >= at {
				killed = c.kill(len(c.nodes) - 1)
			}
		})
		if err != nil {
			return err
		}
		if s.report, err = c.awaitNothingLost(ctx, load.count); err != nil {
			return err
		}
		s.gap, err = journal.MeasureGaps(c.journals(), killed, func(event string) (clock.Instant, bool) {
			n, err := eventNumber(event)
			return times.at(n), err == nil
		})
		return err
	})
	return s, err
}

// verify drains a backlog on few keys, with handlers that take a millisecond, and
// reads in the journals whether two of them ran for one key at once. Such a run is of
// no use for speed, and the runs for speed keep no journals.
func (r round) verify(ctx context.Context) (s killSample, err error) {
	r.options.Keys, r.options.Size = r.options.VerifyKeys, 256
	r.options.Handler, r.options.StalledKeys = handler{name: "1ms", wait: time.Millisecond}, 0
	events := r.options.VerifyEvents
	fill := func(ctx context.Context, p *publisher) error { return p.stampedBacklog(ctx, events) }
	err = r.onBacklog(ctx, fill, record{journals: true}, func(ctx context.Context, c *cluster) error {
		if err := c.awaitReady(ctx); err != nil {
			return err
		}
		s.report, err = c.awaitNothingLost(ctx, events)
		return err
	})
	return s, err
}

// awaitNothingLost reads the journals until every event is handled, or nothing has
// been handled for lossWait.
func (c *cluster) awaitNothingLost(ctx context.Context, events int) (journal.Report, error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, handled, progress := time.Now(), 0, uint64(0)
	for {
		select {
		case <-ctx.Done():
			return journal.Report{}, fmt.Errorf("%d of %d events were handled: %w", handled, events, errors.Join(ctx.Err(), c.lastWords()))
		case <-tick.C:
		}
		if n := total(c.procs); n != handled {
			handled = n
			continue // reading costs CPU that the handlers want
		}
		report, err := journal.Check(c.journals(), eventNames(events))
		if err != nil || report.Lost == 0 {
			return report, err
		}
		if report.Started > progress {
			last, progress = time.Now(), report.Started
		}
		if time.Since(last) >= lossWait {
			return report, nil
		}
	}
}

// eventNames are the names of the first n events in journals.
func eventNames(n int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range n {
			if !yield(eventName(i)) {
				return
			}
		}
	}
}
