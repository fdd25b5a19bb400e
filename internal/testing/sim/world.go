package sim

import (
	"io"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/ownership/driver"
	"github.com/ringfence/router/internal/source"
)

// params are the parameters of a run. Each run draws its own, so that some runs have much of
// one kind of trouble and none of another.
type params struct {
	partitions int
	timing     ownership.Timing
	mixed      bool    // members with leases of different lengths
	skew       bool    // members that would place partitions differently
	defiant    bool    // handlers that ignore their deadlines
	slow       float64 // how likely a handler takes long
	long       float64 // and of these, very long
	preempt    float64 // how likely the driver's goroutine waits between two effects
	drainMax   time.Duration

	appendMin, appendMax time.Duration
	readMin, readMax     time.Duration
	late                 float64 // records that land up to 6 s late, out of order
	duplicate            float64
	lostAck              float64
	checkFails           float64

	publishEvery  time.Duration // and so often calls are made
	covering      bool          // all reservations are of few keys, and have a ttl
	olderReleases bool          // some members take no calls
	pace          time.Duration // mean time between two faults
	weights       [kinds]int    // of the kinds of fault
}

// pod is a place where a router and its application run, with a name that outlives
// both. The workers of the application are processes of their own, some on other hosts.
type pod struct {
	w    *world
	name string
	host *host
	gen  uint32 // of its router's configuration; 0: not set

	settings int           // which of the sets of settings its router has
	lease    time.Duration // of its router; 0: as drawn
	size     int           // how many workers it has
	member   *member
	apps     []*application // its workers
	extra    bool           // joined during the run
	gone     bool           // taken away for good
}

// world is one run: a cluster, its surroundings, and the judge of both.
type world struct {
	loop
	p      params
	log    *controlLog
	broker *broker
	cuts   cuts
	keys   []event.Key
	pods   []*pod

	members []*member // every router process that ever ran, by id
	live    []*member
	apps    int
	names   map[ownership.Incarnation]*member

	stats      map[string]int
	running    map[event.Key][]*handling // started, and not known to be over
	tokens     []int64                   // partition → greatest token that a handler began with
	opened     []ownership.Token         // partition → token of the newest tenure that opened
	sink       map[event.Key]written     // the sink: the newest write, which has the greatest fence
	newest     map[event.Key]*handling   // the one that started last
	calls      map[event.MessageID]*callID
	reservings map[event.MessageID]*reserving
	open       []*reserving // some are over
	reservers  []*reserver
	holders    int // reservers that were ever started
	overlap    int // overlaps that defiant handlers made

	hadGroup bool   // a group has worked on the subscription
	hadGen   uint32 // the newest generation of its tokens
	settled  int    // the settings of the newest group
	raising  bool   // the operator is about to raise the generation

	forks      bool          // a member reads a fork of the log
	differedAt time.Duration // when two members had different prefix hashes

	rebuilt     bool // the log's metadata was lost
	lostAllowed bool
	exitAllowed bool
	spurious    bool // the present faults may remove anybody, and bring a Genesis
	publishing  bool
	faultsEver  int
	shape       scene
	script      func(w *world) // in the place of faults drawn by weight
	watchServed bool
	servedAt    []time.Duration
	strict      bool // the log is prompt and faithful all the time
	spills      bool // events that are open for long go by way of the retry topic
	ambush      bool // stall tails when a wait is about to end
	promised    int  // ends of faults that are still to come
	moves       int
	agenda      *agenda // nil: no schedules
	acts        *acts   // nil: no operators act
	difficult   bool    // workers drain, handlers time out, events kill
	troubles    bool    // it is not the time to come to rest
	wild        bool    // clocks jump
	counting    source.Counting
	knowsEnds   bool      // the broker says where its topics end
	journal     io.Writer // of the steps of all members, in the order in which they happen; nil: none
}

// journalled returns the machine of m as its driver is to see it.
func (w *world) journalled(m *member) driver.Machine {
	if w.journal == nil {
		return m.machine
	}
	return &driver.Journal{Machine: m.machine, Inc: m.inc, To: w.journal, Failed: func(err error) { w.fail("journal: %v", err) }}
}

func newWorld(seed uint64, p params) *world {
	w := &world{
		loop: newLoop(seed), p: p, cuts: cuts{}, names: map[ownership.Incarnation]*member{},
		stats: map[string]int{}, running: map[event.Key][]*handling{}, sink: map[event.Key]written{},
		newest: map[event.Key]*handling{}, calls: map[event.MessageID]*callID{}, reservings: map[event.MessageID]*reserving{},
	}
	w.log, w.broker = newControlLog(w), newBroker(w)
	w.spills = seed%4 == 1 // copies blur the effects of some planted bugs
	w.knowsEnds, w.counting = seed%2 == 0, source.CountEntries
	if seed%3 == 1 {
		w.counting = source.CountEvents
	}
	w.keys = makeKeys(2*p.partitions, p.partitions)
	w.tokens = make([]int64, p.partitions)
	w.opened = make([]ownership.Token, p.partitions)
	return w
}

func (w *world) count(what string) { w.stats[what]++ }

func (w *world) nameOf(inc ownership.Incarnation) string {
	if m := w.names[inc]; m != nil {
		return m.cfg.Name + "/" + inc.String()
	}
	return inc.String()
}

// memberAt returns the process that listens at an address.
func (w *world) memberAt(address string) *member {
	id := 0
	for _, c := range address {
		id = 10*id + int(c-'0')
	}
	return w.members[id]
}

func (w *world) newPod(name string) *pod {
	p := &pod{w: w, name: name, host: w.newHost(), size: 2}
	if w.chance(0.25) {
		p.size = 3
	}
	w.pods = append(w.pods, p)
	return p
}

// up starts the stopped processes of the pod.
func (p *pod) up() {
	if p.gone {
		return
	}
	if p.member == nil || p.member.process.dead {
		p.member = p.w.newMember(p)
	}
	for i, a := range p.apps {
		if a.process.dead {
			p.apps[i] = p.w.newApplication(p)
		}
	}
	for len(p.apps) < p.size {
		p.apps = append(p.apps, p.w.newApplication(p))
	}
}

// living are the workers that run, also those that are stopped.
func (p *pod) living() []*application {
	var living []*application
	for _, a := range p.apps {
		if !a.process.dead {
			living = append(living, a)
		}
	}
	return living
}

// publishOn publishes batches as long as the run wants them.
func (w *world) publishOn() {
	if w.publishing {
		w.broker.publish()
	}
	w.after(w.between(0, 2*w.p.publishEvery), w.publishOn)
}

// drawWork draws the duration and the result of a handler.
func (w *world) drawWork(h *handling) (time.Duration, event.Result) {
	takes := w.between(2*time.Millisecond, 80*time.Millisecond)
	switch x := w.rng.Float64(); {
	case x < w.p.slow*w.p.long:
		takes = w.between(2*time.Second, 12*time.Second)
	case x < w.p.slow:
		takes = w.between(200*time.Millisecond, 2500*time.Millisecond)
	}
	if h.call != nil {
		return takes, w.drawReply(h)
	}
	if h.sent != nil && h.sent.Firing != nil && w.agenda.fails > 0 {
		return takes, w.agenda.drawResult()
	}
	r := event.Result{Kind: event.ResultDone}
	switch x := w.rng.Float64(); {
	case x < 0.01:
		r = event.Result{Kind: event.ResultRetry, Reason: "not now"}
	case x < 0.013:
		r = event.Result{Kind: event.ResultRetry, Reason: "later", After: w.between(time.Second, 3*time.Second)}
	case x < 0.015:
		r = event.Result{Kind: event.ResultReject, Reason: "never"}
	}
	return takes, r
}
