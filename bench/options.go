package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// The workloads.
const (
	workloadDrain   = "drain"
	workloadLatency = "latency"
	workloadKill    = "kill"
	workloadStuck   = "stuck"
	workloadHot     = "hot"
	workloadCalls   = "calls"

	workloadReservations = "reservations"
)

// Options are the options of a run.
type Options struct {
	Modes        []mode
	Workloads    []string
	Suite        string // core or full: a list of runs instead of one
	Handler      handler
	Events       int
	Keys         int
	Distribution string // of the events over the keys: uniform, zipf or hot
	Size         int
	Nodes        int
	Batching     string        // default, key or off; empty: the mode's default
	BatchDelay   time.Duration // how long the producer may wait to fill a batch; 0: the client's default, 10 ms
	Warm         float64       // the share of the backlog that warms the processes up
	GOGC         int           // of every process, on all sides
	Repetitions  int

	Rate               int           // events or calls a second, of all workloads but drain
	Callers            int           // of calls and reservations: how many are in flight in all when they come as fast as they are answered
	Waiters            int           // of reservations: how many want one key
	WarmUp             time.Duration // before latency and kill count
	Measure            time.Duration // how long latency and kill count
	LatencyRepetitions int
	StalledKeys        int           // keys whose handler waits
	Stall              time.Duration // for that long

	Stuck      float64       // of stuck: the part of the keys whose handler hangs
	StuckFor   time.Duration // for that long, each time
	PoisonPill float64       // of stuck: the part of the keys whose handler fails
	HotTakes   time.Duration // of hot: a handler of the hot key
	SingleAcks bool          // the broker counts acks of single events in a batch; found out

	VerifyEvents int // events of the run that looks for overlaps; 0: no such run
	VerifyKeys   int

	etcd      string // its binary, of the modes that have one
	Router    string
	Profile   string   // a file for a CPU profile of the routers of a drain; empty: none
	RouterBy  []string // a command that runs the routers, and its first arguments; empty: none
	App       string   // tcp or unix
	PulsarURL string
	AdminURL  string
	BrokerPID int // 0: unknown
	JSON      bool
	Out       string // a file for the JSON as well; empty: none
}

// handler is an application's work for an event.
type handler struct {
	name   string        // as --handler has it
	decode bool          // the payload, from JSON
	wait   time.Duration // as for a reply
}

// receiverQueue is the size of a consumer's receiver queue in all modes.
const receiverQueue = 5000

// waitingHandlers bounds the concurrent handlers that wait in one process, in all modes.
const waitingHandlers = 256

// parseHandler reads --handler.
func parseHandler(name string) (handler, error) {
	switch name {
	case "none":
		return handler{name: name}, nil
	case "json":
		return handler{name: name, decode: true}, nil
	}
	wait, err := time.ParseDuration(name)
	if err != nil || wait <= 0 || wait > time.Minute {
		return handler{}, fmt.Errorf("handler %q is not none, json, or how long it waits, up to 1m (10ms)", name)
	}
	return handler{name: name, wait: wait}, nil
}

func parse(args []string) (Options, error) {
	var o Options
	var names, workloads, work, routerBy, output string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&names, "modes", "", "what to run: all, which is all of events but bare, or some of "+modeNames()+" (default shared,ringfence; with --suite: what each of its runs is about); invoke alone, and reserve alone, bring their comparisons along")
	f.StringVar(&workloads, "workloads", workloadDrain, "drain (a backlog, as fast as it goes), latency (a fixed rate), kill (a node under load), stuck (some keys hang), hot (one key gets half of all), calls (of handlers; that of the modes invoke, unary and setnx), reservations (of keys; that of the modes reserve, covered, redis, redsync and etcd)")
	f.StringVar(&o.Suite, "suite", "", "core or full: several runs, one after the other")
	f.StringVar(&work, "handler", "none", "what the application does with an event: none, json, or how long it waits (1ms)")
	f.IntVar(&o.Events, "events", 4_000_000, "events in the backlog of one repetition; slow modes get a part of them")
	f.IntVar(&o.Keys, "keys", 10_000, "distinct keys")
	f.StringVar(&o.Distribution, "distribution", distributionUniform, "of the events over the keys: uniform, zipf (0.99), hot (one key has every second event)")
	f.IntVar(&o.Size, "size", 256, "payload bytes")
	f.IntVar(&o.Nodes, "nodes", 3, "consumers, or routers with one application each")
	f.StringVar(&o.Batching, "batching", "", "of the producer: default, key, off (default: what the mode needs; KEY_SHARED always has its own)")
	f.DurationVar(&o.BatchDelay, "batch-delay", 0, "how long the producer may wait to fill a batch: at a fixed rate, more makes larger ones (default: the client's, 10ms)")
	f.Float64Var(&o.Warm, "warm", 0.5, "share of the backlog that warms the processes up and does not count")
	f.IntVar(&o.GOGC, "gogc", 400, "GOGC of every application and router")
	f.IntVar(&o.Repetitions, "repetitions", 3, "measured repetitions of each mode, after one that does not count")
	f.IntVar(&o.Rate, "rate", 5000, "events or calls a second of all workloads but drain")
	f.IntVar(&o.Callers, "callers", 128, "calls, reservations: how many are in flight in all, when they come as fast as they are answered")
	f.IntVar(&o.Waiters, "waiters", 20, "reservations: how many want one key at the same time")
	f.DurationVar(&o.WarmUp, "warm-up", 5*time.Second, "how long all workloads but drain run before they count")
	f.DurationVar(&o.Measure, "measure", 10*time.Second, "how long they count; stuck and hot twice that long, undisturbed and disturbed")
	f.IntVar(&o.LatencyRepetitions, "latency-repetitions", 2, "repetitions of all workloads but drain, all of which count")
	f.IntVar(&o.StalledKeys, "stalled-keys", 0, "keys whose handler waits for --stall; latency is about the others")
	f.DurationVar(&o.Stall, "stall", 2*time.Second, "how long the handler of a stalled key waits")
	f.Float64Var(&o.Stuck, "stuck", 0.01, "stuck: part of the keys whose handler hangs in the disturbed half")
	f.DurationVar(&o.StuckFor, "stuck-for", 30*time.Second, "stuck: how long it hangs at each event")
	f.Float64Var(&o.PoisonPill, "poison-pill", 0.001, "stuck: part of the keys whose handler fails in the disturbed half")
	f.DurationVar(&o.HotTakes, "hot-takes", 5*time.Millisecond, "hot: how long the handler of the hot key takes")
	f.IntVar(&o.VerifyEvents, "verify-events", 20_000, "events of the run in which each mode is searched for overlaps; 0 for none")
	f.IntVar(&o.VerifyKeys, "verify-keys", 200, "keys of that run")
	f.StringVar(&o.Router, "router", "", "the router binary; built from this module when empty")
	f.StringVar(&o.Profile, "profile", "", "a file for a CPU profile of the routers of the last drain, for their build by profile; wants --events of 8,000,000 or more")
	f.StringVar(&routerBy, "router-exec", "", "a command that each router is run by, as in tools/cpu-limit.sh 100m")
	f.StringVar(&o.App, "app", "tcp", "how an application reaches its router: tcp, unix")
	f.StringVar(&o.PulsarURL, "pulsar", os.Getenv("PULSAR_URL"), "the broker")
	f.StringVar(&o.AdminURL, "admin", os.Getenv("PULSAR_ADMIN_URL"), "its admin API, to delete each round's topic; failover needs it")
	f.IntVar(&o.BrokerPID, "broker-pid", brokerPID(os.Getenv("PULSAR_HANDLE")), "its process, whose CPU is counted; 0 when it is not on this machine")
	f.StringVar(&output, "output", "table", "table or json")
	f.StringVar(&o.Out, "out", "", "a file for the JSON, whatever the output")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var errs []error
	if f.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unknown argument %q", f.Arg(0)))
	}
	o.RouterBy = strings.Fields(routerBy)
	o.JSON, o.Workloads = output == "json", strings.Split(workloads, ",")
	if output != "table" && output != "json" {
		errs = append(errs, fmt.Errorf("output %q is not one of table, json", output))
	}
	var err error
	if names == "" {
		names = bringers[workloads]
	}
	if o.Modes, err = parseModes(names, o.Suite); err != nil {
		errs = append(errs, err)
	}
	if own := o.ownWorkload(); workloads == workloadDrain && own != "" { // they have no other
		o.Workloads = []string{own}
	}
	if o.Handler, err = parseHandler(work); err != nil {
		errs = append(errs, err)
	}
	return o, errors.Join(append(errs, o.validate())...)
}

// bringers are the modes that bring all others of their workload along.
var bringers = map[string]string{workloadCalls: modeInvoke, workloadReservations: modeReserve}

// parseModes reads --modes. A suite without it has modes of its own.
func parseModes(names, suite string) ([]mode, error) {
	switch {
	case names == "all":
		return alternatives(), nil
	case names == modeInvoke:
		return modesOnly(workloadCalls), nil
	case names == modeReserve:
		return modesOnly(workloadReservations), nil
	case names == "" && suite != "":
		return nil, nil
	case names == "":
		names = modeShared + "," + modeRingfence
	}
	var found []mode
	var errs []error
	for name := range strings.SplitSeq(names, ",") {
		m, ok := modeNamed(name)
		if !ok {
			errs = append(errs, fmt.Errorf("mode %q is not one of %s", name, modeNames()))
		}
		found = append(found, m)
	}
	return found, errors.Join(errs...)
}

// validate reports every bad option.
func (o Options) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	oneOf := func(name, value string, of ...string) {
		check(slices.Contains(of, value), "%s %q is not one of %s", name, value, strings.Join(of, ", "))
	}
	for _, w := range o.Workloads {
		oneOf("workload", w, workloadDrain, workloadLatency, workloadKill, workloadStuck, workloadHot, workloadCalls, workloadReservations)
		own := ""
		if bringers[w] != "" {
			own = w
		}
		check(o.Suite != "" || !slices.ContainsFunc(o.Modes, func(m mode) bool { return m.workload != own }),
			"want the modes %s with the workload %s, %s with %s, and no others with either",
			namesOnly(workloadCalls), workloadCalls, namesOnly(workloadReservations), workloadReservations)
	}
	check(o.Suite == "" || !slices.ContainsFunc(o.Modes, func(m mode) bool { return m.workload != "" }),
		"no suite has the modes %s, %s", namesOnly(workloadCalls), namesOnly(workloadReservations))
	if o.Suite != "" {
		oneOf("suite", o.Suite, suiteCore, suiteFull)
	}
	if o.Batching != "" {
		oneOf("batching", o.Batching, batchingDefault, batchingKey, batchingOff)
	}
	oneOf("distribution", o.Distribution, distributionUniform, distributionZipf, distributionHot)
	oneOf("app", o.App, "tcp", "unix")
	check(o.BatchDelay >= 0 && o.BatchDelay <= time.Minute, "want --batch-delay from 0 to 1m")
	check(o.PulsarURL != "", "no broker: set PULSAR_URL, or run `make bench`, which starts one")
	check(o.AdminURL != "" || !slices.ContainsFunc(o.Modes, func(m mode) bool { return m.partitioned }),
		"failover needs a partitioned topic: set PULSAR_ADMIN_URL, or leave it out of --modes")
	check(o.Events >= eventsMin && o.Keys >= 1 && o.Size >= 64 && o.Nodes >= 1 && o.Repetitions >= 1,
		"want --events >= 1000, --keys >= 1, --size >= 64, --nodes >= 1, --repetitions >= 1")
	check(o.Nodes <= 200, "want --nodes <= 200: each has a loopback address of its own")
	check(o.Warm >= 0 && o.Warm <= 0.8 && o.GOGC >= 10, "want --warm from 0 to 0.8, --gogc >= 10")
	check(o.Rate >= 1 && o.WarmUp >= 0 && o.Measure >= time.Second && o.LatencyRepetitions >= 1,
		"want --rate >= 1, --warm-up >= 0, --measure >= 1s, --latency-repetitions >= 1")
	check(o.Callers >= o.Nodes && o.Callers <= callersMax, "want --callers from --nodes to %d", callersMax)
	check(o.Waiters >= 2 && o.Waiters <= waitersMax, "want --waiters from 2 to %d", waitersMax)
	check(o.StalledKeys >= 0 && o.StalledKeys < o.Keys && o.Stall > 0, "want --stalled-keys from 0 to less than --keys, --stall > 0")
	check(o.Stuck >= 0 && o.PoisonPill >= 0 && o.Stuck+o.PoisonPill <= 0.5 && o.StuckFor > 0 && o.HotTakes > 0,
		"want --stuck and --poison-pill from 0 to 0.5 together, --stuck-for > 0, --hot-takes > 0")
	check(o.VerifyEvents == 0 || o.VerifyEvents >= 1000 && o.VerifyKeys >= 1, "want --verify-events 0 or >= 1000, --verify-keys >= 1")
	check(!slices.ContainsFunc(o.Modes, func(m mode) bool { return m.floor }) || o.bareCan(),
		"bare has one handler in each process, and no node of it may fail: want --workloads drain or latency, --handler none or json, no --stalled-keys")
	check(o.Nodes >= 2 || !slices.Contains(o.Workloads, workloadKill), "want --nodes >= 2 for kill: somebody has to go on")
	return errors.Join(errs...)
}

// bareCan reports whether the mode bare can run with these options.
func (o Options) bareCan() bool {
	for _, w := range o.Workloads {
		if w != workloadDrain && w != workloadLatency {
			return false
		}
	}
	return o.Handler.wait == 0 && o.StalledKeys == 0
}

// ownWorkload is the workload of the modes, if it is the only one of all of them.
func (o Options) ownWorkload() string {
	if len(o.Modes) == 0 || slices.ContainsFunc(o.Modes, func(m mode) bool { return m.workload != o.Modes[0].workload }) {
		return ""
	}
	return o.Modes[0].workload
}

// namesOnly are the names of the modes that have a workload of their own.
func namesOnly(workload string) string {
	var names []string
	for _, m := range modesOnly(workload) {
		names = append(names, m.name)
	}
	return strings.Join(names, ", ")
}
