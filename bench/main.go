// Command bench compares the ways of consuming one Pulsar topic, on one broker in one run, and
// prints the cost of each.
//
//	go run ./bench --modes shared,ringfence --handler none
//	go run ./bench --suite core --out result.json
//	go run ./bench plot --in result.json --out docs/img
//	go run ./bench contention --in contention.txt --out docs/img
//
// Every consumer, application and router is a process of its own. The workloads:
//
//   - drain consumes a backlog as fast as possible. Its figures come from the steady
//     window, which begins when part of the backlog is handled and every process has the
//     memory that it needs, and ends when the backlog is nearly drained, so that start-up
//     and tail do not count.
//   - latency publishes at a fixed rate, and measures the time from an event's due time to
//     the start and to the end of its handler.
//   - kill publishes at a fixed rate, ends a node by SIGKILL, and measures how long keys
//     stand still, and how many events are handled again.
//   - stuck publishes at a fixed rate, first undisturbed, then with some keys whose handlers
//     hang or fail, and measures the effect on all other keys.
//   - hot does the same with one key that gets every second event, and cannot keep up.
//   - calls calls handlers of keys, at a fixed rate and as fast as they are answered. It has
//     modes of its own: invoke, and for comparison unary and setnx.
//   - reservations reserves keys and releases them: one at a time, as many as are granted, and many
//     for one key. It has modes of its own: reserve and covered, and for comparison redis, redsync and etcd.
//
// The journals of the applications show whether a mode is exclusive: for drain and latency they
// come from a separate run, because a journal costs more than an event; for kill, from the run
// itself.
//
// The mode bare is not an alternative but a lower bound: the same path through two processes
// and an application, without any guarantee.
//
// It needs a broker: PULSAR_URL, or `make bench`, which starts one.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
)

func main() {
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
	}
	switch command {
	case workerCommand:
		exit(runWorker(os.Args[2:]))
	case callerCommand:
		exit(runCaller(os.Args[2:]))
	case holderCommand:
		exit(runHolders(os.Args[2:]))
	case relayCommand:
		exit(runRelay(os.Args[2:]))
	case plotCommand:
		exit(runPlot(os.Args[2:]))
	case contentionCommand:
		exit(runContention(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	opts, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, opts, os.Stdout)
	}
	exit(err)
}

func exit(err error) {
	switch {
	case err == nil:
		os.Exit(0)
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// bench is one run.
type bench struct {
	dir   string    // for the files of rounds
	table io.Writer // for people
	warn  io.Writer

	verified map[string]*Exclusivity // by mode and number of nodes: once is enough
}

func run(ctx context.Context, o Options, w io.Writer) error {
	release, err := alone(ctx, guard)
	if err != nil {
		return err
	}
	defer release()
	dir, err := os.MkdirTemp("", "ringfence-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	b := &bench{dir: dir, table: w, warn: os.Stderr, verified: map[string]*Exclusivity{}}
	if o.JSON {
		b.table = io.Discard
	}
	if a := (admin{pulsaradmin.Client{URL: o.AdminURL}}); a.there() {
		if o.SingleAcks, err = a.acksSingleEvents(ctx); err != nil {
			return fmt.Errorf("%w: is the broker of --admin or PULSAR_ADMIN_URL running? make bench starts one where PULSAR_URL is not set", err)
		}
	}
	list := experiments(o)
	needs := func(what func(mode) bool) bool {
		return slices.ContainsFunc(list, func(e experiment) bool { return slices.ContainsFunc(e.options.Modes, what) })
	}
	if needs(mode.hasRedis) {
		if _, err := findRedis(); err != nil {
			return err
		}
	}
	if needs(mode.hasEtcd) {
		if o.etcd, err = buildEtcd(ctx); err != nil {
			return err
		}
	}
	if o.Router == "" && needs(mode.hasRouters) {
		if o.Router, err = buildRouter(ctx, dir); err != nil {
			return err
		}
	}
	result := newRun(ctx, o)
	for i := range list {
		list[i].options.Router, list[i].options.etcd = o.Router, o.etcd
	}
	err = b.runAll(ctx, list, &result)
	if o.JSON {
		err = errors.Join(err, json.NewEncoder(w).Encode(result))
	}
	return err
}

// runAll runs one experiment after the other, also after one has failed: a suite takes long.
func (b *bench) runAll(ctx context.Context, list []experiment, result *Run) error {
	var errs []error
	for _, e := range list {
		for _, workload := range e.options.Workloads {
			rep, err := b.measure(ctx, e, workload)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s%w", e.title(), err))
				if ctx.Err() != nil {
					return errors.Join(errs...)
				}
				continue
			}
			result.Reports = append(result.Reports, rep)
			rep.print(b.table)
			if err := save(e.options.Out, *result); err != nil { // the measured part is kept, even if a later part fails
				return errors.Join(append(errs, err)...)
			}
		}
	}
	return errors.Join(errs...)
}

// save writes the result to a file, if one is asked for.
func save(name string, r Run) error {
	if name == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}

// measure runs one workload of an experiment in all its modes.
func (b *bench) measure(ctx context.Context, e experiment, workload string) (Report, error) {
	if e.name != "" {
		fmt.Fprintf(b.table, "\n%s%s\n", e.title(), workload)
	}
	rep := newReport(e.options, e.name, workload)
	var results map[string]Result
	var err error
	switch workload {
	case workloadLatency:
		results, err = repeat(ctx, b, e.options, workload, round.latency, latencySample.line, latencyResult)
	case workloadKill:
		results, err = repeat(ctx, b, e.options, workload, round.kill, killSample.line, killResult)
	case workloadStuck:
		results, err = repeat(ctx, b, e.options, workload, round.stuck, disturbSample.line, disturbResult)
	case workloadHot:
		results, err = repeat(ctx, b, e.options, workload, round.hot, disturbSample.line, disturbResult)
	case workloadCalls:
		results, err = repeat(ctx, b, e.options, workload, round.calls, callsSample.line, callsResult)
	case workloadReservations:
		results, err = repeat(ctx, b, e.options, workload, round.reservations, reservationsSample.line, reservationsResult)
	default:
		results, err = measureDrain(ctx, b, e.options)
	}
	if err != nil {
		return rep, fmt.Errorf("%s: %w", workload, err)
	}
	for _, m := range e.options.Modes {
		r := results[m.name]
		if r.Exclusivity == nil && m.workload == "" {
			if r.Exclusivity, err = b.verify(ctx, e.options, m); err != nil {
				return rep, fmt.Errorf("verify %s: %w", m.name, err)
			}
		}
		rep.Modes = append(rep.Modes, r)
	}
	rep.compare()
	return rep, nil
}

// interleave runs repetitions in turn, A B A B …, and hands each sample to keep.
func interleave[S any](b *bench, o Options, workload string, from, to int, measure func(round) (S, error), keep func(number int, m mode, s S)) error {
	for number := from; number <= to; number++ {
		for _, m := range o.Modes {
			s, err := measure(newRound(o, m, workload, b.dir, number, b.warn))
			if err != nil {
				return fmt.Errorf("%s, repetition %d: %w", m.name, number, err)
			}
			keep(number, m, s)
		}
	}
	return nil
}

// measureDrain leaves the first round uncounted: it warms up the broker's caches and JIT.
func measureDrain(ctx context.Context, b *bench, o Options) (map[string]Result, error) {
	samples, events := map[string][]Sample{}, map[string]int{}
	for _, m := range o.Modes {
		events[m.name] = m.events(o)
	}
	err := interleave(b, o, workloadDrain, 0, o.Repetitions,
		func(r round) (Sample, error) { return r.drain(ctx, events[r.mode.name]) },
		func(number int, m mode, s Sample) {
			events[m.name] = m.eventsAt(o, s.PerSecond)
			fmt.Fprintf(b.table, "%-*s round %d  %9.0f events/s  %s\n", modeWidth, m.name, number, s.PerSecond, costs(s.CPU, s.Allocated))
			if number > 0 {
				samples[m.name] = append(samples[m.name], s)
			}
		})
	return results(o, samples, drainResult), err
}

// repeat measures a workload other than drain, and prints a line of each repetition.
func repeat[S any](ctx context.Context, b *bench, o Options, workload string,
	measure func(round, context.Context) (S, error), line func(S, Options) string, result func(Options, mode, []S) Result,
) (map[string]Result, error) {
	samples := map[string][]S{}
	err := interleave(b, o, workload, 1, o.LatencyRepetitions, func(r round) (S, error) { return measure(r, ctx) },
		func(number int, m mode, s S) {
			fmt.Fprintf(b.table, "%-*s round %d  %s\n", modeWidth, m.name, number, line(s, o))
			samples[m.name] = append(samples[m.name], s)
		})
	return results(o, samples, result), err
}

func results[S any](o Options, samples map[string][]S, result func(Options, mode, []S) Result) map[string]Result {
	all := map[string]Result{}
	for _, m := range o.Modes {
		all[m.name] = result(o, m, samples[m.name])
	}
	return all
}

// verify looks for overlaps in a mode, once for each number of nodes.
func (b *bench) verify(ctx context.Context, o Options, m mode) (*Exclusivity, error) {
	if o.VerifyEvents == 0 {
		return nil, nil
	}
	name := fmt.Sprintf("%s %d", m.name, o.Nodes)
	if e := b.verified[name]; e != nil {
		return e, nil
	}
	s, err := newRound(o, m, "verify", b.dir, 0, b.warn).verify(ctx)
	if err != nil {
		return nil, err
	}
	b.verified[name] = exclusivity(s)
	return b.verified[name], nil
}
