package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
)

// The goals of calls on two cores.
const (
	goalRate       = 5_000  // calls a second
	goalP90        = 1.0    // ms, at goalRate
	goalP99        = 3.0    // ms, at goalRate
	goalSaturation = 12_000 // calls a second
)

// callsSample is one repetition of the workload calls.
type callsSample struct {
	call, due *hdrhistogram.Histogram // at the rate
	saturated *hdrhistogram.Histogram // from call to reply, as fast as they are answered
	perSecond float64                 // then
	cpu       map[string]float64      // then, per call
	elsewhere float64                 // the part of the replies that another node's application gave, in both
	verified  uint64                  // calls of which caller and handler agree, in both
}

func (s callsSample) line(Options) string {
	q := quantilesOf(s.call)
	return fmt.Sprintf("p50 %.2f  p90 %.2f  p99 %.2f ms  %9.0f calls/s", q.P50, q.P90, q.P99, s.perSecond)
}

// callersStart is the time that callers have to start.
const callersStart = time.Second

// calls makes calls at the rate, and then as many as are answered, from one process beside each node.
func (r round) calls(ctx context.Context) (s callsSample, err error) {
	err = r.run(ctx, func(ctx context.Context) error {
		return r.withCluster(ctx, record{}, func(ctx context.Context, c *cluster) error {
			if err := c.awaitReady(ctx); err != nil {
				return err
			}
			paced, _, err := r.phase(ctx, c, "paced", "--rate", strconv.FormatFloat(float64(r.options.Rate)/float64(r.options.Nodes), 'f', -1, 64))
			if err != nil {
				return fmt.Errorf("calls at %d/s: %w", r.options.Rate, err)
			}
			full, cpu, err := r.phase(ctx, c, "saturated", "--callers", strconv.Itoa(r.options.Callers/r.options.Nodes))
			if err != nil {
				return fmt.Errorf("calls of %d callers: %w", r.options.Callers, err)
			}
			s = callsSample{
				call: paced.call, due: paced.due, saturated: full.call, perSecond: float64(full.replies.Calls) / r.options.Measure.Seconds(), cpu: cpu,
				verified: paced.replies.Calls + full.replies.Calls,
			}
			s.elsewhere = float64(paced.elsewhere+full.elsewhere) / float64(s.verified)
			return verifyCalls(c, paced, full)
		})
	})
	return s, err
}

// callsPhase is what all callers of a phase know.
type callsPhase struct {
	call, due        *hdrhistogram.Histogram
	replies, handled tally
	elsewhere        uint64
}

// phase runs one process of callers beside each node, and returns the CPU that a call has cost while they counted.
func (r round) phase(ctx context.Context, c *cluster, name string, args ...string) (p callsPhase, cpu map[string]float64, err error) {
	o := r.options
	begin := clock.Now().Add(callersStart)
	paths, procs := make([]string, o.Nodes), make([]*proc, o.Nodes)
	for i := range o.Nodes {
		paths[i] = filepath.Join(c.dir, fmt.Sprintf("caller-%s-%d.json", name, i))
		procs[i], err = c.launch(ctx, roleCaller, c.self, append([]string{
			callerCommand, "--mode", r.mode.name, "--endpoint", c.callees[i], "--node", strconv.Itoa(i), "--keys", strconv.Itoa(o.Keys),
			"--distribution", o.Distribution, "--size", strconv.Itoa(o.Size), "--begin", strconv.FormatInt(int64(begin), 10),
			"--warm-up", o.WarmUp.String(), "--measure", o.Measure.String(), "--out", paths[i],
		}, args...)...)
		if err != nil {
			return p, nil, err
		}
	}
	from, err := sampledAt(ctx, c, begin.Add(o.WarmUp))
	if err != nil {
		return p, nil, err
	}
	to, err := sampledAt(ctx, c, begin.Add(o.WarmUp+o.Measure))
	if err != nil {
		return p, nil, err
	}
	for _, caller := range procs {
		if caller.wait(); !caller.cmd.ProcessState.Success() {
			return p, nil, fmt.Errorf("a caller: %v: %w", caller.cmd.ProcessState, errors.Join(ctx.Err(), c.lastWords()))
		}
	}
	if p, err = mergeCalls(paths); err != nil {
		err = errors.Join(err, c.lastWords())
	}
	return p, cpuPerEvent(c.procs, from, to, float64(max(1, p.replies.Calls))), err
}

// sampledAt samples the CPU use of all processes at an instant.
func sampledAt(ctx context.Context, c *cluster, at clock.Instant) (time.Time, error) {
	err := backoff.Sleep(ctx, at.Sub(clock.Now()))
	c.sampleCPU()
	return time.Now(), err
}

// mergeCalls adds the files of callers up. A call without a right reply is an error: no figure would mean anything.
func mergeCalls(paths []string) (p callsPhase, err error) {
	p = callsPhase{call: newHistogram(), due: newHistogram()}
	for _, path := range paths {
		var f callsFile
		if err := readJSON(path, &f); err != nil {
			return p, fmt.Errorf("the calls of a caller: %w", err)
		}
		if f.Replies.Calls == 0 || f.Replies.Calls != f.Calls || len(f.Failed) > 0 {
			return p, fmt.Errorf("%d of %d calls of a caller have a right reply; the others: %v", f.Replies.Calls, f.Calls, f.Failed)
		}
		if err := errors.Join(addEncoded(p.call, f.Call), addEncoded(p.due, f.Due)); err != nil {
			return p, err
		}
		p.replies.add(f.Replies)
		p.handled.add(f.Handled)
		p.elsewhere += f.Elsewhere
	}
	return p, nil
}

// verifyCalls compares what the callers and the applications have counted: each call was handled once, and with the right key and
// payload.
func verifyCalls(c *cluster, phases ...callsPhase) error {
	var replies, handled tally
	for _, p := range phases {
		replies.add(p.replies)
		handled.add(p.handled)
	}
	c.stopApps()
	for _, app := range c.apps() {
		var t tally
		if err := readJSON(app.tally, &t); err != nil {
			return errors.Join(fmt.Errorf("the calls of an application: %w", err), c.lastWords())
		}
		handled.add(t)
	}
	if replies.Calls == 0 || replies != handled {
		return fmt.Errorf("the callers have %d replies with the sum %016x, the handlers ran %d times with the sum %016x", replies.Calls, replies.Sum, handled.Calls, handled.Sum)
	}
	return nil
}

// Calls is the cost of calls. Quantiles are of all repetitions together.
type Calls struct {
	Call Quantiles `json:"call"` // at the rate: from the call to its reply, at the caller
	Due  Quantiles `json:"due"`  // at the rate: from when the call was due, which counts the caller's own delay

	PerS      float64    `json:"saturation_per_s"` // the median, with as many callers as the report has
	PerSpread [2]float64 `json:"saturation_per_s_min_max"`
	Saturated Quantiles  `json:"saturation_call"`

	Elsewhere float64 `json:"elsewhere"` // the part of the replies that came from another node's application
	Verified  uint64  `json:"verified"`  // calls that caller and handler counted alike, with equal checksums
}

func callsResult(o Options, m mode, samples []callsSample) Result {
	call, due, saturated := newHistogram(), newHistogram(), newHistogram()
	c := &Calls{}
	var rates []float64
	var cpu []map[string]float64
	for _, s := range samples {
		call.Merge(s.call)
		due.Merge(s.due)
		saturated.Merge(s.saturated)
		rates, cpu = append(rates, s.perSecond), append(cpu, s.cpu)
		c.Verified += s.verified
		c.Elsewhere += s.elsewhere / float64(len(samples))
	}
	c.Call, c.Due, c.Saturated = quantilesOf(call), quantilesOf(due), quantilesOf(saturated)
	c.PerS, c.PerSpread = median(rates)
	return Result{Mode: m.name, Events: o.load().count - o.load().warmUp, Repetitions: len(samples), CPUPerEvent: medians(cpu), Calls: c}
}

// row formats the figures for the table of a report.
func (c *Calls) row(r *Report, cpu map[string]float64) string {
	return fmt.Sprintf("%d/s: p50 %6.2f  p90 %6.2f  p99 %6.2f ms (since due %.2f)  %d callers: %7.0f calls/s (%.0f … %.0f), p99 %6.2f ms  CPU/call: %s  %.0f %% elsewhere, %d verified",
		r.Rate, c.Call.P50, c.Call.P90, c.Call.P99, c.Due.P99, r.Callers, c.PerS, c.PerSpread[0], c.PerSpread[1], c.Saturated.P99, byRole(cpu, "%s %.1f µs"), 100*c.Elsewhere, c.Verified)
}

// goals compares the figures with the goals.
func (c *Calls) goals(rate int) string {
	latency := fmt.Sprintf("not measured at %d/s", rate)
	if rate >= goalRate {
		latency = goalText(c.Call.P90 <= goalP90 && c.Call.P99 <= goalP99)
	}
	return fmt.Sprintf("%d/s: p90 <= %v ms, p99 <= %v ms: %s; >= %d calls/s: %s", goalRate, goalP90, goalP99, latency, goalSaturation, goalText(c.PerS >= goalSaturation))
}

func goalText(reached bool) string {
	if reached {
		return "reached"
	}
	return "missed"
}
