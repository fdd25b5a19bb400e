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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are the options of a run.
type options struct {
	Router    string
	Out       string
	Only      []int // rows; none: all
	UnderLoad bool
	For       time.Duration // under load: for each attack
	Rate      int           // under load: events in a second
}

func parse(args []string) (options, error) {
	var o options
	var only string
	f := flag.NewFlagSet("attack", flag.ContinueOnError)
	f.StringVar(&o.Router, "router", "bin/router", "the binary to attack")
	f.StringVar(&o.Out, "out", "", "file for the results, in JSON")
	f.StringVar(&only, "only", "", "numbers of attacks, comma-separated; empty: all")
	f.BoolVar(&o.UnderLoad, "under-load", false, "attack one of three routers under load, with each attack alone and then with all")
	f.DurationVar(&o.For, "for", time.Minute, "under load: how long each attack goes on")
	f.IntVar(&o.Rate, "rate", 1000, "under load: events in a second")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var errs []error
	if f.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected arguments %q: all arguments are flags", f.Args()))
	}
	for number := range strings.SplitSeq(only, ",") {
		if number == "" {
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > rows {
			errs = append(errs, fmt.Errorf("--only: %q, want 1 to %d", number, rows))
		}
		o.Only = append(o.Only, n)
	}
	if o.For < time.Second || o.Rate < 1 {
		errs = append(errs, fmt.Errorf("--for = %v and --rate = %d, want at least 1s and 1", o.For, o.Rate))
	}
	return o, errors.Join(errs...)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch args := os.Args[1:]; {
	case len(args) > 0 && args[0] == roleApp:
		err = runApp(ctx, args[1:])
	case len(args) > 0 && args[0] == roleBurn:
		err = runBurn(ctx, args[1:])
	default:
		err = run(ctx, args)
	}
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "attack:", err)
		}
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.Router, err = filepath.Abs(o.Router); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ringfence-attack-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := newLab(ctx, o.Router, dir)
	if err != nil {
		return err
	}
	if err := os.Setenv(appTokenVariable, l.appTokenFile); err != nil {
		return err
	}
	if o.UnderLoad {
		result, err := underLoad(ctx, o, l)
		if err == nil && o.Out != "" {
			err = write(o.Out, result)
		}
		if err != nil {
			return err
		}
		return result.tell()
	}
	results, err := attackAll(ctx, o, l)
	if err != nil {
		return err
	}
	if o.Out != "" {
		if err := write(o.Out, results); err != nil {
			return err
		}
	}
	table(os.Stdout, results)
	return judge(results)
}

// The verdicts.
const (
	verdictHeld   = "held"
	verdictBroken = "broken"
	verdictNone   = "not tried"
)

// result is the result of one attack. Its JSON is for machines: fields are only added.
type result struct {
	Attack  int     `json:"attack"`
	Part    string  `json:"part,omitempty"`
	Name    string  `json:"name"`
	Verdict string  `json:"verdict"`
	Seen    string  `json:"seen"`
	Seconds float64 `json:"seconds"`
}

// runMax bounds the duration of all attacks together: with the start of a broker, under four minutes.
const runMax = 220 * time.Second

// attackAll tries the attacks one after the other. Those for which no time is left are not tried.
func attackAll(ctx context.Context, o options, l *lab) (results []result, err error) {
	limited, cancel := context.WithTimeout(ctx, runMax)
	defer cancel()
	for _, a := range attacks() {
		if len(o.Only) > 0 && !slices.Contains(o.Only, a.number) {
			continue
		}
		begin := time.Now()
		trying, cancel := context.WithTimeout(limited, attackMax)
		f, err := a.try(trying, l)
		if err == nil && trying.Err() != nil { // its result only shows that it was interrupted
			err = trying.Err()
		}
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r := result{Attack: a.number, Part: a.part, Name: a.name, Seen: f.seen, Seconds: time.Since(begin).Round(100 * time.Millisecond).Seconds()}
		switch {
		case err != nil:
			r.Verdict, r.Seen = verdictNone, err.Error()
		case f.broken:
			r.Verdict = verdictBroken
		default:
			r.Verdict = verdictHeld
		}
		fmt.Fprintf(os.Stderr, "%2d%-1s %-9s %5.1f s  %s: %s\n", r.Attack, r.Part, r.Verdict, r.Seconds, r.Name, r.Seen)
		results = append(results, r)
	}
	return results, nil
}

// table prints the results for people.
func table(w io.Writer, results []result) {
	fmt.Fprintf(w, "\n%-4s%-80s%s\n", "#", "ATTACK", "VERDICT")
	for _, r := range results {
		said := r.Verdict
		if r.Verdict != verdictHeld {
			said += ": " + r.Seen
		}
		fmt.Fprintf(w, "%-4s%-80s%s\n", strconv.Itoa(r.Attack)+r.Part, r.Name, said)
	}
	fallen, all := 0, map[int]bool{}
	for _, r := range results {
		all[r.Attack] = all[r.Attack] || r.Verdict == verdictBroken
	}
	for _, broke := range all {
		if broke {
			fallen++
		}
	}
	fmt.Fprintf(w, "\n%d of %d attacks broke the router\n", fallen, len(all))
}

// judge returns an error unless every attack was tried and held.
func judge(results []result) error {
	counts := map[string]int{}
	for _, r := range results {
		counts[r.Verdict]++
	}
	if counts[verdictHeld] == len(results) && len(results) > 0 {
		return nil
	}
	return fmt.Errorf("of %d attacks %d are held, %d broken, %d could not be tried", len(results), counts[verdictHeld], counts[verdictBroken], counts[verdictNone])
}

func write(path string, what any) error {
	text, err := json.MarshalIndent(what, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
