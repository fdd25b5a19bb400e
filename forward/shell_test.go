package forward

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/bits"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/testing/written"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network connects the nodes of a test.
type network interface {
	listen(t testing.TB, name string) net.Listener
	dial(ctx context.Context, address string) (net.Conn, error)
}

// pipes is a network in memory, for tests in a bubble.
type pipes struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
}

func (p *pipes) listen(_ testing.TB, name string) net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listeners == nil {
		p.listeners = map[string]*bufconn.Listener{}
	}
	p.listeners[name] = bufconn.Listen(1 << 20)
	return p.listeners[name]
}

func (p *pipes) dial(ctx context.Context, address string) (net.Conn, error) {
	p.mu.Lock()
	l := p.listeners[address]
	p.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("no node listens at %s", address)
	}
	return l.DialContext(ctx)
}

// loopback is real TCP. Names stand for the ports that they were given last: another process may have taken an earlier one.
type loopback struct {
	ports sync.Map
	mu    sync.Mutex
	conns []net.Conn
}

// cut closes all connections.
func (l *loopback) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

func (l *loopback) listen(t testing.TB, name string) net.Listener {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.ports.Store(name, lis.Addr().String())
	return lis
}

func (l *loopback) dial(ctx context.Context, name string) (net.Conn, error) {
	address, ok := l.ports.Load(name)
	if !ok {
		return nil, fmt.Errorf("no node listens at %s", name)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address.(string))
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, conn)
		l.mu.Unlock()
	}
	return conn, err
}

// node is one member of a test: both halves of this package, and a mailbox that
// answers as the test wants.
type node struct {
	t        testing.TB
	identity Identity
	network  network
	pool     *Pool
	server   *Server
	metrics  *Metrics
	registry *prometheus.Registry
	config   Config
	now      func() clock.Instant
	serial   atomic.Uint64 // of the newest entry

	// verdict returns the answer of the mailbox; nil: Done. false: none.
	verdict func(ev *event.Event, attempt int) (event.Verdict, bool)
	// takeOver is received from in each LearnDone, before it takes anything in; nil: it takes at once.
	takeOver chan struct{}

	mu        sync.Mutex
	seen      map[event.MessageID]int
	settled   map[event.Handle]event.Verdict
	twice     []event.Handle
	evidence  []bool
	gone      []StreamID
	cancelled []address
	before    []event.Handle // those that have ended before a Cancel
	granted   []event.Verdict
	renewed   []event.Renewal
	windows   [][]event.Finished
	proven    []bool // of each of them
	keys      map[Peer]ed25519.PublicKey
	settledCh chan struct{}

	logged *written.Text // its log; nil: nowhere

	stop       func()
	stopServer func()
}

func newNode(t testing.TB, network network, number int, config Config, now func() clock.Instant) *node {
	n := &node{
		t: t, network: network, config: config, now: now,
		identity: Identity{Group: "g", HashID: ring.HashID, Member: fmt.Sprint("m", number), Incarnation: peerNumber(number)},
		seen:     map[event.MessageID]int{}, settled: map[event.Handle]event.Verdict{}, settledCh: make(chan struct{}, 1),
		registry: prometheus.NewRegistry(),
	}
	n.metrics = NewMetrics(n.registry)
	n.pool = NewPool(config, n.self, insecure.NewCredentials(), n, n.heard, now, n.metrics, n.log(),
		grpc.WithContextDialer(network.dial))
	return n
}

func (n *node) self() Identity { return n.identity }

func (n *node) log() *slog.Logger {
	if os.Getenv("FORWARD_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", n.identity.Member)
	}
	if n.logged != nil {
		return slog.New(slog.NewTextHandler(n.logged, nil))
	}
	return slog.New(slog.DiscardHandler)
}

func (n *node) name() string { return n.identity.Member }

// start runs both halves; stop ends them.
func (n *node) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.pool.Run(ctx); err != nil {
			n.t.Error(err)
		}
	})
	n.startServer()
	n.stop = func() { cancel(); wg.Wait(); n.stopServer() }
}

func (n *node) startServer() {
	ctx, cancel := context.WithCancel(n.t.Context())
	n.server = NewServer(n.config, n.self, insecure.NewCredentials(), n, n.now, n.metrics, n.log())
	n.server.SetEpoch(event.Position{Ledger: 1})
	listener := n.network.listen(n.t, n.name())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.server.Run(ctx, listener); err != nil {
			n.t.Error(err)
		}
	})
	n.stopServer = func() { cancel(); wg.Wait() }
}

func (n *node) heard(_ Peer, up bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.evidence = append(n.evidence, up)
}

// judge is the mailbox.
func (n *node) judge(events []event.Ref) []event.Verdict {
	n.mu.Lock()
	defer n.mu.Unlock()
	var verdicts []event.Verdict
	for i := range events {
		ev := events[i].Event()
		n.seen[ev.ID]++
		v, ok := event.Verdict{Kind: event.Done}, true
		if n.verdict != nil {
			v, ok = n.verdict(ev, n.seen[ev.ID])
		}
		if v.Handle = ev.Handle; ok {
			verdicts = append(verdicts, v)
		}
	}
	return verdicts
}

func (n *node) Accept(a Arrival)           { n.server.Answer(a.From, n.judge(a.Events)) }
func (n *node) Deliver(events []event.Ref) { n.pool.Settle(Local, nil, n.judge(events)) }

func (n *node) LearnDone(_ Peer, proven bool, done []event.Finished) {
	if n.takeOver != nil {
		<-n.takeOver
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.windows = append(n.windows, done)
	n.proven = append(n.proven, proven)
}

func (n *node) KeyOf(peer Peer) ed25519.PublicKey {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keys[peer]
}

func (n *node) Gone(from StreamID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = append(n.gone, from)
}

func (n *node) Settle(done []event.Set, verdicts []event.Verdict, events []event.Ref) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, set := range done {
		if set.Entry == nil || set.Entry.First != set.First {
			n.t.Errorf("%s: the set of %d comes with the entry %p", n.name(), set.First, set.Entry)
		}
		for i := range set.Events.All() {
			n.ended(event.Verdict{Handle: set.First | event.Handle(i), Kind: event.Done})
		}
	}
	for i, v := range verdicts {
		if v.Handle != events[i].Handle() {
			n.t.Errorf("%s: the verdict on %d comes with event %d", n.name(), v.Handle, events[i].Handle())
		}
		n.ended(v)
	}
	signal.Set(n.settledCh)
}

// ended notes the end of an event. n.mu is held.
func (n *node) ended(v event.Verdict) {
	if _, twice := n.settled[v.Handle]; twice {
		n.twice = append(n.twice, v.Handle)
	}
	n.settled[v.Handle] = v
}

// streamsGone returns the number of inbound streams that have ended.
func (n *node) streamsGone() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.gone)
}

// awaitThat blocks until something holds.
func (n *node) awaitThat(what string, holds func() bool) {
	n.t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("%s: not within 30 s: %s", n.name(), what)
		}
	}
}

// streamsOpened returns the number of streams to peers that were established so far.
func (n *node) streamsOpened() int {
	opened := 0
	for _, up := range n.evidenceSoFar() {
		if up {
			opened++
		}
	}
	return opened
}

// evidenceSoFar returns the reported evidence about reaching peers.
func (n *node) evidenceSoFar() []bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.evidence)
}

// handled counts how often the mailbox was given each event.
func (n *node) handled() map[event.MessageID]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.seen)
}

// await blocks until count events are settled.
func (n *node) await(count int) {
	n.t.Helper()
	timeout := time.NewTimer(30 * time.Second)
	defer timeout.Stop()
	for {
		n.mu.Lock()
		settled, twice := len(n.settled), len(n.twice)
		n.mu.Unlock()
		switch {
		case twice > 0:
			n.t.Fatalf("%s: %d events settled twice", n.name(), twice)
		case settled >= count:
			return
		}
		select {
		case <-n.settledCh:
		case <-timeout.C:
			n.t.Fatalf("%s: %d of %d events are settled: %+v", n.name(), settled, count, n.pool.Stats())
		}
	}
}

// hold holds events as one entry, and gives them their handles.
func (n *node) hold(events []*event.Event) {
	n.pool.Hold(entryOf(event.NewHandle(n.serial.Add(1), 0), events...))
}

// holdBytes holds events as one entry of bytes.
func (n *node) holdBytes(events []*event.Event) {
	n.pool.Hold(bytesEntryOf(event.NewHandle(n.serial.Add(1), 0), events...))
}

// events makes events with the numbers from … on.
func (n *node) events(from, count int) []*event.Event {
	events := make([]*event.Event, count)
	for i := range events {
		h := from + i
		key := event.Key(fmt.Sprint("key", h%97))
		events[i] = &event.Event{
			ID:    event.MessageID{Ledger: int64(n.identity.Incarnation[15]), Entry: int64(h), Batch: -1, TopicPartition: -1},
			Topic: "persistent://public/default/t", Key: key, Partition: ring.PartitionOf(string(key)), Payload: []byte("payload"),
		}
	}
	return events
}

// join gives every node the same route and everybody's address.
func join(nodes ...*node) fixedRoute {
	r := fixedRoute{epoch: event.Position{Ledger: 1}}
	for _, n := range nodes {
		r.owners = append(r.owners, n.identity.Incarnation)
	}
	for _, n := range nodes {
		n.route(r, nodes...)
	}
	return r
}

func (n *node) route(r fixedRoute, peers ...*node) {
	var addresses []PeerAddress
	for _, peer := range peers {
		if peer != n {
			addresses = append(addresses, PeerAddress{Peer: peer.identity.Incarnation, Address: peer.name()})
		}
	}
	n.pool.SetPeers(addresses)
	n.pool.SetRoute(n.identity.Incarnation, r)
}

func threeNodes(t testing.TB, network network, config Config, now func() clock.Instant) []*node {
	var nodes []*node
	for i := range 3 {
		nodes = append(nodes, newNode(t, network, i+1, config, now))
	}
	return nodes
}

// patient is for tests in real time that no stream may break in: a busy machine can
// keep a goroutine waiting for longer than a peer is given in production.
func patient() Config {
	c := DefaultConfig()
	c.HelloTimeout, c.DeadAfter = time.Minute, time.Minute
	return c
}

// bubbleClock is a boot-time clock that follows the bubble's time.
func bubbleClock() func() clock.Instant {
	start := time.Now()
	return func() clock.Instant { return clock.Instant(time.Second + time.Since(start)) }
}

func TestThreeNodes(t *testing.T) {
	t.Run("pipes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { testThreeNodes(t, &pipes{}, DefaultConfig(), bubbleClock(), 2000) })
	})
	t.Run("loopback", func(t *testing.T) { testThreeNodes(t, &loopback{}, patient(), clock.Now, 20000) })
}

func testThreeNodes(t *testing.T, network network, config Config, now func() clock.Instant, count int) {
	nodes := threeNodes(t, network, config, now)
	for _, n := range nodes {
		n.start()
		defer n.stop()
	}
	join(nodes...)
	var feeders sync.WaitGroup
	for _, n := range nodes {
		feeders.Go(func() {
			for from := 1; from <= count; from += 200 { // entries of two words of a set
				n.holdBytes(n.events(from, 100))
				n.hold(n.events(from+100, 100))
			}
		})
	}
	feeders.Wait()
	for _, n := range nodes {
		n.await(count)
	}
	total := 0
	for _, n := range nodes {
		if s := n.pool.Stats(); s.Events != 0 || s.Bytes != 0 {
			t.Errorf("%s still holds %+v", n.name(), s)
		}
		if got := len(n.handled()); got == 0 || got == 3*count {
			t.Errorf("%s was given %d events", n.name(), got)
		}
		for id, times := range n.handled() {
			if total++; times != 1 {
				t.Fatalf("%s was given %s %d times", n.name(), id, times)
			}
		}
	}
	if total != 3*count {
		t.Errorf("%d events were handled, want %d", total, 3*count)
	}
	if done := testutil.ToFloat64(nodes[0].metrics.verdicts[event.Done]); done != float64(count) {
		t.Errorf("%v verdicts say done, want %d", done, count)
	}
	if local, peer := testutil.ToFloat64(nodes[0].metrics.sentLocal), testutil.ToFloat64(nodes[0].metrics.sentPeer); local+peer != float64(count) || local == 0 || peer == 0 {
		t.Errorf("sent %v locally and %v to peers, want %d in sum", local, peer, count)
	}
}

// Events that a peer refuses are sent again, to the owner in the next route.
func TestRefusedEventsFollowTheRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := threeNodes(t, &pipes{}, DefaultConfig(), bubbleClock())
		a, b, c := nodes[0], nodes[1], nodes[2]
		b.verdict = func(*event.Event, int) (event.Verdict, bool) {
			return event.Verdict{Kind: event.NotOwner, Detail: &event.Detail{Epoch: event.Position{Ledger: 2}}}, true
		}
		c.verdict = func(_ *event.Event, attempt int) (event.Verdict, bool) {
			switch attempt {
			case 1:
				return event.Verdict{Kind: event.NotYet, Detail: &event.Detail{Delay: 10 * time.Millisecond}}, true
			case 2:
				return event.Verdict{Kind: event.Overloaded, Detail: &event.Detail{Delay: 20 * time.Millisecond}}, true
			}
			return event.Verdict{Kind: event.Done}, true
		}
		for _, n := range nodes {
			n.start()
			defer n.stop()
		}
		only := func(owner *node, epoch int64) fixedRoute {
			return fixedRoute{owners: []Peer{owner.identity.Incarnation}, epoch: event.Position{Ledger: epoch}}
		}
		a.route(only(b, 1), nodes...)
		a.hold(a.events(1, 50))
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if s := a.pool.Stats(); s.In[Refused] != 50 {
			t.Fatalf("refused events are in %v", s.In)
		}
		a.route(only(c, 2), nodes...)
		a.await(50)
		for id, times := range c.handled() {
			if times != 3 {
				t.Errorf("%s was given %d times, want 3", id, times)
			}
		}
	})
}

// A silent peer is detected after DeadAfter; its events go to its successor.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frozen := make(chan struct{})
		var mute atomic.Bool
		network := &pipes{}
		nodes := threeNodes(t, network, DefaultConfig(), bubbleClock())
		a, b, c := nodes[0], nodes[1], nodes[2]
		b.verdict = func(*event.Event, int) (event.Verdict, bool) {
			if mute.Load() {
				<-frozen // a process that is stopped
			}
			return event.Verdict{}, false
		}
		for _, n := range nodes {
			n.start()
			defer n.stop()
		}
		defer close(frozen)
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, nodes...)
		time.Sleep(time.Minute) // idle: only pings keep it alive
		synctest.Wait()
		if got := a.evidenceSoFar(); !slices.Equal(got, []bool{true, true}) {
			t.Errorf("evidence after an idle minute is %v, want up twice", got)
		}
		mute.Store(true)
		begun := time.Now()
		a.hold(a.events(1, 10))
		for a.pool.Stats().In[Sent] == 0 {
			time.Sleep(time.Millisecond)
		}
		for a.pool.Stats().In[Sent] > 0 {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(begun); took < a.config.DeadAfter || took > a.config.DeadAfter+100*time.Millisecond {
			t.Errorf("found out after %v, want about %v", took, a.config.DeadAfter)
		}
		a.route(fixedRoute{owners: []Peer{c.identity.Incarnation}, epoch: event.Position{Ledger: 2}}, a, c)
		a.await(10)
	})
}

// Connections are cut and the server is restarted while events flow: each event is
// settled once, whatever was on the wire.
func TestBrokenStreams(t *testing.T) {
	network := &loopback{}
	config := DefaultConfig()
	config.FrameEventsMax = 10 // many small frames, so that there is always one on the wire
	a := newNode(t, network, 1, config, clock.Now)
	b := newNode(t, network, 2, config, clock.Now)
	a.start()
	b.start()
	defer a.stop()
	defer func() { b.stop() }()
	a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, a, b)
	const count, breaks = 20000, 6
	var feeder sync.WaitGroup
	feeder.Go(func() {
		for from := 1; from <= count; from += 50 {
			if from%100 == 1 {
				a.holdBytes(a.events(from, 50))
			} else {
				a.hold(a.events(from, 50))
			}
		}
	})
	for i := 1; i <= breaks; i++ {
		a.await(i * count / 10)
		// Events may be settled faster than a stream is back.
		a.awaitThat("a stream to break", func() bool { return a.streamsOpened() >= i })
		if i%2 == 0 {
			network.cut()
		} else {
			b.stopServer()
			b.startServer()
		}
	}
	feeder.Wait()
	a.await(count)
	b.awaitThat("as many streams gone as were broken", func() bool { return b.streamsGone() >= breaks })
	if s := a.pool.Stats(); s.Events != 0 || s.Resent == 0 {
		t.Errorf("stats = %+v, want nothing held and something sent again", s)
	}
}

func TestOversizedEventIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &pipes{}
		a, b := newNode(t, network, 1, DefaultConfig(), bubbleClock()), newNode(t, network, 2, DefaultConfig(), bubbleClock())
		for _, n := range []*node{a, b} {
			n.start()
			defer n.stop()
		}
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, a, b)
		events := a.events(1, 3)
		events[0].Payload = make([]byte, a.config.FrameMax)
		events[1].Payload = make([]byte, a.config.FrameMax-frameOverheadMax-2000) // the largest that fits
		a.hold(events)
		a.await(3)
		if v := a.settled[events[0].Handle]; v.Kind != event.Rejected || v.DetailOrZero().Reason == "" {
			t.Errorf("the oversized event: %+v, want rejected with a reason", v)
		}
		if a.settled[events[1].Handle].Kind != event.Done || a.settled[events[2].Handle].Kind != event.Done {
			t.Errorf("its neighbours: %+v", a.settled)
		}
		if b.streamsGone() != 0 {
			t.Error("the stream broke")
		}
	})
}

// Cut off from its owner, events go round by a third member, which settles them.
func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := threeNodes(t, &pipes{}, DefaultConfig(), bubbleClock())
		a, b, c := nodes[0], nodes[1], nodes[2]
		for _, n := range []*node{a, c} {
			n.start()
			defer n.stop()
		}
		begun := time.Now()
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, nodes...)
		a.hold(a.events(1, 10))
		a.await(10)
		if took := time.Since(begun); took < a.config.UnreachableHoldMax || took > a.config.UnreachableHoldMax+time.Second {
			t.Errorf("relayed after %v, want %v", took, a.config.UnreachableHoldMax)
		}
		if got := testutil.ToFloat64(c.metrics.receivedRelay); got != 10 {
			t.Errorf("the third member received %v relayed events, want 10", got)
		}
		downs := 0
		for _, up := range a.evidenceSoFar() {
			if !up {
				downs++
			}
		}
		if downs < 10 || downs > 40 {
			t.Errorf("%d attempts to reach a dead peer in 10 s, want about 15", downs)
		}
	})
}

// A graceful stop loses no verdict: the caller has all of them before the stream ends.
func TestStopFlushesVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &pipes{}
		config := DefaultConfig()
		config.FrameEventsMax = 10
		a, b := newNode(t, network, 1, config, bubbleClock()), newNode(t, network, 2, config, bubbleClock())
		var late []event.Verdict
		b.verdict = func(ev *event.Event, _ int) (event.Verdict, bool) {
			late = append(late, event.Verdict{Handle: ev.Handle, Kind: event.Done})
			return event.Verdict{}, false
		}
		a.start()
		b.start()
		defer a.stop()
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, a, b)
		a.hold(a.events(1, 1000))
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		b.server.Answer(1, late)
		b.stop()
		a.await(1000)
		for id, times := range b.handled() {
			if times != 1 {
				t.Fatalf("%s was given %d times", id, times)
			}
		}
	})
}

// The verdicts of a frame are taken in their order: reports about an event before its end. A report that comes with the
// set of its event is of no use any more.
func TestVerdictsOfAFrameKeepTheirOrder(t *testing.T) {
	for name, c := range map[string]struct {
		sets    bool
		ignored uint64
	}{"verdicts": {false, 0}, "sets": {true, 1}} {
		t.Run(name, func(t *testing.T) {
			a, owner := newNode(t, &pipes{}, 1, DefaultConfig(), clock.Now), peerNumber(2)
			a.pool.SetRoute(peerNumber(1), fixedRoute{owners: []Peer{owner}})
			a.pool.step(func(now clock.Instant, out *Moves) { a.pool.table.PeerUp(now, owner, true, out) })
			events := a.events(1, 1)
			a.hold(events)
			a.pool.table.Take(owner, 10, 1<<20, nil)
			h := events[0].Handle
			verdicts := append([]event.Verdict{{Handle: h, Kind: event.Attempted, Detail: &event.Detail{Attempts: 1}}}, doneOf(h)...)
			frame := verdictsFrame{number: 1, batch: batchOf(verdicts, c.sets)}
			out := frame.marshal()
			defer out.Free()
			var read verdictsFrame
			if err := read.parse(out.Materialize()); err != nil || c.sets != (len(read.done) == 1) {
				t.Fatalf("%+v, %v", read, err)
			}
			l := newLink(a.config, a.now, a.metrics, func(error) {}, callerEnd)
			defer l.silence.Stop()
			if err := (&outbound{pool: a.pool, id: owner}).handle(l, &read); err != nil {
				t.Fatal(err)
			}
			if s := a.pool.Stats(); s.Events != 0 || s.Ignored != c.ignored || a.settled[h].Kind != event.Done {
				t.Errorf("%d events are held, %d verdicts ignored, settled %v", s.Events, s.Ignored, a.settled)
			}
		})
	}
}

// A peer that is no longer listed keeps its stream until it owes nothing.
func TestUnlistedPeerMayFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &pipes{}
		a, b := newNode(t, network, 1, DefaultConfig(), bubbleClock()), newNode(t, network, 2, DefaultConfig(), bubbleClock())
		b.verdict = func(*event.Event, int) (event.Verdict, bool) { return event.Verdict{}, false }
		for _, n := range []*node{a, b} {
			n.start()
			defer n.stop()
		}
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, a, b)
		events := a.events(1, 1)
		a.hold(events)
		time.Sleep(time.Second)
		a.route(fixedRoute{owners: []Peer{a.identity.Incarnation}}, a)
		time.Sleep(time.Minute)
		if n, local := b.streamsGone(), len(a.handled()); n != 0 || local != 0 {
			t.Fatalf("%d streams have ended before the answer, and %d events were sent elsewhere, want none", n, local)
		}
		b.server.Answer(1, doneOf(events[0].Handle))
		a.await(1)
		time.Sleep(time.Second)
		a.pool.peersMu.Lock()
		defer a.pool.peersMu.Unlock()
		if len(a.pool.peers) != 0 || b.streamsGone() != 1 {
			t.Errorf("%d peers and %d ended streams, want 0 and 1", len(a.pool.peers), b.streamsGone())
		}
	})
}

// caller opens a raw stream to b.
func caller(t *testing.T, network network, b *node, frames ...*peerv1.ForwardRequest) (peerv1.PeerService_ForwardClient, func()) {
	conn, err := grpc.NewClient("passthrough:///"+b.name(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(network.dial))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	st, err := peerv1.NewPeerServiceClient(conn).Forward(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if err := st.Send(f); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	return st, func() { cancel(); _ = conn.Close() }
}

// endOf reads until the stream ends and returns its status.
func endOf(st peerv1.PeerService_ForwardClient) *status.Status {
	for {
		if _, err := st.Recv(); err != nil {
			return status.Convert(err)
		}
	}
}

// A peer that is not authorised, or that sends garbage, gets the reason. Other peers are not
// affected.
func TestBadStreams(t *testing.T) {
	hello := func(change func(*peerv1.Hello)) *peerv1.ForwardRequest {
		h := Identity{Group: "g", HashID: ring.HashID, Member: "x", Incarnation: peerNumber(9)}.hello(peerNumber(2))
		change(h)
		return &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: h}}
	}
	good := hello(func(*peerv1.Hello) {})
	events := func(number uint64, handle uint64) *peerv1.ForwardRequest {
		return &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Events{Events: &peerv1.Events{
			Number: number, Topics: []string{"t"}, Events: []*peerv1.Event{{Handle: handle}},
		}}}
	}
	tests := map[string]struct {
		frames []*peerv1.ForwardRequest
		code   codes.Code
		says   string
	}{
		"another group":       {[]*peerv1.ForwardRequest{hello(func(h *peerv1.Hello) { h.Group = "other" })}, codes.FailedPrecondition, "group"},
		"another hash":        {[]*peerv1.ForwardRequest{hello(func(h *peerv1.Hello) { h.HashId = "md5" })}, codes.FailedPrecondition, "md5"},
		"later versions":      {[]*peerv1.ForwardRequest{hello(func(h *peerv1.Hello) { h.VersionMin, h.VersionMax = 7, 9 })}, codes.FailedPrecondition, "versions 7 to 9"},
		"earlier versions":    {[]*peerv1.ForwardRequest{hello(func(h *peerv1.Hello) { h.VersionMin, h.VersionMax = 0, 0 })}, codes.FailedPrecondition, "versions 0 to 0"},
		"for another process": {[]*peerv1.ForwardRequest{hello(func(h *peerv1.Hello) { h.ToIncarnation = make([]byte, 16) })}, codes.FailedPrecondition, "restarted"},
		"no incarnation":      {[]*peerv1.ForwardRequest{hello(func(h *peerv1.Hello) { h.Incarnation = nil })}, codes.FailedPrecondition, "incarnation of 0 bytes"},
		"events first":        {[]*peerv1.ForwardRequest{events(1, 1)}, codes.InvalidArgument, "not a Hello"},
		"nothing at all":      {nil, codes.DeadlineExceeded, "no Hello"},
		"a second hello":      {[]*peerv1.ForwardRequest{good, good}, codes.InvalidArgument, "in the middle"},
		"a gap":               {[]*peerv1.ForwardRequest{good, events(2, 1)}, codes.InvalidArgument, "frame 2, want 1"},
		"a frame twice":       {[]*peerv1.ForwardRequest{good, events(1, 1), events(1, 1)}, codes.InvalidArgument, "frame 1, want 2"},
		"garbage":             {[]*peerv1.ForwardRequest{good, events(1, 0)}, codes.InvalidArgument, "without a handle"},
		"a crooked window":    {[]*peerv1.ForwardRequest{good, {Frame: &peerv1.ForwardRequest_Window{Window: &peerv1.Window{LedgerIds: []int64{1}}}}}, codes.InvalidArgument, "a window of 1 ledgers"},
		"a window too far": {[]*peerv1.ForwardRequest{good, {Frame: &peerv1.ForwardRequest_Window{Window: &peerv1.Window{
			LedgerIds: []int64{1}, EntryIds: []int64{1}, BatchIndexes: []int32{1}, TopicPartitions: []int32{1}, Partitions: []uint32{ring.Partitions},
		}}}}, codes.InvalidArgument, "a window of partition"},
		"an early receipt": {[]*peerv1.ForwardRequest{good, {Receipt: 99}}, codes.InvalidArgument, "was not sent"},
		"then silence":     {[]*peerv1.ForwardRequest{good}, codes.DeadlineExceeded, "silent"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := &pipes{}
				a, b := newNode(t, network, 1, DefaultConfig(), bubbleClock()), newNode(t, network, 2, DefaultConfig(), bubbleClock())
				for _, n := range []*node{a, b} {
					n.start()
					defer n.stop()
				}
				a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, a, b)
				a.hold(a.events(1, 1))
				a.await(1)

				st, closeAll := caller(t, network, b, test.frames...)
				defer closeAll()
				if s := endOf(st); s.Code() != test.code || !strings.Contains(s.Message(), test.says) {
					t.Errorf("status = %v, want %v and %q", s, test.code, test.says)
				}
				a.hold(a.events(2, 10))
				a.await(11)
				if got := a.evidenceSoFar(); !slices.Equal(got, []bool{true}) {
					t.Errorf("evidence on the other stream: %v, want up once", got)
				}
			})
		})
	}
}

// A caller that does not say that it reads sets gets verdicts only, those of earlier versions: their handles cannot be in a set.
func TestSetsAreForPeersThatReadThem(t *testing.T) {
	const count = 130
	for name, c := range map[string]struct {
		capabilities []string
		sets         int
	}{"none": {nil, 0}, "others": {[]string{"other"}, 0}, "sets": {[]string{"other", capabilitySets}, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := &pipes{}
				b := newNode(t, network, 2, DefaultConfig(), bubbleClock())
				b.start()
				defer b.stop()
				h := Identity{Group: "g", HashID: ring.HashID, Member: "x", Incarnation: peerNumber(9)}.hello(peerNumber(2))
				if !slices.Contains(h.GetCapabilities(), capabilitySets) {
					t.Errorf("our Hello says %q", h.GetCapabilities())
				}
				h.Capabilities = c.capabilities
				events := &peerv1.Events{Number: 1, Topics: []string{"t"}}
				for i := range count {
					events.Events = append(events.Events, &peerv1.Event{Handle: uint64(event.NewHandle(7, i)), EntryId: int64(i)})
				}
				st, closeAll := caller(t, network, b, &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: h}},
					&peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Events{Events: events}})
				defer closeAll()
				var verdicts *peerv1.Verdicts
				for verdicts == nil {
					f, err := st.Recv()
					if err != nil {
						t.Fatal(err)
					}
					verdicts = f.GetVerdicts()
				}
				if n := len(verdicts.GetDone()); n != c.sets {
					t.Errorf("%d sets, want %d", n, c.sets)
				}
				done := len(verdicts.GetVerdicts())
				for i, v := range verdicts.GetVerdicts() {
					if v.GetHandle() != uint64(event.NewHandle(7, i)) || v.GetKind() != peerv1.VerdictKind(event.Done) {
						t.Errorf("verdict %d is %v", i, v)
					}
				}
				for _, set := range verdicts.GetDone() {
					if set.GetHandle() != uint64(event.NewHandle(7, 0)) {
						t.Errorf("a set of handle %d", set.GetHandle())
					}
					for _, one := range set.GetEvents() {
						done += bits.OnesCount8(one)
					}
				}
				if done != count {
					t.Errorf("%d events are done, want %d", done, count)
				}
			})
		})
	}
}

// The caller, too, refuses a peer with another incarnation than expected.
func TestPoolRefusesAnotherIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &pipes{}
		a, b := newNode(t, network, 1, DefaultConfig(), bubbleClock()), newNode(t, network, 2, DefaultConfig(), bubbleClock())
		for _, n := range []*node{a, b} {
			n.start()
			defer n.stop()
		}
		a.pool.SetPeers([]PeerAddress{{Peer: peerNumber(7), Address: b.name()}})
		time.Sleep(5 * time.Second)
		if got := a.evidenceSoFar(); len(got) == 0 || slices.Contains(got, true) {
			t.Errorf("evidence about an incarnation that is gone: %v, want down only", got)
		}
	})
}

// CancelFor implements Acceptor.
func (n *node) CancelFor(from StreamID, calls []event.Handle) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range calls {
		n.cancelled = append(n.cancelled, address{from, h})
	}
}

// Cancel implements Sink.
func (n *node) Cancel(calls []event.Handle) []event.Handle {
	n.CancelFor(0, calls)
	return n.before
}

// address names a call by the stream that it came on, 0 for this node's own.
type address struct {
	from StreamID
	call event.Handle
}

// RenewFor implements Acceptor: whoever asks gets a second.
func (n *node) RenewFor(from StreamID, asked []event.Renewal) {
	for i := range asked {
		asked[i].Remaining = time.Second
	}
	n.server.Renewed(from, asked)
}

// Granted implements Sink.
func (n *node) Granted(verdicts []event.Verdict) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.granted = append(n.granted, verdicts...)
}

// Attempted implements Sink.
func (n *node) Attempted([]event.Verdict) {}

// Renew implements Sink.
func (n *node) Renew(asked []event.Renewal) { n.Renewed(asked) }

// Renewed implements Sink.
func (n *node) Renewed(answers []event.Renewal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.renewed = append(n.renewed, answers...)
}
