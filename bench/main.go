// Command bench runs the ways of consuming one Pulsar topic side by side, on one
// broker in one run, and prints what each costs.
//
//	go run ./bench --modes shared,ringfence --handler none
//
// Every consumer, application and router is a process of its own. A mode's figures
// come from its steady window: from when part of the backlog is handled and every
// process has the memory that it needs, until the backlog is nearly drained, so that
// start-up and tail do not count. It needs a
// broker: PULSAR_URL, or `make bench`, which starts one.
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
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"
)

// Options are what a run is asked for.
type Options struct {
	Modes       []string
	Handler     string
	Events      int
	Keys        int
	Size        int
	Nodes       int
	Warm        float64 // the share of the backlog that warms the processes up
	GOGC        int     // of every process, on all sides
	Repetitions int
	Router      string
	App         string // tcp or unix
	PulsarURL   string
	JSON        bool
}

// Result is what one mode cost, over its repetitions.
type Result struct {
	Mode          string             `json:"mode"`
	ConsumePerS   float64            `json:"consume_per_s"`
	ConsumeSpread [2]float64         `json:"consume_per_s_min_max"`
	CPUPerEvent   map[string]float64 `json:"cpu_us_per_event"`
	Repetitions   int                `json:"repetitions"`
}

// Report is the whole run, as printed by --output json.
type Report struct {
	Handler string             `json:"handler"`
	Events  int                `json:"events"`
	Keys    int                `json:"keys"`
	Size    int                `json:"size"`
	Nodes   int                `json:"nodes"`
	Modes   []Result           `json:"modes"`
	Ratios  map[string]float64 `json:"ratios"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == workerCommand {
		exit(runWorker(os.Args[2:]))
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

func parse(args []string) (Options, error) {
	var o Options
	var modes, output string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&modes, "modes", "shared,ringfence", "what to run: shared, ringfence")
	f.StringVar(&o.Handler, "handler", "none", "what the application does with an event: none, json")
	f.IntVar(&o.Events, "events", 3_000_000, "events in the backlog of one repetition")
	f.IntVar(&o.Keys, "keys", 10_000, "distinct keys")
	f.IntVar(&o.Size, "size", 256, "payload bytes")
	f.IntVar(&o.Nodes, "nodes", 3, "consumers, or routers with one application each")
	f.Float64Var(&o.Warm, "warm", 0.3, "share of the backlog that warms the processes up and does not count")
	f.IntVar(&o.GOGC, "gogc", 400, "GOGC of every application and router")
	f.IntVar(&o.Repetitions, "repetitions", 3, "measured repetitions of each mode, after one that does not count")
	f.StringVar(&o.Router, "router", "", "the router binary; built from this module when empty")
	f.StringVar(&o.App, "app", "tcp", "how an application reaches its router: tcp, unix")
	f.StringVar(&o.PulsarURL, "pulsar", os.Getenv("PULSAR_URL"), "the broker")
	f.StringVar(&output, "output", "table", "table or json")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.Modes, o.JSON = strings.Split(modes, ","), output == "json"
	var errs []error
	for _, m := range o.Modes {
		if m != modeShared && m != modeRingfence {
			errs = append(errs, fmt.Errorf("mode %q is not one of shared, ringfence", m))
		}
	}
	if o.Handler != "none" && o.Handler != "json" {
		errs = append(errs, fmt.Errorf("handler %q is not one of none, json", o.Handler))
	}
	if o.App != "tcp" && o.App != "unix" {
		errs = append(errs, fmt.Errorf("app %q is not one of tcp, unix", o.App))
	}
	if o.PulsarURL == "" {
		errs = append(errs, errors.New("no broker: set PULSAR_URL, or run `make bench`, which starts one"))
	}
	if o.Events < 1000 || o.Keys < 1 || o.Size < 64 || o.Nodes < 1 || o.Repetitions < 1 {
		errs = append(errs, errors.New("want --events >= 1000, --keys >= 1, --size >= 64, --nodes >= 1, --repetitions >= 1"))
	}
	if o.Warm < 0 || o.Warm > 0.8 || o.GOGC < 10 {
		errs = append(errs, errors.New("want --warm from 0 to 0.8, --gogc >= 10"))
	}
	return o, errors.Join(errs...)
}

// run measures every mode in turn, A B A B …, the first round uncounted: the
// broker's caches and its JIT belong to nobody.
func run(ctx context.Context, o Options, w io.Writer) error {
	dir, err := os.MkdirTemp("", "ringfence-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	if o.Router == "" && slices.Contains(o.Modes, modeRingfence) {
		if o.Router, err = buildRouter(ctx, dir); err != nil {
			return err
		}
	}
	samples := map[string][]Sample{}
	for round := 0; round <= o.Repetitions; round++ {
		for _, mode := range o.Modes {
			s, err := measure(ctx, o, mode, dir, round)
			if err != nil {
				return fmt.Errorf("%s, repetition %d: %w", mode, round, err)
			}
			if round > 0 {
				samples[mode] = append(samples[mode], s)
			}
			if !o.JSON {
				fmt.Fprintf(w, "%-10s round %d  %9.0f events/s  %s\n", mode, round, s.PerSecond, cpuText(s.CPU))
			}
		}
	}
	rep := report(o, samples)
	if o.JSON {
		return json.NewEncoder(w).Encode(rep)
	}
	for _, r := range rep.Modes {
		fmt.Fprintf(w, "%-10s median   %9.0f events/s (%.0f … %.0f)  %s\n",
			r.Mode, r.ConsumePerS, r.ConsumeSpread[0], r.ConsumeSpread[1], cpuText(r.CPUPerEvent))
	}
	for mode, ratio := range rep.Ratios {
		fmt.Fprintf(w, "ringfence / %s = %.2f\n", mode, ratio)
	}
	return nil
}

func report(o Options, samples map[string][]Sample) Report {
	rep := Report{Handler: o.Handler, Events: o.Events, Keys: o.Keys, Size: o.Size, Nodes: o.Nodes, Ratios: map[string]float64{}}
	medians := map[string]float64{}
	for _, mode := range o.Modes {
		var rates []float64
		cpu := map[string][]float64{}
		for _, s := range samples[mode] {
			rates = append(rates, s.PerSecond)
			for role, v := range s.CPU {
				cpu[role] = append(cpu[role], v)
			}
		}
		r := Result{Mode: mode, Repetitions: len(rates), CPUPerEvent: map[string]float64{}}
		r.ConsumePerS, r.ConsumeSpread = median(rates)
		for role, v := range cpu {
			r.CPUPerEvent[role], _ = median(v)
		}
		medians[mode] = r.ConsumePerS
		rep.Modes = append(rep.Modes, r)
	}
	if ours, ok := medians[modeRingfence]; ok {
		for mode, rate := range medians {
			if mode != modeRingfence && rate > 0 {
				rep.Ratios[mode] = ours / rate
			}
		}
	}
	return rep
}

// median returns the median and the extremes of values, zeros when there are none.
func median(values []float64) (mid float64, minMax [2]float64) {
	if len(values) == 0 {
		return 0, minMax
	}
	s := append([]float64(nil), values...)
	sort.Float64s(s)
	mid = s[len(s)/2]
	if len(s)%2 == 0 {
		mid = (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return mid, [2]float64{s[0], s[len(s)-1]}
}

func cpuText(cpu map[string]float64) string {
	var roles []string
	for role := range cpu {
		roles = append(roles, role)
	}
	sort.Strings(roles)
	var parts []string
	for _, role := range roles {
		parts = append(parts, fmt.Sprintf("%s %.2f µs", role, cpu[role]))
	}
	return "CPU/event: " + strings.Join(parts, ", ")
}

// settle is how long after the last worker's first event the steady window begins.
const settle = 500 * time.Millisecond
