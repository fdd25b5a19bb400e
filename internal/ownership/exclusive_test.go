package ownership

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/ring"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "replay this seed only, with a trace")
	seedsFlag = flag.Int("seeds", 300, "how many seeds")
	firstFlag = flag.Uint64("first", 1, "the first of them")
)

func simTiming() Timing {
	t := DefaultTiming()
	t.DrainTimeout, t.RemovedMax = 5*time.Second, 8*time.Second
	return t
}

// TestExclusive runs small groups through every fault of the protocol's list.
func TestExclusive(t *testing.T) {
	if *seedFlag != 0 {
		w := simulate(*seedFlag, true)
		t.Log(strings.Join(w.trace, "\n"))
		if w.failure != "" {
			t.Fatal(w.failure)
		}
		return
	}
	const shards = 4
	totals := [shards]map[string]int{}
	t.Run("seeds", func(t *testing.T) {
		for shard := range shards {
			totals[shard] = map[string]int{}
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for i := shard; i < *seedsFlag; i += shards {
					seed := *firstFlag + uint64(i)
					w := simulate(seed, false)
					if w.failure != "" {
						t.Fatalf("%s\nreplay with: go test ./internal/ownership -run 'TestExclusive$' -v -seed=%d", w.failure, seed)
					}
					for k, v := range w.stats {
						totals[shard][k] += v
					}
				}
			})
		}
	})
	total := map[string]int{}
	for _, part := range totals {
		for k, v := range part {
			total[k] += v
		}
	}
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%-20s %d", k, total[k])
	}
	for _, k := range []string{
		"open", "deliveries", "takeover", "drained", "genesis", "adopted", "left", "lost", "confirm", "forced",
		"late", "duplicate", "rollover", "check", "hole", "kill", "pause", "stall", "cut", "outage", "removed",
		"epoch_lost", "extended", "lease_lapsed",
		"granted", "covered", "renewed covered", "handed over", "resumed", "covered again", "released", "expired covered", "genesis_void",
	} {
		if total[k] == 0 {
			t.Errorf("no %s in %d seeds: this run proved too little", k, *seedsFlag)
		}
	}
}

// simulate runs one seed: a group starts, faults fall, then they stop and the group
// must come to rest.
func simulate(seed uint64, tracing bool) *world {
	w := newWorld(seed, simTiming())
	w.tracing = tracing
	w.mixed = w.chance(0.3)
	if seed%2 == 0 {
		w.startHolders(seed, 12)
	}
	n := 2 + w.rng.IntN(6)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
		w.after(w.between(0, 3*time.Second), func() { w.start(names[i]) })
	}
	w.runUntil(12 * time.Second)
	w.lateness, w.dupes = 0.01*float64(w.rng.IntN(6)), 0.01*float64(w.rng.IntN(4))
	pace := w.between(200*time.Millisecond, 3*time.Second)
	for w.now < 38*time.Second && w.failure == "" {
		w.fault(names)
		w.runUntil(w.now + w.between(0, 2*pace))
	}
	w.heal(names)
	for end := w.now + time.Minute; w.failure == ""; {
		w.runUntil(w.now + 2*time.Second)
		why := w.unrest()
		if why == "" {
			return w
		}
		if w.now > end {
			w.fail("%s", why)
		}
	}
	return w
}

// fault lets one thing go wrong.
func (w *world) fault(names []string) {
	p := w.procs[w.rng.IntN(len(w.procs))]
	if !p.alive {
		p = w.procs[len(w.procs)-1]
	}
	short, long := w.between(0, time.Second), w.between(500*time.Millisecond, 8*time.Second)
	switch x := w.rng.IntN(100); {
	case x < 12:
		w.stats["kill"]++
		p.kill(w.chance(0.3))
		w.after(long, func() { w.startIfGone(p.name) })
	case x < 20:
		p.stepAfter(0, Leave{})
		w.after(long+2*time.Second, func() { w.startIfGone(p.name) })
	case x < 34:
		w.stats["pause"]++
		p.pauseFor(long)
	case x < 38:
		p.pauseFor(short)
	case x < 48:
		w.stats["stall"]++
		p.stall = w.now + long
	case x < 56:
		w.stats["cut"]++
		p.cut = w.now + long
	case x < 60:
		w.stats["outage"]++
		w.outage = w.now + long
	case x < 70:
		w.rollover()
	case x < 72:
		p.skip = 1
	case x < 73:
		w.deleteLog()
	case x < 82:
		q := w.procs[w.rng.IntN(len(w.procs))]
		if q != p {
			w.reach(p, q, ReachDead)
			w.after(long, func() { w.reach(p, q, ReachAlive) })
		}
	case x < 87:
		p.act(func() { p.setApp(false) })
		w.after(long, func() { p.act(func() { p.setApp(true) }) })
	case x < 92:
		w.injectGenesis(p)
	case x < 94: // a second process with the same name
		w.start(p.name)
	default: // attack 34: a tail stalls right after its own Beat, while another member drains
		w.stats["stall"]++
		p.stall = w.now + w.between(time.Second, 3*time.Second)
		w.start(fmt.Sprintf("x%d", len(w.procs)))
	}
}

// injectGenesis lets a Genesis land that was sent long ago.
func (w *world) injectGenesis(p *proc) {
	table := make([]uint16, simPartitions)
	node := Node{Name: p.name, Inc: p.inc, Lease: p.timing.Lease}
	g := &Genesis{HashID: "h", Partitions: simPartitions, Members: []Node{node}, Table: table}
	version := uint32(LogVersionMin)
	if len(w.holders) > 0 && len(w.log) > 0 { // of an author that knows of reservations, and has not read all takes
		read := w.log[max(0, len(w.log)-1-w.chances.IntN(60))].at
		version, g.After, g.Base = LogVersionMax, read, read
		g.Reserved = w.firstRead(FirstRead{}, ReadFirst{Before: Position{Ledger: read.Ledger, Entry: read.Entry + 1}, Partitions: simPartitions}).Reserved
		node.LogVersion = LogVersionMax
		g.Members[0] = node
	}
	w.land(Record{LogVersion: version, Group: "g", Inc: p.inc, Body: g})
	w.stats["injected"]++
}

func (w *world) startIfGone(name string) {
	for _, p := range w.procs {
		if p.name == name && p.alive && p.ended != "exit" && p.ended != "left" {
			return
		}
	}
	w.start(name)
}

// heal stops all faults.
func (w *world) heal(names []string) {
	w.tracef("heal")
	w.lateness, w.dupes = 0, 0
	for _, p := range w.procs {
		p.stall, p.cut, p.skip = 0, 0, 0
		if p.alive {
			p.act(func() { p.setApp(true) })
			for _, q := range w.procs {
				p.stepAfter(time.Second, Evidence{q.inc, ReachAlive})
			}
			p.read()
		}
	}
	w.outage = 0
	for _, name := range names {
		w.startIfGone(name)
	}
}

// unrest lists the open conditions for every partition to have a serving owner.
func (w *world) unrest() string {
	if w.stats["lost"] > 0 && w.stats["hole"]+w.stats["delete"] == 0 && !w.forked {
		return "LOST though the log was whole" // an outage or a pause loses no state
	}
	served, working := 0, 0
	for _, p := range w.procs {
		if !p.alive || p.ended != "" {
			continue
		}
		working++
		if phase := p.m.Status(p.local(w.now)).Phase; phase != Current && phase != Leaving {
			return fmt.Sprintf("%s#%d is %v", p.name, p.id, phase)
		} else if phase == Current {
			served += p.m.gates.open.Len()
		}
	}
	for part := range ring.Partition(simPartitions) {
		for _, p := range w.procs {
			if p.alive && p.ended == "" && p.m.Gate(part) == Waiting {
				blockers, running := p.m.Why(part)
				w.tracef("%s#%d waits for %d: %v, own delivery %t", p.name, p.id, part, blockers, running)
			}
		}
	}
	if served != simPartitions && working > 0 {
		return fmt.Sprintf("%d of %d partitions are served", served, simPartitions)
	}
	return ""
}
