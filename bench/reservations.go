package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ringfence/router/internal/base/clock"
)

// The goals of reservations on two cores.
const (
	goalPairOfRedis = 2.5    // times the p50 of Redis' two round trips
	goalPairs       = 10_000 // pairs a second
	goalHandOverP50 = 0.5    // ms
	goalHandOverP99 = 2.0    // ms
	goalOfEtcd      = 10.0   // times the pairs a second of etcd's mutex
	goalCoveredP50  = 15.0   // ms, of a pair with a ttl
	goalCoveredP99  = 40.0   // ms
	goalCovered     = 2_000  // pairs a second
	goalFairness    = 0.5    // grants of the waiter with the fewest, as a part of those of the one with the most
)

// reservationsSample is one repetition of the workload reservations.
type reservationsSample struct {
	alone     holdsPhase         // one holder, many keys
	full      holdsPhase         // many holders, many keys
	contended holdsPhase         // many holders, one key
	perSecond float64            // pairs, of full
	cpu       map[string]float64 // per pair, of full
	verified  uint64             // grants of all three
}

func (s reservationsSample) line(Options) string {
	pair, over := quantilesOf(s.alone.pair), quantilesOf(s.contended.handOver)
	return fmt.Sprintf("pair p50 %.2f  p99 %.2f ms  %9.0f pairs/s  hand-over p50 %.2f  p99 %.2f ms", pair.P50, pair.P99, s.perSecond, over.P50, over.P99)
}

// reservations takes keys and releases them: one at a time, as many as are granted, and one key by many.
func (r round) reservations(ctx context.Context) (s reservationsSample, err error) {
	o := r.options
	err = r.run(ctx, func(ctx context.Context) error {
		return r.withCluster(ctx, record{}, func(ctx context.Context, c *cluster) error {
			if err := c.awaitReady(ctx); err != nil {
				return err
			}
			for _, phase := range []struct {
				name          string
				holders, keys int
				into          *holdsPhase
			}{{"alone", 1, o.Keys, &s.alone}, {"full", o.Callers, o.Keys, &s.full}, {"contended", o.Waiters, 1, &s.contended}} {
				var cpu map[string]float64
				if *phase.into, cpu, err = r.holds(ctx, c, phase.name, phase.holders, phase.keys); err != nil {
					return fmt.Errorf("%s: %w", phase.name, err)
				}
				s.verified += phase.into.grants
				if phase.into == &s.full {
					s.cpu = cpu
				}
			}
			s.perSecond = float64(s.full.pair.TotalCount()) / o.Measure.Seconds()
			return nil
		})
	})
	return s, err
}

// holdsPhase is what the holders of a phase know.
type holdsPhase struct {
	pair, wait, handOver *hdrhistogram.Histogram
	grants               uint64
	counted              []uint64 // by holder
	again                uint64
}

// holds runs the process of the holders, and returns the CPU that a pair has cost while they counted.
func (r round) holds(ctx context.Context, c *cluster, name string, holders, keys int) (p holdsPhase, cpu map[string]float64, err error) {
	o := r.options
	begin := clock.Now().Add(callersStart)
	path := filepath.Join(c.dir, "holders-"+name+".json")
	process, err := c.launch(ctx, roleHolder, c.self, holderCommand, "--mode", r.mode.name, "--endpoints", strings.Join(c.callees, ","),
		"--holders", strconv.Itoa(holders), "--keys", strconv.Itoa(keys), "--distribution", o.Distribution, "--begin", strconv.FormatInt(int64(begin), 10),
		"--warm-up", o.WarmUp.String(), "--measure", o.Measure.String(), "--out", path)
	if err != nil {
		return p, nil, err
	}
	from, err := sampledAt(ctx, c, begin.Add(o.WarmUp))
	if err != nil {
		return p, nil, err
	}
	to, err := sampledAt(ctx, c, begin.Add(o.WarmUp+o.Measure))
	if err != nil {
		return p, nil, err
	}
	if process.wait(); !process.cmd.ProcessState.Success() {
		return p, nil, fmt.Errorf("the holders: %v: %w", process.cmd.ProcessState, errors.Join(ctx.Err(), c.lastWords()))
	}
	if p, err = readHolds(path); err != nil {
		return p, nil, errors.Join(err, c.lastWords())
	}
	return p, cpuPerEvent(c.procs, from, to, float64(max(1, p.pair.TotalCount()))), nil
}

// readHolds reads and judges the file of the holders. A key with two holders, a grant without a release, and a reservation that was refused
// or lost are errors: no figure would mean anything.
func readHolds(path string) (p holdsPhase, err error) {
	var f holdsFile
	if err := readJSON(path, &f); err != nil {
		return p, fmt.Errorf("the reservations of the holders: %w", err)
	}
	switch {
	case f.Twice > 0:
		return p, fmt.Errorf("a key had two holders, %d times in %d grants", f.Twice, f.Grants)
	case f.Backward > 0:
		return p, fmt.Errorf("the fence of a key did not grow, %d times in %d grants", f.Backward, f.Grants)
	case len(f.Failed) > 0:
		return p, fmt.Errorf("%d grants, and holders that ended: %v", f.Grants, f.Failed)
	case f.Grants == 0 || f.Grants != f.Releases:
		return p, fmt.Errorf("%d grants, and %d releases", f.Grants, f.Releases)
	}
	p = holdsPhase{pair: newHistogram(), wait: newHistogram(), handOver: newHistogram(), grants: f.Grants, counted: f.Counted, again: f.Again}
	return p, errors.Join(addEncoded(p.pair, f.Pairs), addEncoded(p.wait, f.Waits), addEncoded(p.handOver, f.Over))
}

// Reservations is the cost of keys that are taken and released. Quantiles are of all repetitions together.
type Reservations struct {
	Pair Quantiles `json:"pair"` // one holder: from the ask to the end of the release

	PerS      float64    `json:"saturation_per_s"` // pairs, the median, with as many callers as the report has
	PerSpread [2]float64 `json:"saturation_per_s_min_max"`
	Saturated Quantiles  `json:"saturation_pair"`

	HandOver  Quantiles `json:"hand_over"` // many for one key: from a release to the grant of another one
	Wait      Quantiles `json:"wait"`      // then, from the ask to the grant
	GrantsMin uint64    `json:"grants_min"`
	GrantsMax uint64    `json:"grants_max"` // then, of one waiter in one repetition
	Again     float64   `json:"again"`      // then, the part of the grants that the last holder got although others waited

	Verified uint64 `json:"verified"` // grants that were alone, with a greater fence if there are any, and released
}

func reservationsResult(_ Options, m mode, samples []reservationsSample) Result {
	pair, saturated, handOver, wait := newHistogram(), newHistogram(), newHistogram(), newHistogram()
	h := &Reservations{}
	var rates []float64
	var cpu []map[string]float64
	var again, grants uint64
	for i, s := range samples {
		pair.Merge(s.alone.pair)
		saturated.Merge(s.full.pair)
		handOver.Merge(s.contended.handOver)
		wait.Merge(s.contended.wait)
		rates, cpu = append(rates, s.perSecond), append(cpu, s.cpu)
		h.Verified += s.verified
		again += s.contended.again
		for _, n := range s.contended.counted {
			grants += n
		}
		least, most := slices.Min(s.contended.counted), slices.Max(s.contended.counted)
		if i == 0 || least < h.GrantsMin {
			h.GrantsMin = least
		}
		h.GrantsMax = max(h.GrantsMax, most)
	}
	h.Pair, h.Saturated, h.HandOver, h.Wait = quantilesOf(pair), quantilesOf(saturated), quantilesOf(handOver), quantilesOf(wait)
	h.PerS, h.PerSpread = median(rates)
	h.Again = float64(again) / float64(max(1, grants))
	return Result{Mode: m.name, Repetitions: len(samples), CPUPerEvent: medians(cpu), Reservations: h}
}

// row formats the figures for the table of a report.
func (h *Reservations) row(r *Report, cpu map[string]float64) string {
	return fmt.Sprintf("pair p50 %6.2f  p90 %6.2f  p99 %6.2f ms  %d callers: %7.0f pairs/s (%.0f … %.0f), p99 %6.2f ms  %d waiters: hand-over p50 %6.2f  p99 %6.2f  max %6.1f ms, "+
		"wait p99 %.1f  max %.1f ms, grants %d … %d, %.0f %% again  CPU/pair: %s  %d verified",
		h.Pair.P50, h.Pair.P90, h.Pair.P99, r.Callers, h.PerS, h.PerSpread[0], h.PerSpread[1], h.Saturated.P99,
		r.Waiters, h.HandOver.P50, h.HandOver.P99, h.HandOver.Max, h.Wait.P99, h.Wait.Max, h.GrantsMin, h.GrantsMax, 100*h.Again, byRole(cpu, "%s %.1f µs"), h.Verified)
}

// fair reports whether no waiter starves.
func (h *Reservations) fair() bool {
	return h.GrantsMin > 0 && float64(h.GrantsMin) >= goalFairness*float64(h.GrantsMax)
}

// goalsOfReservations compares the figures with the goals, as far as the modes are there. It is empty without reservations.
func (r *Report) goalsOfReservations() string {
	of := map[string]*Reservations{}
	for _, m := range r.Modes {
		of[m.Mode] = m.Reservations
	}
	ours := of[modeReserve]
	if ours == nil {
		return ""
	}
	ratio := func(a, b float64) float64 { return a / max(b, 0.001) }
	pair, etcd := "not measured", "not measured"
	if redis := of[modeRedis]; redis != nil {
		times := ratio(ours.Pair.P50, redis.Pair.P50)
		pair = fmt.Sprintf("%s (%.2f)", goalText(times <= goalPairOfRedis), times)
	}
	if their := of[modeEtcd]; their != nil {
		times := ratio(ours.PerS, their.PerS)
		etcd = fmt.Sprintf("%s (%.1f; pair p50 %.1f, hand-over p50 %.1f times as fast)", goalText(times >= goalOfEtcd), times,
			ratio(their.Pair.P50, ours.Pair.P50), ratio(their.HandOver.P50, ours.HandOver.P50))
	}
	covered := "not measured"
	if c := of[modeCovered]; c != nil {
		covered = goalText(c.Pair.P50 <= goalCoveredP50 && c.Pair.P99 <= goalCoveredP99 && c.PerS >= goalCovered)
	}
	return fmt.Sprintf("pair p50 <= %v x %s: %s; >= %d pairs/s: %s; hand-over p50 <= %v ms, p99 <= %v ms: %s; no waiter has less than half of the grants of another one: %s; >= %v x the pairs/s of %s: %s; %s: pair p50 <= %v ms, p99 <= %v ms, >= %d pairs/s: %s",
		goalPairOfRedis, modeRedis, pair, goalPairs, goalText(ours.PerS >= goalPairs), goalHandOverP50, goalHandOverP99,
		goalText(ours.HandOver.Count > 0 && ours.HandOver.P50 <= goalHandOverP50 && ours.HandOver.P99 <= goalHandOverP99), goalText(ours.fair()), goalOfEtcd, modeEtcd, etcd,
		modeCovered, goalCoveredP50, goalCoveredP99, goalCovered, covered)
}
