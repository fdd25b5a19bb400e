package sim

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/ownership/driver"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/planted"
	"github.com/ringfence/router/ring"
)

// member is one router process: the production stages, joined by the production
// pipeline, and the loops that internal/node has goroutines for.
type member struct {
	w       *world
	id      int
	pod     *pod
	firings *firings // nil: no schedules
	host    *host
	process *process // all of it
	driver  *process // the goroutine that owns the ownership machine
	cfg     ownership.Config

	pipeline *pipeline.Pipeline
	boxes    *mailbox.Mailboxes
	app      *app.Server
	table    *forward.Table
	epoch    event.Position // newest that routes

	// The driver.
	inc         ownership.Incarnation
	incarnation int // counts incarnations
	machine     *ownership.Machine
	steps       *driver.Driver
	restAt      clock.Instant // when the driver came to rest
	busy        bool
	paused      bool // between two effects
	idle        []ring.Partition
	idleSoon    bool
	tick        int
	ended       ownership.Effect
	gates       []ownership.GateChange
	lease       ownership.Lease
	feed        feed
	reaches     []reach
	telling     bool // until the pause between two parts of a handover ends

	// The network.
	conns      []*peerConn
	inbound    []*link
	lastStream forward.StreamID
	forwardAt  clock.Instant

	// The application's streams.
	streams  []*conn
	workers  int
	noWorker clock.Instant // since when
	lookSoon bool
	expireAt clock.Instant
	boxesAt  clock.Instant

	// The source.
	ledger   *source.Ledger
	consumer *consumer // open
	reading  *consumer // the same while it takes more
	consumes bool      // consumeLater is under way

	// The callers on its host.
	old      bool // its release takes no calls
	calls    map[event.Handle]*calling
	lastCall uint64

	// The holders of reservations.
	seats     []*seat
	reserved  map[event.Handle]*seat
	takesSoon bool

	keeper *keeper // nil: no operators act

	settings   int           // as its process was started
	freshUntil clock.Instant // until when it was FRESH, even if it no longer is

	draining  bool
	leftAt    time.Duration
	touched   time.Duration // when a fault of its own was over, or will be
	joinedAt  time.Duration
	cur       ownership.Position // as the judge follows it
	members   []ownership.Incarnation
	beatAt    time.Duration // when its newest Beat landed
	hadWorker bool          // an application was there
	waits     []waiting     // partition → how long its gate has been waiting
}

func (m *member) String() string { return fmt.Sprintf("%s#%d/%d", m.cfg.Name, m.id, m.incarnation) }

var (
	appMetrics = app.NewMetrics(prometheus.NewRegistry())
	silent     = slog.New(slog.DiscardHandler)
)

func appConfig(timeout bool) app.Config {
	c := app.DefaultConfig()
	if timeout {
		c.HandlerTimeout = handlerTimeout
	}
	c.PingInterval = pingEvery
	c.FrameEventsMax = 4
	return c
}

// pingEvery is longer than in production: it makes a third of all that happens.
const pingEvery = 400 * time.Millisecond

func mailboxConfig(shards int) mailbox.Config {
	c := mailbox.DefaultConfig()
	c.Shards, c.DepthMax, c.WindowBytesMax = shards, 6, shards<<20
	c.KeyCallsMax, c.RepliesBytesMax = 6, shards*callRepliesBytes
	return c
}

func retryConfig(difficult bool) outcome.Config {
	c := outcome.Config{AttemptsMax: 6, CrashesMax: 100, BackoffMin: 200 * time.Millisecond, BackoffMax: 4 * time.Second, AfterMax: time.Minute, RetryHoldMax: time.Second}
	if difficult {
		c.CrashesMax = 4
	}
	return c
}

func forwardConfig() forward.Config {
	c := forward.DefaultConfig()
	c.UnreachableHoldMax = 3 * time.Second
	return c
}

// newMember starts a router process in a pod.
func (w *world) newMember(p *pod) *member {
	m := &member{w: w, id: len(w.members), pod: p, host: p.host, touched: w.now, calls: map[event.Handle]*calling{}, reserved: map[event.Handle]*seat{}}
	m.old = w.p.olderReleases && m.id%3 == 2
	m.process = &process{loop: &w.loop, settle: m.settle}
	m.driver = &process{loop: &w.loop, settle: m.settle}
	timing := w.p.timing
	if w.p.mixed {
		timing.Lease = time.Duration(1+w.rng.IntN(4)) * time.Second
		timing.BeatEvery = timing.Lease / 4
	}
	if p.lease > 0 {
		timing.Lease, timing.BeatEvery = p.lease, p.lease/4
	}
	salt := uint64(0)
	if w.p.skew {
		salt = uint64(w.rng.IntN(3))
	}
	m.cfg = ownership.Config{
		Group: "g", Name: p.name, HashID: "h", Partitions: w.p.partitions, GRPCAddr: strconv.Itoa(m.id),
		LogVersion: ownership.LogVersionMax,
		Timing:     timing, Gen: p.gen, Place: place(w.p.partitions, salt),
		Identity: identityOf(p.settings),
	}
	m.settings = p.settings
	boxes := mailboxConfig(2 + w.rng.IntN(3))
	if w.agenda != nil && w.agenda.fails > 0 {
		boxes.DepthMax = 128 // with fewer, firings that wait for a failed one leave no room for it
	}
	m.boxes = mailbox.NewMailboxes(boxes, retryConfig(w.difficult), p.name, m.clock)
	m.table = forward.NewTable(forwardConfig())
	extractor, err := key.Parse("message_key", key.Reject)
	if err != nil {
		w.fail("%v", err)
	}
	var judge app.Schedules
	if w.agenda != nil {
		m.firings = newFirings(m)
		judge = m.firings
		m.boxes.JudgeSkips(m.firings.maySkip)
	}
	m.pipeline, err = pipeline.New(pipeline.Parts{Ended: m.deliveriesEnded, Skipped: m.skipped, Known: m.known, Letters: m.lettersSettled, Answered: m.answered, Renewed: m.renewed, Began: m.began, Now: m.clock}, func(made *pipeline.Pipeline) (_ pipeline.Stages, err error) {
		m.app, err = app.New(appConfig(w.difficult), app.Identity{Node: p.name, Group: "g"}, app.Parts{
			Boxes: made, Lease: made.Lease,
			Workers: func(int) {}, Drain: func(string) {}, Schedules: judge,
			Cover: m.deliver,
			Now:   m.clock, Log: silent, Metrics: appMetrics,
		})
		return pipeline.Stages{Key: extractor, Holder: holder{m}, Peers: answerer{m}, Boxes: m.boxes, App: m.app}, err
	})
	if err != nil {
		w.fail("%v", err)
	}
	m.pipeline.SetSource(m)
	m.ledger = source.NewLedger(w.counting)
	m.keeper = newKeeper(m)
	w.members = append(w.members, m)
	w.live = append(w.live, m)
	w.count("start")
	m.noWorker = m.clock()
	m.process.later(w.between(0, 50*time.Millisecond), m.begin)
	return m
}

// clock is the clock that leases run on.
func (m *member) clock() clock.Instant {
	if planted.On(planted.SuspendClock) {
		return m.host.monotonic()
	}
	return m.host.lease()
}

// begin begins an incarnation, as internal/node's liveOnce does.
func (m *member) begin() {
	w := m.w
	for i := range m.inc {
		m.inc[i] = byte(w.rng.Uint32())
	}
	w.names[m.inc] = m
	var running []ring.Partition
	for p := range ring.Partition(w.p.partitions) {
		if m.boxes.Running(p) > 0 {
			running = append(running, p)
		}
	}
	cfg := m.cfg
	if m.machine != nil {
		cfg.Memory = m.machine.Memory()
	}
	cfg.HadGroup, cfg.HadGen = w.hadGroup, w.hadGen // as read from the claims
	cfg.Inc, cfg.Seed, cfg.Running = m.inc, w.rng.Uint64(), ownership.SetOf(running...)
	if err := cfg.Validate(); err != nil {
		w.fail("%v", err)
	}
	m.cfg = cfg
	m.incarnation++
	m.machine = ownership.New(cfg)
	m.steps, m.ended, m.idle = driver.New(w.journalled(m), effects{m}), nil, nil
	m.busy, m.paused, m.telling = false, false, false
	m.gates = make([]ownership.GateChange, w.p.partitions)
	for p := range m.gates {
		m.gates[p] = ownership.GateChange{Partition: ring.Partition(p), Gate: m.machine.Gate(ring.Partition(p))}
	}
	m.waits = make([]waiting, w.p.partitions)
	m.cur, m.members, m.hadWorker = ownership.Position{}, nil, m.workers > 0
	m.lease, m.freshUntil = ownership.Lease{}, 0
	m.feed = feed{stalled: m.feed.stalled, cut: m.feed.cut, lag: m.feed.lag, lands: m.feed.lands, stuck: m.feed.stuck}
	for _, c := range slices.Clone(m.conns) {
		c.unlist()
		if c.link == nil {
			c.end()
		}
	}
	for i := range m.reaches {
		m.reaches[i].told = ownership.ReachUnknown
	}
	m.pipeline.SetSelf(m.inc)
	w.tracef("%s begins as %v, running on %v", m, m.inc, running)
	m.restAt = m.clock()
	m.deliver(ownership.AppReady{Ready: m.workers > 0})
	m.tellReaches()
	m.deliveriesEnded(running) // deliveries that ended before the machine existed
	if m.draining {
		m.deliver(ownership.Leave{})
	}
}

// reach is the streams' knowledge about a peer, and the last state that the machine got.
type reach struct {
	inc       ownership.Incarnation
	now, told ownership.Reach
}

// evidence notes the streams' knowledge about a peer; the driver takes the changes later, as
// internal/node's does.
func (m *member) evidence(inc ownership.Incarnation, now ownership.Reach) {
	i := slices.IndexFunc(m.reaches, func(r reach) bool { return r.inc == inc })
	if i < 0 {
		i = len(m.reaches)
		m.reaches = append(m.reaches, reach{inc: inc})
	}
	m.reaches[i].now = now
	m.driver.later(m.w.hop(), m.tellReaches)
}

func (m *member) tellReaches() {
	for i := range m.reaches {
		if r := &m.reaches[i]; r.now != r.told {
			r.told = r.now
			m.deliver(ownership.Evidence{Inc: r.inc, Reach: r.now})
		}
	}
	m.reaches = slices.DeleteFunc(m.reaches, func(r reach) bool { return r.now == ownership.ReachUnknown })
}

// settle does the work that follows from the last event.
func (m *member) settle() {
	m.learnEnds()
	for _, c := range m.streams {
		if c.manual.Awake() {
			c.wake()
		}
	}
	m.takeReservations()
	m.armBoxes()
}

// armBoxes ticks the mailboxes when they ask for it; production looks every 10 ms.
func (m *member) armBoxes() {
	next := m.boxes.Next()
	if next == clock.Forever || m.boxesAt != 0 && m.boxesAt <= next {
		return
	}
	m.boxesAt = next
	m.process.later(m.host.until(m.clock(), next)+m.w.between(0, 10*time.Millisecond), func() {
		if m.boxesAt == next {
			m.boxesAt = 0
			m.pipeline.Tick()
		}
	})
}

// look detects changes at the application's streams, as app.Server.Run does.
func (m *member) look() {
	if m.lookSoon {
		return
	}
	m.lookSoon = true
	m.process.later(m.w.hop(), func() {
		m.lookSoon = false
		if n := m.app.Workers(); n != m.workers {
			m.workers = n
			m.touch(0) // without an application a member is not sound, and gives its partitions up
			m.hadWorker = m.hadWorker || n > 0
			if n == 0 {
				m.noWorker = m.clock()
				m.process.later(m.cfg.Timing.AppAbsence+time.Millisecond, m.consumeLater)
			}
			incarnation := m.incarnation
			m.driver.later(m.w.hop(), func() {
				if m.incarnation == incarnation {
					m.deliver(ownership.AppReady{Ready: m.workers > 0}) // in production news keep their order
				}
			})
			m.consumeLater()
		}
		next := m.app.Expire()
		if next == clock.Forever || m.expireAt != 0 && m.expireAt <= next {
			return
		}
		m.expireAt = next
		m.process.later(min(m.host.until(m.clock(), next)+m.w.hop(), 5*time.Second), func() {
			m.expireAt = 0
			m.look()
		})
	})
}

// consumeLater looks whether to read the subscription, as internal/node's consume does.
func (m *member) consumeLater() {
	if m.consumes {
		return
	}
	m.consumes = true
	m.process.later(m.w.hop(), func() {
		m.consumes = false
		m.consume()
	})
}

func (m *member) consume() {
	switch {
	case m.mayConsume() && m.consumer == nil:
		ledger := source.NewLedger(m.w.counting)
		ledger.ContinueAfter(m.ledger)
		m.ledger = ledger
		m.consumer = m.w.broker.subscribe(m, ledger)
		m.reading = m.consumer
		m.pipeline.AskEnds()
	case !m.mayGoOn() && m.reading != nil:
		m.reading = nil // for good: the next one is another source
		c := m.consumer
		m.process.later(settleMax, func() {
			if m.consumer == c {
				m.w.count("abandoned")
				m.unsubscribe()
			}
		})
		m.consume()
	case m.reading == nil && m.consumer != nil && m.ledger.Stats().Unsettled == 0:
		m.unsubscribe()
	}
}

// settleMax is how long a member that stops reading waits for verdicts.
const settleMax = 20 * time.Millisecond

// unsubscribe gives everything that is open back to the broker.
func (m *member) unsubscribe() {
	c := m.consumer
	m.consumer = nil
	m.w.after(m.w.between(0, 10*time.Millisecond), func() { m.w.broker.remove(c) }) // the last acks go first
	m.pipeline.Drop(m.ledger.Close(), event.Returned)
	m.consumeLater()
	m.finishDrain()
}

func (m *member) mayConsume() bool { return !m.draining && m.isMember() && !m.appIsGone() }

// mayGoOn reports whether a reading member may continue. In a drain it may until it has left:
// otherwise its prefetched events would wait.
func (m *member) mayGoOn() bool {
	return m.mayConsume() || m.draining && m.leftAt == 0 && !m.appIsGone()
}

func (m *member) appIsGone() bool {
	return m.workers == 0 && m.clock().Sub(m.noWorker) > m.cfg.Timing.AppAbsence
}

func (m *member) isMember() bool {
	t := m.pipeline.Table()
	return t != nil && slices.ContainsFunc(t.Members, func(n ownership.Node) bool { return n.Inc == m.inc })
}

// Settle implements pipeline.Settler.
func (m *member) Settle(done []event.Set, verdicts []event.Verdict) {
	if m.consumer != nil {
		m.consumer.settle(done, verdicts)
	}
}

// leave begins a graceful leave.
func (m *member) leave() {
	if m.draining {
		return
	}
	m.draining = true
	m.w.tracef("%s: asked to leave", m)
	m.consumeLater()
	m.deliver(ownership.Leave{})
	m.process.later(m.w.p.drainMax, func() { m.kill(true) })
}

// finishDrain ends the process when it has left and settled everything.
func (m *member) finishDrain() {
	if m.leftAt == 0 || m.consumer != nil {
		return
	}
	if m.pipeline.HandOver() {
		m.process.later(pipeline.HandoverPause, m.finishDrain)
		return
	}
	m.process.later(m.w.between(0, 50*time.Millisecond), func() { m.kill(true) })
}

// kill ends the process. The broker notices at once when its connections are closed,
// and late when they are only silent.
func (m *member) kill(noticed bool) {
	if m.process.dead {
		return
	}
	w := m.w
	w.tracef("%s: dead", m)
	m.process.kill()
	m.driver.kill()
	w.live = slices.DeleteFunc(w.live, func(o *member) bool { return o == m })
	for _, l := range m.links() {
		l.outUp, l.inUp = l.outUp && l.from != m, l.inUp && l.to != m
		if noticed {
			l.cutLater(0, 5*time.Millisecond)
		} else {
			l.cutLater(time.Second, 1200*time.Millisecond)
		}
	}
	for _, c := range m.streams {
		c.routerGone()
	}
	if c := m.consumer; c != nil {
		d := w.between(0, 20*time.Millisecond)
		if !noticed {
			d = w.between(time.Second, 10*time.Second)
		}
		w.after(d, func() { w.broker.remove(c) })
	}
	m.loseCalls()
	m.loseSeats()
	// These are not needed again, and long runs start many members.
	m.pipeline, m.boxes, m.table, m.ledger, m.machine, m.app = nil, nil, nil, nil, nil, nil
}

// stop stops the whole process.
func (m *member) stop(d time.Duration) {
	m.process.stop(d)
	m.driver.stop(d)
	m.touch(d)
	if d > time.Second {
		m.silence(m.w.now + d)
	}
	if c := m.consumer; c != nil && d > 15*time.Second {
		m.w.after(15*time.Second, func() { m.w.broker.drop(c) })
	}
}

// touch notes a fault of this member's own that is over in d.
func (m *member) touch(d time.Duration) { m.touched = max(m.touched, m.w.now+d) }
