package main

import (
	"strconv"
	"time"
)

// The suites.
const (
	suiteCore = "core" // the most important comparisons, in about half an hour
	suiteFull = "full" // also edge cases, in hours
)

// experiment is one set of options and its workloads.
type experiment struct {
	name    string
	options Options
}

// title begins a line about the experiment; it is empty where there is only one.
func (e experiment) title() string {
	if e.name == "" {
		return ""
	}
	return e.name + ": "
}

// twoModes are enough to find the cost of Ringfence.
var twoModes = []string{modeShared, modeRingfence}

// experiments returns the runs of a call of the bench: the one that its options select, or a
// suite, which varies them.
func experiments(o Options) []experiment {
	if o.Suite == "" {
		return []experiment{{"", o}}
	}
	s := suite{base: o}
	s.core()
	if o.Suite == suiteFull {
		s.full()
	}
	return s.all
}

type suite struct {
	base Options
	all  []experiment
}

// add adds an experiment in the modes of the command line, or in those that are named,
// or in all that a team could choose.
func (s *suite) add(name, workload string, names []string, change func(*Options)) {
	o := s.base
	o.Workloads = []string{workload}
	if len(o.Modes) == 0 {
		o.Modes = alternatives()
		if names != nil {
			o.Modes = nil
			for _, name := range names {
				m, _ := modeNamed(name) // they are constants
				o.Modes = append(o.Modes, m)
			}
		}
	}
	if change != nil {
		change(&o)
	}
	s.all = append(s.all, experiment{name, o})
}

func (s *suite) core() {
	s.add("json", workloadDrain, nil, withHandler("json"))
	s.add("empty handler", workloadDrain, []string{modeShared, modeBare, modeRingfence}, withHandler("none"))
	s.add("fixed rate", workloadLatency, nil, func(o *Options) {
		withHandler("json")(o)
		o.WarmUp, o.Measure, o.LatencyRepetitions = 3*time.Second, 15*time.Second, 1
	})
	s.add("kill", workloadKill, nil, func(o *Options) {
		withHandler("5ms")(o) // so that the kill finds handlers that run
		o.WarmUp, o.LatencyRepetitions = 3*time.Second, 1
	})
}

func (s *suite) full() {
	s.add("stalled keys", workloadLatency, nil, func(o *Options) {
		o.StalledKeys, o.Measure, o.LatencyRepetitions = 10, 20*time.Second, 1
	})
	for _, workload := range []string{workloadStuck, workloadHot} {
		s.add(workload, workload, nil, func(o *Options) { o.Measure, o.LatencyRepetitions = time.Minute, 1 })
	}
	for _, distribution := range []string{distributionZipf, distributionHot} {
		s.add(distribution+" keys", workloadDrain, nil, func(o *Options) { o.Distribution = distribution })
	}
	s.add("1ms handler", workloadDrain, nil, withHandler("1ms"))
	s.add("10ms handler", workloadDrain, nil, func(o *Options) {
		withHandler("10ms")(o)
		o.Events = min(o.Events, 1_000_000)
	})
	for _, nodes := range []int{2, 4, 8, 16} {
		s.add(strconv.Itoa(nodes)+" nodes", workloadDrain, twoModes, func(o *Options) { o.Nodes = nodes })
	}
	for _, size := range []int{64, 1 << 10, 16 << 10, 64 << 10} {
		s.add(strconv.Itoa(size)+" B", workloadDrain, twoModes, func(o *Options) {
			o.Size = size
			o.Events = min(o.Events, backlogBytesMax/size)
		})
	}
	s.add("un-batched producer", workloadDrain, nil, func(o *Options) {
		o.Batching = batchingOff
		o.Events = min(o.Events, 300_000)
	})
}

// backlogBytesMax bounds a round's disk use at the broker, with large events.
const backlogBytesMax = 2 << 30

func withHandler(name string) func(*Options) {
	return func(o *Options) { o.Handler, _ = parseHandler(name) } // the names are constants
}
