package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The names of the group at the broker.
const (
	topicPartitions = 4
	subscription    = "chaos"
	groupName       = "chaos"
	eventsTopic     = "persistent://public/default/events"
	timerTopic      = eventsTopic + "-" + subscription + "-TIMER"
	controlTopic    = "persistent://public/default/__ring-" + groupName
)

// kind is the kind of a fault.
type kind string

// The kinds of faults, by the words that --kinds takes.
const (
	kindKill     kind = "kill"     // SIGKILL; the kernel tells the peers at once
	kindPower    kind = "power"    // SIGKILL of the whole machine, behind a cut: no connection is seen to close
	kindPause    kind = "pause"    // SIGSTOP, later SIGCONT
	kindCut      kind = "cut"      // packets vanish in both directions
	kindHalfCut  kind = "halfcut"  // packets vanish in one direction
	kindSlow     kind = "slow"     // packets take their time
	kindBroker   kind = "broker"   // SIGKILL of the broker, and a start on the same data
	kindUnload   kind = "unload"   // the broker gives up a topic and loads it again
	kindDelete   kind = "delete"   // the control topic is deleted by force
	kindRollover kind = "rollover" // the control topic rolls over to a new ledger
	kindLeave    kind = "leave"    // a member drains, ends, and joins again
	kindDeploy   kind = "deploy"   // all members do, one after the other
	kindScale    kind = "scale"    // to three members, to nine, to three, and back
	kindRegroup  kind = "regroup"  // a router with other settings starts beside the group
	kindSlew     kind = "slew"     // a member starts again with clocks that NTP steers as fast as it can

	kindPartitions  kind = "partitions"   // the events' topic gets more topic partitions
	kindCrashWorker kind = "crash_worker" // one of the applications beside a router is killed or frozen

	kindCallerGivesUp kind = "caller_gives_up" // the callers at a router end their calls

	kindHolderKill kind = "holder_kill" // SIGKILL of a process that holds reservations
	kindHolderStop kind = "holder_stop" // SIGSTOP, later SIGCONT
)

// profile is the planner's description of a kind.
type profile struct {
	weight   int      // how often it is drawn
	variants []string // the variants of the fault; one is drawn
	lone     bool     // it affects the whole group, and has a round of its own
	broker   bool     // it happens at the broker: one at a time
	holder   bool     // it is done to a holder of reservations, and to no member
	graceful bool     // nothing is broken: the times of planned changes are measured
}

// The targets within a member, and the sides of a cut.
const (
	atRouter = "router"
	atApp    = "app"
	atBoth   = "both"

	fromPeers  = "peers"
	fromPulsar = "pulsar"
	fromAll    = "all"

	atControl = "control"
	atEvents  = "events"

	byKill    = "kill"   // SIGKILL
	byCancel  = "cancel" // each call
	byClosing = "close"  // the connection

	byFreeze = "freeze" // SIGSTOP until long after its router gave its keys to the other worker, then SIGCONT
)

var processes = []string{atRouter, atApp, atBoth}

var profiles = map[kind]profile{
	kindKill:     {weight: 6, variants: processes},
	kindPower:    {weight: 3, variants: []string{atBoth}},
	kindPause:    {weight: 6, variants: processes},
	kindCut:      {weight: 4, variants: []string{fromPeers, fromPulsar, fromAll}},
	kindHalfCut:  {weight: 4, variants: []string{"in:" + fromPeers, "in:" + fromPulsar, "in:" + fromAll, "out:" + fromPeers, "out:" + fromPulsar, "out:" + fromAll}},
	kindSlow:     {weight: 3, variants: []string{fromPeers, fromPulsar, fromAll}},
	kindBroker:   {weight: 1, variants: []string{"restart"}, broker: true},
	kindUnload:   {weight: 3, variants: []string{atControl, atEvents}, broker: true},
	kindDelete:   {weight: 1, variants: []string{atControl}, broker: true},
	kindRollover: {weight: 2, variants: []string{atControl}, broker: true},
	kindLeave:    {weight: 5, variants: []string{"rejoin"}, graceful: true},
	kindDeploy:   {weight: 1, variants: []string{"rolling"}, lone: true, graceful: true},
	kindScale:    {weight: 1, variants: []string{"3-9-3"}, lone: true, graceful: true},
	kindRegroup:  {weight: 2, variants: regroupings(), lone: true},
	kindSlew:     {weight: 2, variants: []string{routerFast, routerSlow}},

	kindPartitions:  {weight: 1, variants: []string{"more"}, broker: true},
	kindCrashWorker: {weight: 4, variants: []string{byKill, byFreeze}},

	kindCallerGivesUp: {weight: 2, variants: []string{byCancel, byClosing}},

	kindHolderKill: {weight: 2, variants: []string{byKill}, holder: true},
	kindHolderStop: {weight: 3, variants: []string{byFreeze}, holder: true},
}

// kinds lists all kinds in the order in which reports tell them.
var kinds = []kind{
	kindKill, kindPower, kindPause, kindCut, kindHalfCut, kindSlow, kindBroker, kindUnload, kindDelete, kindRollover,
	kindLeave, kindDeploy, kindScale, kindRegroup, kindSlew, kindPartitions, kindCrashWorker, kindCallerGivesUp, kindHolderKill, kindHolderStop,
}

// The bounds of the random draws.
const (
	roundMax = 3 // faults at once
	loneOdds = 3 // one round in so many holds several faults; the times of takeovers are measured in all other rounds

	pauseLeast, pauseMax = 300 * time.Millisecond, 30 * time.Second
	cutLeast, cutMax     = time.Second, 15 * time.Second
	slowLeast, slowMax   = 2 * time.Second, 10 * time.Second
	downLeast, downMax   = 200 * time.Millisecond, 6 * time.Second // until a killed process is started again
	delayLeast, delayMax = 20 * time.Millisecond, 400 * time.Millisecond
	freezeLeast          = silenceMax + 2*time.Second
	freezeMax            = silenceMax + 8*time.Second
	hastyLeast, hastyMax = time.Second, 5 * time.Second // how long callers give up
	spreadMax            = 2 * time.Second              // between the beginnings of the faults of a round
	quietLeast, quietMax = time.Second, 3 * time.Second
)

// fault is one thing that is done to the group. Its times count from the beginning
// of its round.
type fault struct {
	Kind    kind          `json:"kind"`
	Variant string        `json:"variant"`
	Member  int           `json:"member"`           // number of the victim; of all kinds that have one
	Worker  int           `json:"worker,omitempty"` // number of its application, of crash_worker; number of the holder, of the kinds of holders
	After   time.Duration `json:"after_ns"`
	Length  time.Duration `json:"length_ns,omitempty"` // of a pause, a cut, slow links, or until a killed process is started again
	Delay   time.Duration `json:"delay_ns,omitempty"`  // of packets on slow links
}

// scaleLeast and scaleMost bound the number of members.
const scaleLeast, scaleMost = 3, 9

// memberName names a member by its number.
func memberName(n int) string { return fmt.Sprint("m", n) }

// String tells the fault in a few words.
func (f fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", f.Kind, f.Variant)
	if p := profiles[f.Kind]; !p.broker && !p.lone && !p.holder {
		fmt.Fprintf(&b, " of %s", memberName(f.Member))
	}
	if f.Kind == kindCrashWorker {
		fmt.Fprintf(&b, "'s application %d", f.Worker)
	}
	if profiles[f.Kind].holder {
		fmt.Fprintf(&b, " of holder %d", f.Worker)
	}
	if f.Length > 0 {
		fmt.Fprintf(&b, ", %v", f.Length.Round(10*time.Millisecond))
	}
	return b.String()
}

// round is faults that happen at about the same time. When all are over and the
// group is whole again, Quiet passes, and the next round begins.
type round struct {
	Faults []fault       `json:"faults"`
	Quiet  time.Duration `json:"quiet_ns"`
}

// lone reports whether the times of the round's one fault may be measured.
func (r round) lone() bool { return len(r.Faults) == 1 }

// holdersCount is the number of processes that hold reservations.
const holdersCount = 4

// leavers are the kinds of which some faults leave work behind.
var leavers = []kind{kindKill, kindPause, kindCut, kindHalfCut, kindCrashWorker}

// slewed reports whether the clocks of all processes are steered.
func (o options) slewed() bool {
	return slices.Contains(o.Kinds, kindSlew) || o.Control == controlSlewed
}

// workers returns the number of applications beside each router.
func (o options) workers() int {
	if slices.Contains(o.Kinds, kindCrashWorker) {
		return workersMax
	}
	return 1
}

const (
	workersMax = 2
	silenceMax = 4 * time.Second // app.silence_max, with several workers: how long a frozen one keeps its keys
)

const (
	leftBehindLeast = 3               // faults that leave running handlers behind, in a run that must show the sinks' refusals
	leftBehindAfter = 4 * time.Second // a member that stands still for so long is replaced meanwhile
	drawsMax        = 1000
)

// leavesBehind reports whether the victim's handlers may still run when others own its
// keys, if they ignore their deadlines: the application lives, and its router's lease ends.
func (f fault) leavesBehind() bool {
	switch f.Kind {
	case kindKill:
		return f.Variant == atRouter
	case kindPause:
		return f.Variant != atApp && f.Length > leftBehindAfter
	case kindCut, kindHalfCut:
		return !strings.HasSuffix(f.Variant, fromPeers) && f.Length > leftBehindAfter
	case kindCrashWorker:
		return f.Variant == byFreeze
	default:
		return false
	}
}

// plan draws the rounds of a run. Stubborn applications try stale writes after faults
// that leave work behind, and such a run is to have some of these: it has the first of
// its seed's draws that does.
func plan(o options) []round {
	least := min(leftBehindLeast, (o.Faults+1)/2)
	rounds := draw(o.Seed, o.Faults, o.Members, o.Kinds)
	enough := func() bool {
		elsewhere, here := leftBehind(rounds)
		return elsewhere+here >= least && (here > 0 || !slices.Contains(o.Kinds, kindCrashWorker))
	}
	for again := uint64(1); o.Stubborn && !enough() && again < drawsMax; again++ {
		rounds = draw(o.Seed+again<<32, o.Faults, o.Members, o.Kinds)
	}
	return rounds
}

// leftBehind counts the faults that leave running work behind while the keys continue at another
// member, or at another worker of the same member.
func leftBehind(rounds []round) (elsewhere, here int) {
	for _, r := range rounds {
		for _, f := range r.Faults {
			switch {
			case !f.leavesBehind():
			case f.Kind == kindCrashWorker:
				here++
			default:
				elsewhere++
			}
		}
	}
	return elsewhere, here
}

// draw returns the rounds of n faults of the given kinds in a group of members. The
// same arguments give the same rounds. When n allows it, every kind comes.
func draw(seed uint64, n, members int, of []kind) []round {
	d := &drawer{random: rand.New(rand.NewPCG(seed, 0x72696e6766656e63)), members: members}
	d.fill(of, n)
	var rounds []round
	for len(d.bag) > 0 {
		rounds = append(rounds, d.round())
	}
	return rounds
}

// drawer draws the faults of one run.
type drawer struct {
	random  *rand.Rand
	members int
	bag     []kind
}

// fill puts n kinds into the bag: each once, then by weight, in random order.
func (d *drawer) fill(of []kind, n int) {
	var weighted []kind
	for _, k := range of {
		weighted = append(weighted, slices.Repeat([]kind{k}, profiles[k].weight)...)
	}
	first := slices.Clone(of)
	d.random.Shuffle(len(first), func(i, j int) { first[i], first[j] = first[j], first[i] })
	d.bag = first[:min(n, len(first))]
	for len(d.bag) < n {
		d.bag = append(d.bag, weighted[d.random.IntN(len(weighted))])
	}
	d.random.Shuffle(n, func(i, j int) { d.bag[i], d.bag[j] = d.bag[j], d.bag[i] })
}

func (d *drawer) round() round {
	r := round{Quiet: d.between(quietLeast, quietMax)}
	size := 1
	if d.random.IntN(loneOdds) == 0 {
		size = 2 + d.random.IntN(roundMax-1)
	}
	used, broker := map[int]bool{}, false
	for i := 0; i < size && len(d.bag) > 0; i++ {
		p := profiles[d.bag[0]]
		if i > 0 && (p.lone || p.broker && broker || profiles[r.Faults[0].Kind].lone) {
			break
		}
		f := d.fault(d.bag[0], used)
		if i > 0 {
			f.After = d.between(0, spreadMax)
		}
		r.Faults = append(r.Faults, f)
		broker = broker || p.broker
		d.bag = d.bag[1:]
	}
	return r
}

// fault draws the particulars of a fault. No member is the victim of two in a round.
func (d *drawer) fault(k kind, used map[int]bool) fault {
	p := profiles[k]
	f := fault{Kind: k, Variant: p.variants[d.random.IntN(len(p.variants))]}
	if p.holder {
		for f.Worker = d.random.IntN(holdersCount); used[ofHolder(f.Worker)]; {
			f.Worker = (f.Worker + 1) % holdersCount
		}
		used[ofHolder(f.Worker)] = true
	}
	if !p.broker && !p.lone && !p.holder {
		for f.Member = d.random.IntN(d.members); used[f.Member] && d.free(used); {
			f.Member = (f.Member + 1) % d.members
		}
		used[f.Member] = true
	}
	switch k {
	case kindKill, kindPower, kindSlew, kindHolderKill:
		f.Length = d.between(downLeast, downMax)
	case kindCallerGivesUp:
		f.Length = d.between(hastyLeast, hastyMax)
	case kindPause, kindHolderStop:
		f.Length = d.logarithmic(pauseLeast, pauseMax)
	case kindCrashWorker:
		f.Worker = d.random.IntN(workersMax)
		f.Length = d.between(downLeast, downMax)
		if f.Variant == byFreeze {
			f.Length = d.between(freezeLeast, freezeMax)
		}
	case kindCut, kindHalfCut:
		f.Length = d.logarithmic(cutLeast, cutMax)
	case kindSlow:
		f.Length = d.logarithmic(slowLeast, slowMax)
		f.Delay = d.logarithmic(delayLeast, delayMax)
	}
	return f
}

// free reports whether a member is no victim yet.
func (d *drawer) free(used map[int]bool) bool {
	for n := range d.members {
		if !used[n] {
			return true
		}
	}
	return false
}

// ofHolder is the number of a holder among the victims of a round, beside those of members.
func ofHolder(n int) int { return -1 - n }

func (d *drawer) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.random.Int64N(int64(most-least)+1))
}

// logarithmic draws as many short times as long ones, by their orders of magnitude.
func (d *drawer) logarithmic(least, most time.Duration) time.Duration {
	return time.Duration(float64(least) * math.Pow(float64(most)/float64(least), d.random.Float64()))
}

// parseKinds reads a comma-separated list of kinds; "" stands for all.
func parseKinds(list string) ([]kind, error) {
	if list == "" {
		return kinds, nil
	}
	var of []kind
	for word := range strings.SplitSeq(list, ",") {
		k := kind(strings.TrimSpace(word))
		if _, known := profiles[k]; !known {
			return nil, fmt.Errorf("--kinds: no kind %q, want some of %v", k, kinds)
		}
		if !slices.Contains(of, k) {
			of = append(of, k)
		}
	}
	return of, nil
}
