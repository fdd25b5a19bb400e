package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/source"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// docs/lifecycle.md names the tests of this file beside its arrows.

// serve connects an application with this handler to m, or one more worker of it.
func (g *group) serve(m *member, handler client.Handler, options ...client.Option) {
	ctx, cancel := context.WithCancel(context.Background())
	stopOthers := m.stopApp
	var running sync.WaitGroup
	running.Go(func() {
		options = append(options, client.WithLogger(slog.New(slog.DiscardHandler)))
		_ = client.Run(ctx, m.endpoint, handler, options...) // a handler that is held may outlast it
	})
	m.stopApp = sync.OnceFunc(func() { cancel(); running.Wait(); stopOthers() })
}

func done(context.Context, *client.Event) error { return nil }

// holder is an application that holds on to the first event that it gets.
type holder struct {
	key  chan string   // of that event
	free chan struct{} // ends its handler

	held  atomic.Bool // the first event is there
	freed sync.Once

	mu      sync.Mutex
	handled map[string]bool // payloads whose handler has returned
}

func newHolder(t testing.TB) *holder {
	h := &holder{key: make(chan string, 1), free: make(chan struct{}), handled: map[string]bool{}}
	t.Cleanup(h.release)
	return h
}

func (h *holder) release() { h.freed.Do(func() { close(h.free) }) }

func (h *holder) handle(_ context.Context, e *client.Event) error {
	if h.held.CompareAndSwap(false, true) {
		h.key <- strings.Clone(e.Key)
		<-h.free
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handled[string(e.Payload)] = true
	return nil
}

func (h *holder) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.handled)
}

func (h *holder) has(payload string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.handled[payload]
}

// publishOne sends an event, and returns its payload.
func (g *group) publishOne(key string) string {
	g.t.Helper()
	payload := fmt.Sprintf("event-%d", len(g.published))
	g.published = append(g.published, payload)
	if _, err := g.broker.Publish(g.t.Context(), "persistent://public/default/orders", []membroker.Message{{Key: key, Payload: []byte(payload)}}); err != nil {
		g.t.Fatal(err)
	}
	return payload
}

// failing returns the names of the checks that fail.
func failing(checks []Check) string {
	var names []string
	for _, c := range checks {
		if c.Ask() != nil {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, " ")
}

func (g *group) fails(checks []Check, want string) {
	g.t.Helper()
	g.eventually(fmt.Sprintf("%q fails", want), func() error {
		if got := failing(checks); got != want {
			return fmt.Errorf("%q fails", got)
		}
		return nil
	})
}

func (g *group) consumers(want int) {
	g.t.Helper()
	g.eventually(fmt.Sprintf("%d consume", want), func() error {
		if got := g.broker.SubscriptionStats("orders").Consumers; got != want {
			return fmt.Errorf("%d do", got)
		}
		return nil
	})
}

func (g *group) closes(what string, c <-chan struct{}) {
	g.t.Helper()
	g.eventually(what, func() error {
		if !signal.IsClosed(c) {
			return errors.New("not yet")
		}
		return nil
	})
}

// drainAndUndrain waits until a member has drained, and then until it has begun to come back.
func (g *group) drainAndUndrain(m *member) {
	g.t.Helper()
	g.closes("drained", m.Drain())
	begun, err := m.Undrain()
	if err != nil {
		g.t.Fatal(err)
	}
	g.closes("coming back", begun)
}

// mute is a control log that cannot be written until unmuted.
type mute struct {
	controllog.Transport
	speaks atomic.Bool
}

func (m *mute) Append(data []byte, done func(error)) {
	if !m.speaks.Load() {
		done(errors.New("the broker is away"))
		return
	}
	m.Transport.Append(data, done)
}

func TestLifecycleStarted(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	log := &mute{Transport: g.log}
	a := g.startWith("a", nil, func(p *Parts) {
		p.ControlLog = func() (controllog.Transport, error) { return log, nil }
	})
	probes := a.Probes()
	g.fails(probes.Startup, "control_log")
	if bad := failing(probes.Live); bad != "" {
		t.Errorf("%s asks for a restart, which would fix nothing", bad)
	}
	log.speaks.Store(true)
	g.fails(probes.Startup, "") // without an application
	g.fails(probes.Ready, "member application lease")
	log.speaks.Store(false)
	if bad := failing(probes.Startup); bad != "" {
		t.Errorf("%s fails after the start", bad)
	}
}

// The probes say why the control log fails, which can be a right that is missing.
func TestProbesNameTheFaultOfTheControlLog(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.startWith("a", nil, func(p *Parts) {
		p.ControlLog = func() (controllog.Transport, error) { return &mute{Transport: g.log}, nil }
	})
	for what, check := range map[string]func() error{"control_log": a.checkControlLog, "lease": a.CheckLease} {
		g.eventually(what+" names the fault", func() error {
			if err := check(); err == nil || !strings.Contains(err.Error(), "the broker is away") {
				return fmt.Errorf("it says %w", err)
			}
			return nil
		})
	}
}

func TestLifecycleJoined(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.start("a", nil)
	g.fails(a.Probes().Startup, "")
	if s := g.broker.SubscriptionStats("orders"); s.Consumers != 0 || a.Status().Member {
		t.Errorf("without an application: member is %v, with %d consumers", a.Status().Member, s.Consumers)
	}
	g.serve(a, done)
	g.fails(a.Probes().Ready, "")
	g.consumers(1)
	g.publish(10, 10)
	g.settled()
}

// slowToSubscribe is a broker that takes its time, while told to.
type slowToSubscribe struct {
	source.MemBroker
	asked, answer chan struct{}
}

func (s slowToSubscribe) Subscribe(ctx context.Context, o membroker.SubscribeOptions) (membroker.Consumer, error) {
	s.asked <- struct{}{}
	select {
	case <-s.answer:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.MemBroker.Subscribe(ctx, o)
}

// TestReadyWaitsForTheSubscription: the first one, and that after an Undrain.
func TestReadyWaitsForTheSubscription(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]Mode{"strict": Strict, "gossip": Gossip} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			broker := slowToSubscribe{g.broker, make(chan struct{}, 100), make(chan struct{}, 100)}
			g.feed = broker
			a := g.start("a", func(c *Config) { c.Mode = mode })
			g.serve(a, done)
			for range 2 {
				<-broker.asked
				g.fails(a.Probes().Ready, "source")
				if err := a.CheckSource(); !errors.Is(err, errNotSubscribed) {
					t.Errorf("CheckSource = %v, want %v", err, errNotSubscribed)
				}
				for range 10 { // topics
					broker.answer <- struct{}{}
				}
				g.fails(a.Probes().Ready, "")
				g.closes("drained", a.Drain())
				for len(broker.answer) > 0 {
					<-broker.answer
				}
				for len(broker.asked) > 0 {
					<-broker.asked
				}
				if err := a.CheckSource(); err != nil {
					t.Errorf("drained: CheckSource = %v, but it should not consume", err)
				}
				if _, err := a.Undrain(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestLifecycleDrained follows a drain from the request to its end, with a handler
// that takes as long as it likes.
func TestLifecycleDrained(t *testing.T) {
	t.Parallel()
	calmly(t, lifecycleDrained)
}

func lifecycleDrained(t testing.TB, g *group) {
	a, b := g.start("a", nil), g.start("b", nil)
	slow, quick := newHolder(t), newHolder(t)
	quick.held.Store(true) // and will hold nothing
	g.serve(a, slow.handle)
	g.serve(b, quick.handle)
	g.ready(a, b)
	g.publish(100, 100)
	key := <-slow.key

	drained := a.Drain()
	g.eventually("an epoch is without a", func() error {
		for _, m := range b.Table().Members {
			if m.Name == "a" {
				return errors.New("it is in the newest one")
			}
		}
		return nil
	})
	g.eventually("a has closed its gates", func() error { // it reads that epoch on its own, later than b as the case may be
		if n := a.Status().Open; n != 0 {
			return fmt.Errorf("%d are open", n)
		}
		return nil
	})
	g.fails(a.Probes().Ready, "drain member")
	next := g.publishOne(key)
	workAtB := func() {
		t.Helper()
		before := quick.count()
		g.publish(100, 100)
		g.eventually("b handles the events that are not held", func() error {
			if n := quick.count() - before; n < 90 { // all but one key, and keys that share its partition
				return fmt.Errorf("%d events", n)
			}
			return nil
		})
	}
	workAtB()
	g.consumers(2) // it continues to consume, for other owners: prefetched events must not wait for its handler
	if quick.has(next) || signal.IsClosed(drained) || a.Workers() != 1 {
		t.Errorf("while a handler runs: its key's next event was handled: %v, drained: %v, workers: %d", quick.has(next), signal.IsClosed(drained), a.Workers())
	}

	slow.release()
	g.closes("drained", drained)
	g.consumers(1)
	g.settled()
	if !quick.has(next) || a.Unsettled() != 0 {
		t.Errorf("the next owner has handled the key: %v; unsettled: %d", quick.has(next), a.Unsettled())
	}
	if again := a.Drain(); !signal.IsClosed(again) || signal.IsClosed(a.ended) {
		t.Errorf("a second drain is over: %v; the process has ended: %v", signal.IsClosed(again), signal.IsClosed(a.ended))
	}
	a.stop()
	<-a.ended
	if a.err != nil {
		t.Errorf("a drained member ends with %v", a.err)
	}
}

// heldListener is a listener whose connections receive nothing between hold and release.
type heldListener struct {
	net.Listener
	gate atomic.Pointer[chan struct{}] // nil, or closed: open
}

func (l *heldListener) hold() (release func()) {
	gate := make(chan struct{})
	l.gate.Store(&gate)
	return sync.OnceFunc(func() { close(gate) })
}

func (l *heldListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return heldConn{conn, l}, nil
}

type heldConn struct {
	net.Conn
	from *heldListener
}

func (c heldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if gate := c.from.gate.Load(); gate != nil {
		<-*gate
	}
	return n, err
}

// watchedBroker tells when a consumer is about to be closed.
type watchedBroker struct {
	source.MemBroker
	closing func()
}

type watchedConsumer struct {
	membroker.Consumer
	closing func()
}

func (b watchedBroker) Subscribe(ctx context.Context, o membroker.SubscribeOptions) (membroker.Consumer, error) {
	c, err := b.MemBroker.Subscribe(ctx, o)
	return watchedConsumer{c, b.closing}, err
}

func (c watchedConsumer) Close() {
	c.closing()
	c.Consumer.Close()
}

// TestDrainHandsOverBeforeTheSubscriptionEnds: at its end the broker delivers open entries again, with events that are finished.
func TestDrainHandsOverBeforeTheSubscriptionEnds(t *testing.T) {
	t.Parallel()
	calmly(t, drainHandsOverBeforeTheSubscriptionEnds)
}

func drainHandsOverBeforeTheSubscriptionEnds(t testing.TB, g *group) {
	var a *member
	lacking := make(chan string, 1) // what b lacked when a's subscription ended
	closing := sync.OnceFunc(func() {
		text := ""
		if ids := a.boxes.Stats().WindowIDs; ids > 0 || !signal.IsClosed(a.pool.HandedOver()) {
			text = fmt.Sprintf("%d ids of finished events were not sent, or sent ids were not received", ids)
		}
		lacking <- text
	})
	a = g.startWith("a", nil, func(p *Parts) {
		metrics := source.NewMetrics(prometheus.NewRegistry())
		p.Source = func([]string) *source.Source {
			return source.NewMem(g.source, watchedBroker{g.broker, closing}, metrics, slog.New(slog.DiscardHandler))
		}
	})
	var toB *heldListener
	b := g.startWith("b", nil, func(p *Parts) {
		toB = &heldListener{Listener: p.PeerListener}
		p.PeerListener = toB
	})
	g.serve(a, done)
	g.serve(b, done)
	g.ready(a, b)
	g.publish(1000, 1000)
	g.settled()
	if a.boxes.Stats().WindowIDs == 0 {
		t.Fatal("a has finished nothing: nothing is to be handed over")
	}

	release := toB.hold()
	t.Cleanup(release)
	cycle := a.drainCycle()
	drained := a.Drain()
	g.closes("left", cycle.left)
	g.eventually("a still reads, for b", func() error {
		g.publishOne("alice")
		if a.Unsettled() == 0 && len(lacking) == 0 {
			return errors.New("it has received nothing yet")
		}
		return nil
	})
	release()
	g.closes("drained", drained)
	if text := <-lacking; text != "" {
		t.Errorf("at the end of a's subscription %s", text)
	}
	g.consumers(1)
	g.settled()
}

func TestLifecycleApplicationAsksForTheDrain(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, b := g.start("a", nil), g.start("b", nil)
	g.serve(a, done, client.WithLeaveGroup())
	g.serve(b, done)
	g.ready(a, b)
	a.stopApp()
	g.fails(a.Probes().Ready, "drain member application")
	g.consumers(1)
	g.publish(100, 100)
	g.settled()
	g.serve(a, done) // another one, that wants to work
	g.fails(a.Probes().Ready, "")
	g.consumers(2)
}

// TestLifecycleDrainDeadline: events that an aborted drain leaves are delivered again.
func TestLifecycleDrainDeadline(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.start("a", func(c *Config) { c.DrainTimeout = 200 * time.Millisecond })
	slow := newHolder(t)
	g.serve(a, slow.handle)
	g.ready(a)
	g.publish(1, 1)
	<-slow.key
	a.stop()
	<-a.ended
	if !errors.Is(a.err, ErrDrainTimeout) || !strings.Contains(a.err.Error(), "1 events are not settled") {
		t.Errorf("a ended with %v, want ErrDrainTimeout with the remaining work", a.err)
	}
	slow.release()
	b := g.start("b", nil)
	g.serve(b, done)
	g.settled()
}

// TestDrainIsCutForWhatItLacks: the error of an aborted drain names the missing parts, but not a
// missing handover.
func TestDrainIsCutForWhatItLacks(t *testing.T) {
	for name, test := range map[string]struct {
		left, handedOver, settled bool
		want                      string // of the error, "" for none
	}{
		"only the handover":   {left: true},
		"settled before that": {left: true, settled: true}, // its application was gone
		"not left":            {want: "not left the group: 0 partitions"},
		"not left, settled":   {settled: true, want: "not left the group: 0 partitions"},
		"not settled":         {left: true, handedOver: true, want: "subscription is not closed"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &Node{
				cfg: Config{DrainTimeout: 10 * time.Millisecond}, drainCycles: newDrainCycles(),
				log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry()),
				lane: lane.New(lane.DefaultConfig(), nil, nil, clock.Now, nil),
			}
			s := n.drainCycle()
			if test.left {
				close(s.left)
			}
			if test.handedOver {
				close(s.handedOver)
			}
			if test.settled {
				close(s.settled)
			}
			err := n.drainWithin(t.Context())
			if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, ErrDrainTimeout) || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("the drain ends with %v, want %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "events") {
				t.Errorf("it is about events, though all are settled: %v", err)
			}
		})
	}
}

func TestLifecycleUndrained(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, b := g.start("a", nil), g.start("b", nil)
	g.startApp(a)
	g.startApp(b)
	g.ready(a, b)
	if begun, err := a.Undrain(); err != nil || !signal.IsClosed(begun) {
		t.Errorf("nothing was drained: %v, %v", signal.IsClosed(begun), err)
	}
	stopLoad := g.load(200)
	const work = 300 * time.Millisecond // several events of every key
	for range 2 {
		time.Sleep(work)
		before := a.self.Load().inc
		g.closes("drained", a.Drain())
		g.consumers(1)
		time.Sleep(work)
		begun, err := a.Undrain()
		if err != nil {
			t.Fatal(err)
		}
		g.closes("coming back", begun)
		g.fails(a.Probes().Ready, "")
		g.consumers(2)
		if a.self.Load().inc == before {
			t.Error("it came back as the incarnation that had left")
		}
	}
	stopLoad()
	g.settled()
	if report := g.check(); report.Handoff.Count == 0 {
		t.Errorf("no key moved between the members: this run proved nothing: %+v", report)
	}
	if signal.IsClosed(a.ended) {
		t.Errorf("a has ended: %v", a.err)
	}
}

// TestLifecycleUndrainedAlone: without another member to take its partitions, a member keeps its place
// in the table while it is away, and makes a new group when it is back.
func TestLifecycleUndrainedAlone(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.start("a", nil)
	g.serve(a, done)
	g.ready(a)
	g.publish(10, 10)
	g.settled()
	g.closes("drained", a.Drain())
	g.publish(10, 10)
	if begun, err := a.Undrain(); err != nil || !signal.IsClosed(begun) {
		t.Errorf("the drain is over, and it does not come back at once: %v, %v", signal.IsClosed(begun), err)
	}
	g.settled()
	g.ready(a)
}

// TestUndrainWaitsForTheEndOfTheDrain, which can be wanted back, and at last cannot.
func TestUndrainWaitsForTheEndOfTheDrain(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, b := g.start("a", nil), g.start("b", nil)
	slow := newHolder(t)
	g.serve(a, slow.handle)
	g.serve(b, done)
	g.ready(a, b)
	g.publish(100, 100)
	<-slow.key
	drained := a.Drain()
	begun, err := a.Undrain()
	if err != nil {
		t.Fatal(err)
	}
	a.Drain() // wins: it came last
	if signal.IsClosed(drained) || signal.IsClosed(begun) {
		t.Fatalf("a handler runs; drained: %v, came back: %v", signal.IsClosed(drained), signal.IsClosed(begun))
	}
	slow.release()
	g.closes("drained", drained)
	g.fails(a.Probes().Ready, "drain member lease")
	if signal.IsClosed(begun) {
		t.Error("it came back though it was to drain")
	}
	if begun, err = a.Undrain(); err != nil {
		t.Fatal(err)
	}
	g.closes("coming back", begun)
	g.ready(a)
	a.stop()
	g.eventually("it cannot come back", func() error {
		if _, err := a.Undrain(); !errors.Is(err, ErrEnding) {
			return fmt.Errorf("want ErrEnding: %w", err)
		}
		return nil
	})
	<-a.ended
}

func TestDriverThatIsStuck(t *testing.T) {
	p := &driverLoop{}
	now := clock.Instant(time.Hour)
	if err := p.check(now); err != nil {
		t.Errorf("before the first step: %v", err)
	}
	p.due.Store(int64(now.Add(-stuckAfter)))
	if err := p.check(now); err != nil {
		t.Errorf("late: %v", err)
	}
	if err := p.check(now.Add(time.Second)); err == nil || !strings.Contains(err.Error(), "31s late") {
		t.Errorf("stuck: %v", err)
	}
	p.due.Store(int64(clock.Forever))
	if err := p.check(now); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
}

func TestHealthService(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.start("a", nil)
	conn, err := grpc.NewClient(a.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	service := healthv1.NewHealthClient(conn)
	app := appv1.AppService_ServiceDesc.ServiceName
	serving := func(what, want string) {
		t.Helper()
		g.eventually(what, func() error {
			var got []string
			for _, name := range []string{"", healthLive, healthStartup, healthReady, app} {
				answer, err := service.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
				if err != nil {
					return err
				}
				if answer.GetStatus() == healthv1.HealthCheckResponse_SERVING {
					got = append(got, name)
				}
			}
			if strings.Join(got, ",") != want {
				return fmt.Errorf("serving %q, want %q", got, want)
			}
			return nil
		})
	}
	serving("it has started", ",liveness,startup,"+app)
	g.serve(a, done)
	serving("it is ready", ",liveness,startup,readiness,"+app)
	a.Drain()
	serving("it drains", ",liveness,startup")
}
