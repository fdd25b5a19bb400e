package ownership

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/ring"
)

// The toy world of the tests: one event loop, one seed, one shared log; machines
// with clocks of their own, their sidecars, and applications whose handlers live on
// when a sidecar dies. world checks the invariants of the protocol at every step.

const simPartitions = 8

// simKeys is the number of keys of each partition.
const simKeys = 3

// simPlace is rendezvous hashing: pure, and few partitions move.
func simPlace(names []string) ([]uint16, error) {
	table := make([]uint16, simPartitions)
	for p := range table {
		best := uint64(0)
		for i, name := range names {
			if h := xxhash.Sum64String(fmt.Sprintf("%s/%d", name, p)); h >= best {
				best, table[p] = h, uint16(i)
			}
		}
	}
	return table, nil
}

type simEvent struct {
	at  time.Duration
	seq int
	do  func()
}

type eventHeap []simEvent

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(simEvent)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

type entry struct {
	at  Position
	rec Record
}

type world struct {
	rng    *rand.Rand
	now    time.Duration // real time
	events eventHeap
	seq    int
	timing Timing

	log      []entry
	next     Position
	outage   time.Duration // the broker does not answer until then
	topic    int           // counts recreations
	procs    []*proc       // every process that ever ran
	runs     []*run        // every delivery that may still run
	digests  map[Position]uint64
	opened   map[ring.Partition]Token
	let      map[keyAt]Token // the newest tenure that let a key through
	failure  string
	trace    []string
	tracing  bool
	mixed    bool                   // leases of different lengths
	brief    bool                   // handlers take milliseconds
	idle     bool                   // no deliveries
	handler  time.Duration          // of the deliveries that begin now; 0: as the seed has it
	effect   func(*proc, Effect)    // sees each effect before it is performed; may be nil
	landed   func(Position, Record) // sees each record that lands; may be nil
	place    func(names []string) ([]uint16, error)
	former   bool              // processes that start now are of a release that knows version 1 only
	version  uint32            // of the log, that others may write at most; 0: the newest
	identity identity.Identity // of processes that start now
	lateness float64           // how likely a record lands late
	dupes    float64

	ending string // how the last machine ended
	stats  map[string]int
	takes  []time.Duration // takeover durations, as notes tell
	forked bool            // members read different logs, on purpose

	holders []*holder  // holders_test.go
	chances *rand.Rand // of the holders, so that they change nothing else
}

func newWorld(seed uint64, timing Timing) *world {
	return &world{
		rng: rand.New(rand.NewPCG(seed, 1)), timing: timing, next: Position{Ledger: 10}, place: simPlace,
		digests: map[Position]uint64{}, opened: map[ring.Partition]Token{}, let: map[keyAt]Token{},
		stats: map[string]int{},
	}
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, simEvent{w.now + max(d, 0), w.seq, do})
}

func (w *world) runUntil(t time.Duration) {
	for len(w.events) > 0 && w.failure == "" {
		if w.events[0].at > t {
			break
		}
		e := heap.Pop(&w.events).(simEvent)
		w.now = e.at
		e.do()
	}
	w.now = t
}

func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)+1))
}

func (w *world) chance(p float64) bool { return w.rng.Float64() < p }

func (w *world) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf("at %v: ", w.now) + fmt.Sprintf(format, args...)
		w.tracef("FAIL %s", w.failure)
	}
}

func (w *world) tracef(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%12v ", w.now)+fmt.Sprintf(format, args...))
	}
}

// proc is one sidecar process with one application beside it.
type proc struct {
	w       *world
	name    string
	id      int
	timing  Timing
	rate    float64
	offset  time.Duration
	former  bool
	m       *Machine
	inc     Incarnation
	alive   bool
	pause   time.Duration // the sidecar does nothing until then
	stall   time.Duration // its tail brings nothing until then
	cut     time.Duration // cut from the log until then
	queue   []func()      // inputs during a pause
	tickSeq int

	reader  uint64
	next    int // index of the next entry
	topic   int
	ready   bool
	reading bool
	skip    int // entries that the client drops

	others map[Position]bool // where it reads another record than everybody else, of the same meaning

	gates    [simPartitions]GateChange
	lease    Lease
	revoked  uint64
	busy     [simPartitions][simKeys]bool // a delivery of the open tenure is not over
	app      bool
	stream   int
	frameAt  time.Duration // when the newest frame on the stream arrives
	deadline clock.Instant // the application's, from the newest Pong
	sent     map[uint64]clock.Instant
	held     map[keyAt]*heldTurn
	ended    string // lost, exit, left
	checked  Position
}

// keyAt is one key.
type keyAt struct {
	part ring.Partition
	key  ring.KeyHash // 0 … simKeys-1
}

// run is one delivery.
type run struct {
	p *proc
	keyAt
	inc      Incarnation
	token    Token
	stream   int
	started  bool
	finish   time.Duration // when its handler ends by itself
	deadline clock.Instant // the application's
	revoked  bool          // as the application knows
	final    bool
	dead     bool // ended at the application
	// As the sidecar knows:
	until     clock.Instant
	sideRevok bool
	over      bool

	holder  *holder // of a live reservation, which is no application's: deadline is by its clock
	covered bool    // it is no delivery any more
}

func (p *proc) local(t time.Duration) clock.Instant {
	return clock.Instant(p.offset + time.Duration(float64(t)*p.rate))
}

func (p *proc) real(i clock.Instant) time.Duration {
	return time.Duration(float64(time.Duration(i)-p.offset)/p.rate) + 3 // surely past it
}

// running reports whether the handler of r runs now.
func (w *world) running(r *run) bool {
	if r.holder != nil {
		return !r.covered && r.holder.clock().Before(r.deadline)
	}
	return r.started && !r.dead && w.now < r.finish && r.p.local(w.now) < r.deadline
}

func (w *world) start(name string) *proc {
	p := &proc{
		w: w, name: name, id: len(w.procs), timing: w.timing, former: w.former,
		rate:   1 + (w.rng.Float64()*2-1)*0.0099,
		offset: w.between(time.Hour, 100*time.Hour), alive: true, sent: map[uint64]clock.Instant{}, held: map[keyAt]*heldTurn{},
	}
	if w.mixed { // members of one group may have leases of different lengths
		lease := time.Duration(1+w.rng.IntN(4)) * time.Second
		p.timing.Lease, p.timing.BeatEvery = lease, lease/4
	}
	w.procs = append(w.procs, p)
	w.stats["start"]++
	p.newMachine(nil)
	p.stepAfter(0, Tick{})
	p.after(w.between(0, 500*time.Millisecond), func() { p.setApp(true) })
	return p
}

func (p *proc) newMachine(running Set) {
	for i := range p.inc {
		p.inc[i] = byte(p.w.rng.Uint32())
	}
	cfg := Config{
		Group: "g", Name: p.name, Inc: p.inc, HashID: "h", Partitions: simPartitions,
		LogVersion: cmp.Or(p.w.version, LogVersionMax), Identity: p.w.identity, PublicKey: string(p.inc[:]) + string(p.inc[:]), Topics: []string{"orders"},
		Timing: p.timing, Seed: p.w.rng.Uint64(), Running: running, Place: p.w.place,
	}
	if p.former {
		cfg.LogVersion, cfg.Identity, cfg.PublicKey, cfg.Topics = LogVersionMin, nil, "", nil
	}
	if err := cfg.Validate(); err != nil {
		p.w.fail("config: %v", err)
	}
	p.m = New(cfg)
	for part := range ring.Partition(simPartitions) {
		p.gates[part] = GateChange{Partition: part, Gate: p.m.Gate(part)}
	}
	p.ended = ""
	p.revoked = 0
	p.sent, p.checked = map[uint64]clock.Instant{}, Position{}
	p.w.tracef("%s#%d is %v", p.name, p.id, p.inc)
}

// after runs do in d, later if the process is paused, never if it is dead.
func (p *proc) after(d time.Duration, do func()) {
	p.w.after(d, func() { p.act(do) })
}

func (p *proc) act(do func()) {
	switch {
	case !p.alive:
	case p.w.now < p.pause:
		p.queue = append(p.queue, do)
	default:
		do()
	}
}

func (p *proc) pauseFor(d time.Duration) {
	p.pause = max(p.pause, p.w.now+d)
	p.w.tracef("%s#%d paused %v", p.name, p.id, d)
	p.w.after(d, func() {
		if p.w.now < p.pause {
			return
		}
		queue := p.queue
		p.queue = nil
		for _, do := range queue {
			p.act(do)
		}
	})
}

func (p *proc) stepAfter(d time.Duration, in Input) { p.after(d, func() { p.step(in) }) }

func (p *proc) step(in Input) {
	if p.ended != "" && p.ended != "lost" {
		return
	}
	m := p.m
	w := p.w
	inputs := []Input{in}
	for len(inputs) > 0 && p.alive && p.m == m && p.ended == "" {
		in, inputs = inputs[0], inputs[1:]
		effects := m.Step(p.local(w.now), in)
		var answers []Input
		for _, e := range effects {
			if w.effect != nil {
				w.effect(p, e)
			}
			if a := p.perform(e); a != nil {
				answers = append(answers, a)
			}
		}
		inputs = append(answers, inputs...)
		p.checkState()
	}
	if p.ended == "lost" {
		return
	}
	p.tickSeq++
	seq := p.tickSeq
	if next := m.Next(); next != clock.Forever {
		d := p.real(next) - w.now
		p.after(max(d, 0)+w.between(0, 2*time.Millisecond), func() {
			if seq == p.tickSeq {
				p.step(Tick{})
			}
		})
	}
}

// perform performs an effect like a driver. It returns the answer to a Revoke.
func (p *proc) perform(e Effect) Input {
	w := p.w
	switch e := e.(type) {
	case OpenReader:
		p.openReader(e)
	case CheckContiguity:
		p.checkContiguity(e)
	case Append:
		p.append(e.Record)
	case SetGates:
		p.setGates(e)
	case Revoke:
		return p.revoke(e)
	case ForceDrain:
		for _, r := range w.runs {
			if r.p == p && e.Partitions.Has(r.part) && !r.over {
				p.overWhenPassed(r)
			}
		}
		w.stats["forced"]++
	case SetLease:
		p.setLease(e.Lease)
	case PublishTable:
	case TakenOver:
		w.takenOver(p, e)
	case Covered:
		p.covered(e)
	case MoveAnchor:
		w.stats["anchor"]++
	case ReadFirst:
		w.stats["read first"]++
		p.stepAfter(w.between(time.Millisecond, 30*time.Millisecond), w.firstRead(FirstRead{Read: e.Read, Virgin: w.topic > 0, Failed: w.chance(0.05)}, e))
	case Lost:
		w.tracef("%s#%d LOST %s", p.name, p.id, e.Reason)
		w.stats["lost"]++
		w.stats["lost: "+strings.Join(strings.FieldsFunc(e.Reason, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r == ' ') }), "")]++
		p.ended, w.ending = "lost", "lost"
		p.after(w.between(time.Millisecond, 200*time.Millisecond), func() {
			p.newMachine(p.unfinished())
			p.step(AppReady{p.app})
		})
	case Exit:
		w.tracef("%s#%d EXIT %s", p.name, p.id, e.Reason)
		w.stats["exit"]++
		p.ended, w.ending = "exit", "exit"
	case Left:
		w.tracef("%s#%d left", p.name, p.id)
		w.stats["left"]++
		p.ended, w.ending = "left", "left"
	case Note:
		w.stats[string(e.Kind)]++
		if e.Kind == NoteTakeover {
			w.takes = append(w.takes, e.Took)
		}
		w.tracef("%s#%d %v %s at %v count %d took %v %s", p.name, p.id, e.Inc, e.Kind, e.At, e.Count, e.Took, e.Reason)
	}
	return nil
}

// ---- the log ----

func (p *proc) logDown() bool { return p.w.now < p.cut || p.w.now < p.w.outage }

func (p *proc) openReader(e OpenReader) {
	p.reader = e.Reader
	p.reading, p.ready = false, false
	w := p.w
	reader, m := e.Reader, p.m
	p.after(w.between(time.Millisecond, 15*time.Millisecond), func() {
		if p.reader != reader || p.m != m {
			return
		}
		if p.logDown() {
			p.step(ReaderFailed{reader})
			return
		}
		p.topic, p.ready = w.topic, true
		p.next = len(w.log)
		if !e.At.IsZero() {
			p.next = slices.IndexFunc(w.log, func(x entry) bool { return !x.at.Before(e.At) })
			if p.next < 0 {
				p.next = len(w.log)
			}
		}
		p.step(ReaderOpened{reader})
		p.read()
	})
}

// read brings the next entries, one after the other.
func (p *proc) read() {
	if p.reading || !p.ready {
		return
	}
	if p.topic != p.w.topic { // the client silently continues with the new topic
		p.topic, p.next = p.w.topic, 0
	}
	if p.next == len(p.w.log) {
		return
	}
	p.reading = true
	w := p.w
	reader, m := p.reader, p.m
	delay := w.between(500*time.Microsecond, 8*time.Millisecond)
	delay = max(delay, p.stall-w.now, p.cut-w.now, w.outage-w.now)
	w.after(delay, func() {
		if !p.alive || p.reader != reader || p.m != m {
			return
		}
		p.reading = false
		if w.now < p.stall || p.logDown() || p.topic != w.topic || p.next >= len(w.log) {
			p.read()
			return
		}
		x := w.log[p.next]
		p.next++
		if p.skip > 0 {
			p.skip--
			w.stats["hole"]++
		} else {
			p.act(func() {
				if p.m != m {
					return
				}
				if p.former && x.rec.LogVersion > LogVersionMin {
					w.fail("%s#%d, which reads version 1, reads a record of version %d", p.name, p.id, x.rec.LogVersion)
				}
				sum := uint64(1)
				if p.others[x.at] {
					sum = 2
				}
				p.step(RecordRead{Reader: reader, At: x.at, Record: p.strip(x.rec), Sum: sum})
			})
		}
		p.read()
	})
}

// strip returns a record as a process of the former release reads and writes it: without unknown fields.
func (p *proc) strip(r Record) Record {
	if !p.former {
		return r
	}
	switch b := r.Body.(type) {
	case *Genesis:
		c := *b
		c.Identity, c.After, c.Members = nil, Position{}, stripNodes(c.Members)
		r.Body = &c
	case *Hello:
		c := *b
		c.Identity = nil
		c.Node = stripNodes([]Node{c.Node})[0]
		r.Body = &c
	case *Snap:
		c := *b
		if c.State != nil {
			c.State = c.State.clone()
			c.State.PrefixHash, c.State.Identity, c.State.LogVersion, c.State.Nodes = 0, nil, 0, stripNodes(c.State.Nodes)
		}
		r.Body = &c
	case *Beat:
		c := *b
		c.PrefixHash = 0
		r.Body = &c
	case *Epoch: // version 1 of it has nothing more
	}
	return r
}

func stripNodes(nodes []Node) []Node {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].setDetails(Node{})
	}
	return nodes
}

func (p *proc) append(r Record) {
	r = p.strip(r)
	w := p.w
	if b, ok := r.Body.(*Beat); ok {
		p.sent[b.Seq] = p.local(w.now)
		p.checkBeat(b)
	}
	delay := w.between(time.Millisecond, 10*time.Millisecond)
	if w.chance(w.lateness) {
		delay = w.between(10*time.Millisecond, 6*time.Second)
		w.stats["late"]++
	}
	lost := false
	if p.logDown() {
		if lost = w.chance(0.5); !lost {
			delay += max(p.cut, w.outage) - w.now
			w.stats["late"]++
		}
	}
	topic, m := w.topic, p.m
	w.after(delay, func() { // the record is on its way, whatever happens to its sender
		failed := lost || w.topic != topic
		if !failed {
			w.land(r)
			if w.chance(w.dupes) {
				w.after(w.between(0, time.Second), func() {
					if w.topic == topic {
						w.land(r)
						w.stats["duplicate"]++
					}
				})
			}
		}
		p.after(w.between(0, 3*time.Millisecond), func() {
			if p.m == m {
				p.step(AppendDone{Record: r, Failed: failed || w.chance(0.01)})
			}
		})
	})
}

func (w *world) land(r Record) {
	w.log = append(w.log, entry{w.next, r})
	if w.landed != nil {
		w.landed(w.next, r)
	}
	w.tracef("log %v %v %s", w.next, r.Inc, describe(r.Body))
	w.next.Entry++
	for _, p := range w.procs {
		if p.alive {
			p.read()
		}
	}
}

func describe(b Body) string {
	switch b := b.(type) {
	case *Beat:
		return fmt.Sprintf("beat %d applied %v ready %t draining %x acquired %x unreachable %v", b.Seq, b.Applied, b.Ready, b.Draining, b.Acquired, b.Unreachable)
	case *Epoch:
		return fmt.Sprintf("epoch after %v %v %v %s", b.Prev, b.Members, b.Table, b.Reason)
	case *Genesis:
		return fmt.Sprintf("genesis %v base %v %v", b.Members[0].Inc, b.Base, b.Reserved)
	case *Snap:
		return fmt.Sprintf("snap for %v", b.ForHello)
	case *Hello:
		return "hello " + b.Node.Name
	case *Reservations:
		return fmt.Sprintf("reservations %d applied %v take %v drop %v", b.Seq, b.Applied, b.Take, b.Drop)
	}
	return "?"
}

func (w *world) rollover() {
	if w.next.Entry > 0 {
		w.next = Position{Ledger: w.next.Ledger + 1 + w.rng.Int64N(3)}
		w.stats["rollover"]++
		w.tracef("rollover to %v", w.next)
	}
}

// deleteLog deletes the topic by force: later records go to a new one.
func (w *world) deleteLog() {
	w.topic++
	w.log = nil
	w.next = Position{Ledger: w.next.Ledger + 1}
	w.digests = map[Position]uint64{}
	w.stats["delete"]++
	w.tracef("log deleted")
	w.forgetPromises()
}

func (p *proc) checkContiguity(e CheckContiguity) {
	w := p.w
	m := p.m
	w.stats["check"]++
	p.after(w.between(time.Millisecond, 20*time.Millisecond), func() {
		a := CheckAnswer{Check: e.Check, Failed: p.logDown() || w.chance(0.1)}
		i := slices.IndexFunc(w.log, func(x entry) bool { return !x.at.Before(e.Last) })
		if i < 0 || i+1 >= len(w.log) {
			a.Failed = true
		}
		if !a.Failed {
			a.First, a.Second = w.log[i].at, w.log[i+1].at
		}
		if p.m == m {
			p.step(a)
		}
	})
}

// ---- the mailbox and the application ----

func (p *proc) setGates(e SetGates) {
	w := p.w
	for _, c := range e.Gates {
		was := p.gates[c.Partition]
		p.gates[c.Partition] = c
		if c.Gate != Open {
			continue
		}
		goesOn := was.Gate == Open && was.Token == c.Token // and lets more keys through
		w.stats["open"]++
		if len(c.Withheld) > 0 {
			w.stats["withheld"]++
		}
		if c.Token <= w.opened[c.Partition] && !goesOn { // I8, and I6: a tenure opens once
			w.fail("%s#%d opens partition %d with token %v after %v", p.name, p.id, c.Partition, c.Token, w.opened[c.Partition])
		}
		w.opened[c.Partition] = c.Token
		w.checkPromises(p, c)
		for _, r := range w.runs { // I10
			if r.part == c.Partition && w.running(r) && !slices.Contains(c.Withheld, r.key) && !(goesOn && r.token == c.Token) {
				w.fail("%s#%d opens partition %d while a delivery of %s#%d %v runs (deadline in %v)", p.name, p.id,
					c.Partition, r.p.name, r.p.id, r.inc, r.deadline.Sub(r.p.local(w.now)))
			}
		}
	}
	w.checkDispatchers()
	for _, c := range e.Gates {
		if c.Gate == Open {
			part := c.Partition
			for k := range ring.KeyHash(simKeys) {
				if !slices.Contains(c.Withheld, k) {
					w.let[keyAt{part, k}] = c.Token
				}
			}
			p.after(0, func() { p.dispatchAll(part) })
		}
	}
}

// checkDispatchers is I2.
func (w *world) checkDispatchers() {
	for part := range ring.Partition(simPartitions) {
		var holder *proc
		for _, p := range w.procs {
			if p.alive && p.gates[part].Gate == Open && p.local(w.now).Before(p.lease.Until) {
				if holder != nil {
					w.fail("%s#%d and %s#%d may both act for partition %d", holder.name, holder.id, p.name, p.id, part)
				}
				holder = p
			}
		}
	}
}

func (p *proc) frame(do func()) {
	w := p.w
	p.frameAt = max(p.frameAt, w.now+w.between(0, 5*time.Millisecond))
	stream := p.stream
	w.after(p.frameAt-w.now, func() {
		if stream == p.stream {
			do()
		}
	})
}

func (p *proc) setLease(l Lease) {
	w := p.w
	if l.Until != 0 {
		sent := l.Until.Add(-p.timing.Lease)
		ok := false
		for _, t := range p.sent {
			ok = ok || t == sent
		}
		if !ok {
			w.fail("%s#%d has a lease that no Beat gives", p.name, p.id) // I4
		}
	}
	p.lease = l
	w.checkDispatchers()
	for _, r := range w.runs {
		if r.holder == nil && r.p == p && r.stream == p.stream && !r.over && (!r.sideRevok || l.Draining.Has(r.part)) {
			r.until = max(r.until, l.Until)
		}
	}
	p.frame(func() { // a Pong
		p.deadline = max(p.deadline, l.Until)
		for _, r := range w.runs {
			if r.holder != nil || r.p != p || r.stream != p.stream || r.dead || !r.started {
				continue
			}
			if r.revoked && !l.Draining.Has(r.part) {
				continue
			}
			if !p.local(w.now).Before(r.deadline) { // I11: a passed deadline is never extended
				r.dead = true
				p.answer(r)
				continue
			}
			if l.Until > r.deadline {
				if r.final {
					w.fail("a final revocation was extended at %s#%d", p.name, p.id)
				}
				if r.revoked {
					w.stats["extended"]++
				}
				if w.let[r.keyAt] > r.token && w.running(r) {
					w.fail("%s#%d extends a delivery on partition %d that a later owner has proven dead", p.name, p.id, r.part)
				}
				r.deadline = l.Until
				w.endAtDeadline(r)
			}
		}
	})
	for part := range ring.Partition(simPartitions) {
		p.after(0, func() { p.dispatchAll(part) })
	}
}

func (p *proc) dispatchAll(part ring.Partition) {
	for k := range ring.KeyHash(simKeys) {
		p.dispatch(keyAt{part, k})
	}
}

func (p *proc) dispatch(at keyAt) {
	w, part := p.w, at.part
	if w.idle || !p.alive || p.busy[part][at.key] || !p.app || !p.lease.MayDispatch(p.gates[part].Gate, p.local(w.now)) ||
		slices.Contains(p.gates[part].Withheld, at.key) || p.awaited(at) != nil || w.holderFirst(at) {
		return
	}
	p.busy[part][at.key] = true
	r := &run{p: p, keyAt: at, inc: p.inc, token: p.gates[part].Token, stream: p.stream, until: p.lease.Until}
	w.runs = append(w.runs, r)
	p.frame(func() {
		if r.revoked || !p.local(w.now).Before(p.deadline) {
			r.dead = true // not_started
			p.answer(r)
			return
		}
		for _, o := range w.runs { // I1
			if o.keyAt == at && o != r && o.holder == nil && w.running(o) {
				w.fail("two handlers of key %v: %s#%d %v and %s#%d %v", at, o.p.name, o.p.id, o.inc, p.name, p.id, r.inc)
			}
		}
		w.checkHolders(at, nil)
		w.stats["deliveries"]++
		r.started, r.deadline = true, p.deadline
		r.finish = w.now + w.handlerTime()
		w.after(r.finish-w.now, func() { w.end(r) })
		w.endAtDeadline(r)
	})
}

func (w *world) handlerTime() time.Duration {
	switch x := w.rng.Float64(); {
	case w.handler > 0:
		return w.handler
	case w.brief:
		return w.between(time.Millisecond, 50*time.Millisecond)
	case x < 0.7:
		return w.between(20*time.Millisecond, 300*time.Millisecond)
	case x < 0.97:
		return w.between(300*time.Millisecond, 3*time.Second)
	}
	return w.between(3*time.Second, 20*time.Second)
}

func (w *world) endAtDeadline(r *run) {
	deadline := r.deadline
	w.after(r.p.real(deadline)-w.now, func() {
		if r.deadline == deadline && !r.p.local(w.now).Before(deadline) {
			w.end(r)
		}
	})
}

// end ends a handler, and tells its sidecar if that is still there.
func (w *world) end(r *run) {
	if !r.dead {
		r.dead = true
		if r.stream == r.p.stream {
			r.p.answer(r)
		}
		w.runs = slices.DeleteFunc(w.runs, func(o *run) bool { return o.dead && (o.over || !o.p.alive) })
	}
}

func (p *proc) answer(r *run) {
	p.after(p.w.between(0, 3*time.Millisecond), func() { p.over(r) })
}

// overWhenPassed lets a forced delivery cease to run when its last deadline has passed.
func (p *proc) overWhenPassed(r *run) {
	p.after(p.real(r.until)-p.w.now, func() {
		if !r.over && r.until < p.local(p.w.now) {
			p.over(r)
		}
	})
}

func (p *proc) over(r *run) {
	if r.over {
		return
	}
	r.over = true
	if p.w.running(r) {
		p.w.fail("%s#%d takes a running delivery for over", p.name, p.id)
	}
	if t := p.held[r.keyAt]; t != nil && t.run == r {
		p.endHeld(r.keyAt, t, false)
		return
	}
	if !r.sideRevok {
		p.busy[r.part][r.key] = false
		at := r.keyAt
		p.after(p.w.between(0, 50*time.Millisecond), func() { p.dispatch(at) })
		return
	}
	p.step(p.rest(p.revoked, SetOf(r.part)))
}

// rest returns the sidecar's report about deliveries of closed tenures.
func (p *proc) rest(seq uint64, partitions Set) Drained {
	in := Drained{Seq: seq, Partitions: newSet(simPartitions)}
	for part := range partitions.All() {
		var keys []ring.KeyHash
		for _, r := range p.w.runs {
			if r.p == p && r.part == part && r.sideRevok && !r.over {
				keys = append(keys, r.key)
			}
		}
		slices.Sort(keys)
		switch keys = slices.Compact(keys); {
		case len(keys) == 0:
			in.Partitions.add(part)
		case p.w.chance(0.9): // without a report, all keys count as busy
			in.Busy = append(in.Busy, Busy{part, keys})
		}
	}
	return in
}

func (p *proc) unfinished() Set {
	s := newSet(simPartitions)
	for _, r := range p.w.runs {
		if r.p == p && !r.over {
			s.add(r.part)
		}
	}
	return s
}

func (p *proc) revoke(e Revoke) Input {
	w := p.w
	if e.Seq != p.revoked+1 {
		w.fail("revoke %d after %d", e.Seq, p.revoked)
	}
	p.revoked = e.Seq
	for part := range e.Partitions.All() {
		if p.gates[part].Gate == Open {
			w.fail("revoke while the gate of %d is open", part)
		}
		p.busy[part] = [simKeys]bool{}
	}
	for _, r := range w.runs {
		if r.p == p && e.Partitions.Has(r.part) {
			r.sideRevok = true
		}
	}
	p.handOver(e.Partitions)
	p.frame(func() {
		for _, r := range w.runs {
			if r.p == p && e.Partitions.Has(r.part) && r.sideRevok {
				r.revoked = true
				r.final = r.final || e.Final
			}
		}
	})
	return p.rest(e.Seq, e.Partitions)
}

func (p *proc) setApp(up bool) {
	if p.app == up {
		return
	}
	p.app = up
	if !up { // it dies, its stream breaks
		p.stream++
		p.deadline = 0
		for _, r := range p.w.runs {
			if r.p == p && r.holder == nil {
				r.dead = true
				if !r.over {
					p.overWhenPassedOrDead(r)
				}
			}
		}
	}
	p.step(AppReady{up})
}

// overWhenPassedOrDead: a broken stream's deliveries are over when until has passed.
func (p *proc) overWhenPassedOrDead(r *run) { p.overWhenPassed(r) }

// ---- faults ----

// kill ends the sidecar. Its application's handlers live on to their last deadline,
// or die with it.
func (p *proc) kill(withApp bool) {
	p.alive = false
	p.queue = nil
	p.stream++ // nothing that is on its way arrives
	p.w.tracef("%s#%d killed, with app %t", p.name, p.id, withApp)
	if withApp {
		for _, r := range p.w.runs {
			if r.p == p {
				r.dead = true
			}
		}
	}
	for _, q := range p.w.procs {
		if q.alive && p.w.chance(0.6) {
			inc := p.inc
			q.stepAfter(p.w.between(0, 100*time.Millisecond), Evidence{inc, ReachDead})
		}
	}
}

// reach tells two processes whether they reach each other.
func (w *world) reach(a, b *proc, r Reach) {
	if a.alive && b.alive {
		a.stepAfter(w.between(0, 500*time.Millisecond), Evidence{b.inc, r})
		b.stepAfter(w.between(0, 500*time.Millisecond), Evidence{a.inc, r})
	}
}

// ---- checks ----

func (p *proc) checkState() {
	w, m := p.w, p.m
	if m.state == nil || m.over {
		return
	}
	for part := range m.gates.open.All() { // I6
		if m.state.Owner(part) != p.inc {
			w.fail("%s#%d has the gate of %d open without owning it", p.name, p.id, part)
		}
	}
	for part := range ring.Partition(simPartitions) {
		if p.gates[part].Gate != m.Gate(part) {
			w.fail("%s#%d was told gate %v for %d, has %v", p.name, p.id, p.gates[part].Gate, part, m.Gate(part))
		}
	}
	if m.tail.last != p.checked && m.tail.topicOf(w) {
		p.checked = m.tail.last
		d := stateDigest(m.state)                 // I9
		if !w.forked && m.state.LogVersion >= 2 { // of version 1 not everybody knows it
			d ^= m.state.PrefixHash
		}
		if was, ok := w.digests[m.tail.last]; ok && was != d {
			w.fail("%s#%d has another state at %v", p.name, p.id, m.tail.last)
		}
		w.digests[m.tail.last] = d
	}
	for _, r := range w.runs { // I5
		start := positionOf(r.token)
		if !w.running(r) || !start.Before(m.state.Start[r.part]) {
			continue
		}
		if !slices.ContainsFunc(m.state.Pending[r.part], func(t Tenure) bool {
			return t.Inc.IsZero() || t.Inc == r.inc && t.Start == start
		}) {
			w.fail("a delivery of %v runs on %d and is not pending at %s#%d", r.inc, r.part, p.name, p.id)
		}
	}
}

// topicOf reports whether the tail stands in the present topic.
func (t *tail) topicOf(w *world) bool {
	return len(w.log) > 0 && !t.last.Before(w.log[0].at)
}

// hidesKey reports whether a Beat names the busy keys of a partition, and not that of r.
func hidesKey(b *Beat, r *run) bool {
	return slices.ContainsFunc(b.Busy, func(busy Busy) bool {
		return busy.Partition == r.part && !slices.Contains(busy.Keys, r.key)
	})
}

// checkBeat is I7.
func (p *proc) checkBeat(b *Beat) {
	for _, r := range p.w.runs {
		if r.p != p || !p.w.running(r) || b.Draining.Has(r.part) && !hidesKey(b, r) {
			continue
		}
		if r.inc != p.inc || p.m.state.Owner(r.part) != p.inc || positionOf(r.token) != p.m.state.Start[r.part] {
			p.w.fail("%s#%d hides that a delivery runs on %d", p.name, p.id, r.part)
		}
	}
}

func positionOf(t Token) Position {
	return Position{Ledger: int64(t>>entryBits) & (1<<ledgerBits - 1), Entry: int64(t) & (1<<entryBits - 1)}
}

func stateDigest(s *State) uint64 {
	var d digest
	d.num(uint64(s.Gen))
	d.str(s.HashID)
	d.position(s.Genesis)
	d.position(s.Cur)
	d.num(s.ViewHash)
	for _, inc := range s.Members {
		d.str(string(inc[:]))
	}
	d.table(s.Table)
	d.position(s.LastTake)
	for _, r := range s.Reserved {
		d.str(fmt.Sprint(r))
	}
	for _, n := range s.Nodes {
		d.str(n.Name)
		d.str(string(n.Inc[:]))
		d.num(uint64(n.Lease))
		d.position(n.Since)
		if s.LogVersion >= 2 { // before, only some members know them
			d.details(n)
		}
	}
	if s.LogVersion >= 2 {
		d.identity(s.Identity)
	}
	for p := range s.Start {
		d.position(s.Start[p])
		d.num(uint64(len(s.Pending[p])))
		for _, t := range s.Pending[p] {
			d.str(string(t.Inc[:]))
			d.num(uint64(t.Lease))
			d.position(t.Start)
			d.position(t.Dep)
		}
	}
	return xxhash.Sum64(d.buf)
}
