package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ringfence/router/client"
)

// options are the options of a run.
type options struct {
	Faults       int
	Seed         uint64
	Kinds        []kind
	Members      int
	Rate         int
	Calls        int     // per second
	Reservations int     // held or waited for at once
	Schedules    int     // that every application declares
	Timers       float64 // share of the events whose handlings set some
	Keys         int
	Share        float64 // of the keys, whose handlings write to the sinks
	Stubborn     bool
	Apps         []string // languages of the applications, which take turns
	Control      string
	Limits       bool
	Keep         string
	JSON         bool
}

// The control runs: the values of --control.
const (
	controlShared = "shared" // plain SHARED consumers, no routers
	controlGossip = "gossip" // ownership.mode: gossip
	controlNoWait = "nowait" // routers that take partitions over without waiting
	controlSlewed = "slewed" // leases run on clocks that NTP steers
)

// languages are those that applications can have. Each but Go has a script in chaos/apps.
var languages = []string{"go", "python", "node", "java"}

// reservationsMax bounds --reservations: a router refuses more than 1,000 holders.
const reservationsMax = 400

// The hidden commands of the children.
const (
	roleInside = "inside"
	roleApp    = "app"
	roleHolder = "holder"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch args := os.Args[1:]; {
	case len(args) > 0 && args[0] == roleApp:
		err = runApp(ctx, args[1:])
	case len(args) > 0 && args[0] == roleHolder:
		err = runHolder(ctx, args[1:])
	case len(args) > 1 && args[0] == roleInside:
		err = runInside(ctx, args[1], args[2:])
	default:
		err = runOutside(ctx, args)
	}
	var child *childError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case errors.As(err, &child):
		os.Exit(child.code) // it has printed the reason
	}
	fmt.Fprintln(os.Stderr, "chaos:", err)
	os.Exit(1)
}

func parse(args []string) (options, error) {
	var o options
	var list, output, apps string
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.IntVar(&o.Faults, "faults", 20, "how many faults")
	f.Uint64Var(&o.Seed, "seed", 0, "what the faults are drawn from; 0: the time")
	f.StringVar(&list, "kinds", "", "kinds of faults, comma-separated: "+fmt.Sprint(kinds)+"; empty: all")
	f.IntVar(&o.Members, "members", 5, "members at the beginning, 3 to 9")
	f.IntVar(&o.Rate, "rate", 3000, "events per second")
	f.IntVar(&o.Calls, "calls", 200, "calls of keys' handlers per second, beside the events; 0: none")
	f.IntVar(&o.Reservations, "reservations", 40, "reservations of keys that are held or waited for at once, by four processes; 0: none")
	f.IntVar(&o.Schedules, "schedules", 10, "schedules that every application declares; 0: none")
	f.Float64Var(&o.Timers, "timers", 0.005, "share of the events whose handlings set one to three timers; 0: none, and callers send none")
	f.IntVar(&o.Keys, "keys", 10_000, "distinct keys")
	f.Float64Var(&o.Share, "sink-share", 0.05, "share of the keys whose handlings write to Postgres and Redis")
	f.BoolVar(&o.Stubborn, "app-stubborn", false, "applications ignore their deadline: overlaps may happen, and the sinks must refuse every stale write")
	f.StringVar(&apps, "apps", languages[0], "languages of the applications, which take turns beside the members: "+strings.Join(languages, ","))
	f.StringVar(&o.Control, "control", "", "a run that must show overlaps: shared, gossip, nowait, slewed")
	f.BoolVar(&o.Limits, "limits", false, "fail when takeovers, handoffs or waits take longer than docs/chaos.md says; for a machine that does nothing else")
	f.StringVar(&o.Keep, "keep", "", "directory for the journals and logs, which are else removed unless the run fails")
	f.StringVar(&output, "output", "text", "text, or json: one object as the last line")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	of, err := parseKinds(list)
	errs := []error{err}
	check := func(fine bool, format string, a ...any) {
		if !fine {
			errs = append(errs, fmt.Errorf(format, a...))
		}
	}
	if list == "" && o.Limits {
		of = slices.DeleteFunc(slices.Clone(of), func(k kind) bool { return k == kindSlew })
	}
	o.Kinds, o.JSON, o.Apps = of, output == "json", strings.Split(apps, ",")
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	check(f.NArg() == 0, "what is %q? All arguments are flags", f.Args())
	check(o.Faults >= 1, "--faults = %d, want at least 1", o.Faults)
	check(o.Members >= scaleLeast && o.Members <= scaleMost, "--members = %d, want %d to %d", o.Members, scaleLeast, scaleMost)
	check(o.Rate >= 1 && o.Keys >= 1, "--rate = %d and --keys = %d, want at least 1", o.Rate, o.Keys)
	check(o.Calls >= 0, "--calls = %d, want at least 0", o.Calls)
	check(o.Reservations >= 0 && o.Reservations <= reservationsMax, "--reservations = %d, want 0 to %d", o.Reservations, reservationsMax)
	check(o.Schedules >= 0 && o.Schedules <= client.SchedulesMax, "--schedules = %d, want 0 to %d", o.Schedules, client.SchedulesMax)
	check(o.Timers >= 0 && o.Timers <= 1, "--timers = %v, want 0 to 1", o.Timers)
	check(o.Share >= 0 && o.Share <= 1, "--sink-share = %v, want 0 to 1", o.Share)
	check(!o.Stubborn || slices.ContainsFunc(o.Kinds, func(k kind) bool { return slices.Contains(leavers, k) }),
		"--app-stubborn needs one of %v among --kinds: no other fault leaves work behind that could write late", leavers)
	check(!o.Limits || !slices.Contains(o.Kinds, kindSlew), "--limits is for clocks that are right: leave slew out of --kinds")
	for _, app := range o.Apps {
		check(slices.Contains(languages, app), "--apps: %q is not one of %v", app, languages)
	}
	foreign := !slices.Equal(o.Apps, languages[:1])
	check(!foreign || o.Control == "", "--apps has go alone with --control")
	check(!foreign || !o.Stubborn, "--apps has go alone with --app-stubborn")
	if foreign { // their clocks cannot be steered
		check(list == "" || !slices.Contains(o.Kinds, kindSlew), "--apps has go alone with slew")
		o.Kinds = slices.DeleteFunc(slices.Clone(o.Kinds), func(k kind) bool { return k == kindSlew })
	}
	check(output == "text" || output == "json", "--output = %q, want text or json", output)
	if o.Control == controlShared || !slices.Contains(o.Apps, languages[0]) { // nobody would answer
		o.Calls = 0
	}
	if o.Control == controlShared || foreign { // a schedule waits for ever at an owner whose application does not declare it
		o.Schedules, o.Timers = 0, 0
	}
	if o.Calls == 0 {
		check(list == "" || !slices.Contains(o.Kinds, kindCallerGivesUp), "%s needs --calls, routers, and go among --apps", kindCallerGivesUp)
		o.Kinds = slices.DeleteFunc(slices.Clone(o.Kinds), func(k kind) bool { return k == kindCallerGivesUp })
	}
	if o.Control == controlShared || o.Control == controlGossip { // nobody would grant one
		o.Reservations = 0
	}
	if o.Reservations == 0 {
		ofHolders := func(k kind) bool { return profiles[k].holder }
		check(list == "" || !slices.ContainsFunc(o.Kinds, ofHolders), "%s and %s need --reservations, and routers that are exclusive", kindHolderKill, kindHolderStop)
		o.Kinds = slices.DeleteFunc(slices.Clone(o.Kinds), ofHolders)
	}
	switch o.Control {
	case "", controlGossip, controlNoWait, controlSlewed:
	case controlShared:
		o.Kinds = []kind{kindKill, kindPause} // faults of applications
	default:
		check(false, "--control = %q, want shared, gossip, nowait or slewed", o.Control)
	}
	return o, errors.Join(errs...)
}

// replay is the command that draws the same faults again.
func (o options) replay() string {
	command := fmt.Sprintf("go run ./chaos --seed %d --faults %d --members %d --rate %d --calls %d --reservations %d --schedules %d --timers %v --keys %d --sink-share %v",
		o.Seed, o.Faults, o.Members, o.Rate, o.Calls, o.Reservations, o.Schedules, o.Timers, o.Keys, o.Share)
	if len(o.Kinds) < len(kinds) && o.Control != controlShared {
		list := make([]string, len(o.Kinds))
		for i, k := range o.Kinds {
			list[i] = string(k)
		}
		command += " --kinds " + strings.Join(list, ",")
	}
	if o.Stubborn {
		command += " --app-stubborn"
	}
	if len(o.Apps) > 0 && !slices.Equal(o.Apps, languages[:1]) {
		command += " --apps " + strings.Join(o.Apps, ",")
	}
	if o.Control != "" {
		command += " --control " + o.Control
	}
	return command
}
