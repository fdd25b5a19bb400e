package membership

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/address"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// TestMain finds goroutines that outlive their test. A probe of memberlist's waits for
// its answer even when the node has been shut down, for seconds on a loaded machine.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// Members that know one seed find each other and learn each other's addresses.
func TestMembersFindEachOther(t *testing.T) {
	t.Parallel()
	nodes := startGroup(t, 5, seldom)
	for _, n := range nodes {
		for _, m := range n.gossip.Members() {
			i := slices.IndexFunc(nodes, func(o *testNode) bool { return o.inc == m.Inc })
			if i < 0 {
				t.Fatalf("%s knows a stranger %+v", n.name, m)
			}
			want := Member{Name: nodes[i].name, Inc: nodes[i].inc, GRPCAddr: nodes[i].grpcAddr, GossipAddr: nodes[i].gossip.Addr()}
			if m != want {
				t.Errorf("%s knows %+v, want %+v", n.name, m, want)
			}
		}
		if got := n.kinds(n.inc); len(got) > 0 {
			t.Errorf("%s heard evidence about itself: %v", n.name, got)
		}
	}
}

// seldom lets a member probe others so seldom that it suspects none during a test, however busy the machine is.
func seldom(c *Config) { c.ProbeInterval = time.Minute }

// A graceful leave is seen at once, without suspicion and by members that would not find a crash so soon.
func TestLeaveIsSeenAtOnce(t *testing.T) {
	t.Parallel()
	nodes := startGroup(t, 4, seldom)
	began := time.Now()
	nodes[3].stop()
	for _, n := range nodes[:3] {
		eventually.True(t, "the leave to be seen", func() bool { return last(n.kinds(nodes[3].inc)) == Dead })
		if got := n.kinds(nodes[3].inc); slices.Contains(got, Suspect) {
			t.Errorf("%s heard %v of one that left", n.name, got)
		}
	}
	t.Logf("leave seen by all after %v", time.Since(began))
}

// A crashed member is suspected, then declared dead, by everybody; live members are not.
func TestCrashIsDetected(t *testing.T) {
	t.Parallel()
	nodes := startGroup(t, 5)
	victim, rest := nodes[4], nodes[:4]
	began := time.Now()
	victim.crash()
	eventually.True(t, "a member to suspect", func() bool {
		return slices.ContainsFunc(rest, func(n *testNode) bool { return slices.Contains(n.kinds(victim.inc), Suspect) })
	})
	t.Logf("first suspicion after %v", time.Since(began))
	for _, n := range rest {
		eventually.True(t, "the crash to be seen", func() bool { return last(n.kinds(victim.inc)) == Dead })
	}
	t.Logf("dead for all after %v", time.Since(began))
	eventually.True(t, "nobody to believe a live member dead", func() bool { // a busy machine may keep one from its answers for seconds
		for _, n := range rest {
			for _, o := range rest {
				if o != n && last(n.kinds(o.inc)) == Dead {
					return false
				}
			}
		}
		return allSeeAll(rest)
	})
}

// A member that restarts under its name and address is a new one, at once.
func TestRestartIsANewMember(t *testing.T) {
	t.Parallel()
	nodes := startGroup(t, 3)
	old := nodes[2]
	old.crash()
	cfg := old.cfg
	cfg.Listen = old.gossip.Addr()
	cfg.Seeds = []string{nodes[0].gossip.Addr()}
	again := startNode(t, cfg)
	for _, n := range nodes[:2] {
		eventually.True(t, "the new incarnation to be seen", func() bool { return n.sees(again) })
	}
}

// Two halves that have forgotten each other merge again through the addresses in the control log.
func TestHalvesMergeByKnownAddresses(t *testing.T) {
	t.Parallel()
	left, right := startGroup(t, 2), startGroup(t, 2)
	nobody, _ := address.Held(t)
	dead := Known{Inc: newInc(), GossipAddr: nobody} // must not keep further addresses from being tried
	left[0].gossip.SetKnown([]Known{
		{Inc: left[0].inc, GossipAddr: left[0].gossip.Addr()},
		{Inc: left[1].inc, GossipAddr: left[1].gossip.Addr()},
		dead,
		{Inc: right[0].inc, GossipAddr: right[0].gossip.Addr()},
	})
	all := slices.Concat(left, right)
	eventually.True(t, "the halves to merge", func() bool { return allSeeAll(all) })
}

// A seed may be a name that stands for several addresses.
func TestSeedByName(t *testing.T) {
	t.Parallel()
	a := startNode(t, testConfig("a"))
	_, port, err := net.SplitHostPort(a.gossip.Addr())
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig("b")
	cfg.Seeds = []string{"dns+localhost:" + port}
	b := startNode(t, cfg)
	eventually.True(t, "the seed to be found by name", func() bool { return allSeeAll([]*testNode{a, b}) })
}

// A seed that is not there yet is tried until it is.
func TestSeedIsTriedForEver(t *testing.T) {
	t.Parallel()
	addr, free := address.Held(t)
	cfg := testConfig("early")
	cfg.Seeds = []string{addr}
	early := startNode(t, cfg)
	eventually.True(t, "a failed attempt", func() bool {
		return testutil.ToFloat64(early.gossip.metrics.joins.WithLabelValues("seed", "failed")) > 0
	})
	cfg = testConfig("late")
	cfg.Listen = addr
	free()
	late := startNodeAt(t, cfg)
	eventually.True(t, "the seed to be found", func() bool { return allSeeAll([]*testNode{early, late}) })
}

// A seed list that names only this node is reported, until another member has joined.
func TestSeedsThatNameOnlySelfAreReported(t *testing.T) {
	t.Parallel()
	cfg := testConfig("lonely")
	only := func(addr string) { cfg.Listen, cfg.Seeds = addr, []string{addr} }
	only(freeAddr(t))
	lonely := startNodeElsewhere(t, &cfg, quiet(), only)
	reported := func() bool { return testutil.ToFloat64(lonely.gossip.metrics.onlySelf) == 1 }
	eventually.True(t, "the report", reported)
	other := testConfig("other")
	other.Seeds = []string{cfg.Listen}
	startNode(t, other)
	eventually.True(t, "the report to end", func() bool { return !reported() })
}

// Seeds that reach no member are reported, once, and not while other members may be starting.
func TestSeedsThatLeadToNobodyAreReported(t *testing.T) {
	t.Parallel()
	nobody, _ := address.Held(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for warning, c := range map[string]struct{ listen, seed string }{
		"no seed can be resolved":   {"127.0.0.1:0", "dns+nobody.invalid:16652"},
		"no seed answers":           {"127.0.0.1:0", nobody},
		"seeds name only this node": {strings.Replace(taken.Addr().String(), "127.0.0.1", "0.0.0.0", 1), taken.Addr().String()}, // a seed that just starts may answer like this, too
	} {
		t.Run(warning, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("alone")
			cfg.Listen, cfg.Advertise, cfg.Seeds = c.listen, "127.0.0.2:1", []string{c.seed}
			log := new(written.Text)
			logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			alone := startNodeElsewhere(t, &cfg, logger, func(addr string) { // the address is taken in one case
				cfg.Listen, cfg.Seeds = strings.Replace(addr, "127.0.0.1", "0.0.0.0", 1), []string{addr}
			})
			attempts := func() float64 {
				joins := alone.gossip.metrics.joins
				return testutil.ToFloat64(joins.WithLabelValues("seed", "failed")) + testutil.ToFloat64(joins.WithLabelValues("seed", "unresolved")) +
					testutil.ToFloat64(joins.WithLabelValues("seed", "ok"))
			}
			eventually.True(t, "the report", func() bool { return len(log.With(said(warning))) == 1 })
			if n := attempts(); n < 3 {
				t.Errorf("reported after %v attempts, want the back-off to have reached its end", n)
			}
			reported := attempts()
			eventually.True(t, "further attempts", func() bool { return attempts() >= reported+2 })
			if n := len(log.With("level=WARN")); n != 1 {
				t.Errorf("%d warnings, want the one:\n%s", n, log.String())
			}
		})
	}
}

// Seeds that answer and are refused do not count as this node itself.
func TestSeedsThatAreRefusedAreReported(t *testing.T) {
	t.Parallel()
	seed := testConfig("other")
	var free func()
	seed.Listen, free = address.Held(t)
	cfg := testConfig("alone")
	cfg.Seeds = []string{seed.Listen}
	log := new(written.Text)
	alone := startNodeWith(t, cfg, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	alone.gossip.roster.mu.Lock()
	alone.gossip.roster.strangersMax = 0 // as if others had taken all places
	alone.gossip.roster.mu.Unlock()
	free()
	startNodeAt(t, seed)
	const refused = "seeds answer, but this node refuses their members: see the log line gossip refused and its metric"
	eventually.True(t, "the report", func() bool {
		return len(log.With(said(refused))) == 1 || len(log.With(said("seeds name only this node"))) > 0
	})
	if len(log.With(said(refused))) != 1 {
		t.Errorf("the log is\n%s", log.String())
	}
	eventually.True(t, "the metric", func() bool { return testutil.ToFloat64(alone.gossip.metrics.onlySelf) == 1 })
}

// said is how a line of a log has a message.
func said(message string) string { return fmt.Sprintf("msg=%q", message) }

// Members of another group, without the key or with another one, stay outside.
func TestStrangersAreKeptOut(t *testing.T) {
	key, otherKey := make([]byte, 32), make([]byte, 32)
	otherKey[0] = 1
	tests := map[string]func(*Config){
		"another group": func(c *Config) { c.Group = "other" },
		"another key":   func(c *Config) { c.SecretKeys = [][]byte{otherKey} },
		"no key":        func(c *Config) { c.SecretKeys = nil },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("a")
			cfg.SecretKeys = [][]byte{key}
			a := startNode(t, cfg)
			cfg = testConfig("stranger")
			cfg.SecretKeys = [][]byte{key}
			cfg.Seeds = []string{a.gossip.Addr()}
			change(&cfg)
			stranger := startNode(t, cfg)
			stranger.gossip.SetKnown([]Known{{Inc: a.inc, GossipAddr: a.gossip.Addr()}})
			for _, why := range []string{"seed", "rejoin"} {
				eventually.True(t, "two refused contacts by "+why, func() bool {
					return testutil.ToFloat64(stranger.gossip.metrics.joins.WithLabelValues(why, "failed")) >= 2
				})
			}
			if len(a.gossip.Members()) > 0 || len(stranger.gossip.Members()) > 0 {
				t.Error("a stranger was let in")
			}
		})
	}
}

// During a change of keys, members that send with the old one and with the new one understand each other.
func TestKeysCanChange(t *testing.T) {
	t.Parallel()
	before, after := make([]byte, 16), make([]byte, 32)
	a := testConfig("a")
	a.SecretKeys = [][]byte{before, after}
	first := startNode(t, a)
	b := testConfig("b")
	b.SecretKeys = [][]byte{after, before}
	b.Seeds = []string{first.gossip.Addr()}
	second := startNode(t, b)
	eventually.True(t, "them to meet", func() bool { return allSeeAll([]*testNode{first, second}) })
}

// An address that is taken is an error of Run, not a panic or a silence.
func TestAddressTaken(t *testing.T) {
	t.Parallel()
	a := startNode(t, testConfig("a"))
	cfg := testConfig("b")
	cfg.Listen = a.gossip.Addr()
	b, err := New(cfg, Member{Inc: newInc()}, nil, func(Evidence) {}, nil, quiet(), NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "gossip.listen = "+cfg.Listen) || !strings.Contains(err.Error(), "does another router run here?") {
		t.Errorf("Run = %v, want an error that names the address", err)
	}
}

// Run listens, takes part and, when its context ends, leaves and returns nil.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cfg := testConfig("observer")
	seldom(&cfg)
	observer := startNode(t, cfg)
	cfg = testConfig("a")
	seldom(&cfg)
	cfg.Seeds = []string{observer.gossip.Addr()}
	inc := newInc()
	a, err := New(cfg, Member{Inc: inc, GRPCAddr: "127.0.0.1:1665"}, nil, func(Evidence) {}, nil, quiet(), NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	if addr := a.Addr(); addr != "" {
		t.Errorf("Addr before Run = %q", addr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	<-a.Ready()
	if a.Addr() == "" {
		t.Error("Addr is empty though ready")
	}
	eventually.True(t, "the observer to see it", func() bool { return slices.Equal(observer.kinds(inc), []Kind{Alive}) })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
	eventually.True(t, "the observer to see it leave", func() bool { return slices.Equal(observer.kinds(inc), []Kind{Alive, Dead}) })
}

// testNode is one member of a test with the evidence that it got.
type testNode struct {
	name     string
	inc      ownership.Incarnation
	grpcAddr string
	cfg      Config
	gossip   *Gossip
	cancel   context.CancelFunc
	leaving  chan bool // whether to announce the departure
	ended    chan struct{}

	settings identity.Identity

	mu    sync.Mutex
	heard map[ownership.Incarnation][]Kind
}

func testConfig(name string) Config {
	cfg := DefaultConfig()
	cfg.Group = "test"
	cfg.Name = name
	cfg.Listen = "127.0.0.1:0"
	cfg.RejoinInterval = 300 * time.Millisecond
	cfg.JoinBackoffMin = 50 * time.Millisecond
	cfg.JoinBackoffMax = 300 * time.Millisecond
	return cfg
}

// startNode starts a member, which leaves at the end of the test unless it is gone.
func startNode(t *testing.T, cfg Config) *testNode {
	t.Helper()
	return startNodeWith(t, cfg, quiet())
}

func startNodeWith(t *testing.T, cfg Config, log *slog.Logger) *testNode {
	t.Helper()
	return startNodeOf(t, cfg, nil, log)
}

// startNodeOf starts a member whose router has these settings.
func startNodeOf(t *testing.T, cfg Config, settings identity.Identity, log *slog.Logger) *testNode {
	t.Helper()
	return startNodeBehind(t, cfg, settings, nil, log)
}

func startNodeBehind(t *testing.T, cfg Config, settings identity.Identity, limiter Limiter, log *slog.Logger) *testNode {
	t.Helper()
	n, err := tryNode(t, cfg, settings, limiter, log)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const inUse = "address already in use"

// startNodeAt starts a member at an address that was free a moment ago, once no other process has it.
func startNodeAt(t *testing.T, cfg Config) (n *testNode) {
	t.Helper()
	eventually.True(t, "the address to be free", func() (free bool) {
		var err error
		if n, err = tryNode(t, cfg, nil, nil, quiet()); err != nil && !strings.Contains(err.Error(), inUse) {
			t.Fatal(err)
		}
		return err == nil
	})
	return n
}

// startNodeElsewhere starts a member, and tells move another free address for cfg as long as that of cfg is taken.
func startNodeElsewhere(t *testing.T, cfg *Config, log *slog.Logger, move func(addr string)) *testNode {
	t.Helper()
	for {
		n, err := tryNode(t, *cfg, nil, nil, log)
		switch {
		case err == nil:
			return n
		case !strings.Contains(err.Error(), inUse):
			t.Fatal(err)
		}
		move(freeAddr(t))
	}
}

// tryNode returns the error of a node that cannot listen.
func tryNode(t *testing.T, cfg Config, settings identity.Identity, limiter Limiter, log *slog.Logger) (*testNode, error) {
	t.Helper()
	n := &testNode{
		settings: settings,
		name:     cfg.Name, inc: newInc(), grpcAddr: "127.0.0.1:1665", cfg: cfg,
		leaving: make(chan bool, 1), ended: make(chan struct{}),
		heard: make(map[ownership.Incarnation][]Kind),
	}
	var err error
	n.gossip, err = New(cfg, Member{Inc: n.inc, GRPCAddr: n.grpcAddr}, n.settings, n.report, limiter, log, NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.gossip.listen(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	n.cancel = cancel
	go func() { // Run, but for the possibility to crash
		defer close(n.ended)
		n.gossip.work(ctx)
		end := n.gossip.list.Shutdown
		if <-n.leaving {
			end = n.gossip.leave
		}
		if err := end(); err != nil {
			t.Errorf("end of %s: %v", n.name, err)
		}
	}()
	t.Cleanup(n.stop)
	return n, nil
}

func (n *testNode) stop()  { n.end(true) }
func (n *testNode) crash() { n.end(false) }

func (n *testNode) end(farewell bool) {
	select {
	case n.leaving <- farewell:
	default: // it has ended already
	}
	n.cancel()
	<-n.ended
}

func (n *testNode) report(e Evidence) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard[e.Member.Inc] = append(n.heard[e.Member.Inc], e.Kind)
}

// kinds returns the kinds of the evidence about an incarnation, in order.
func (n *testNode) kinds(inc ownership.Incarnation) []Kind {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.heard[inc])
}

func (n *testNode) sees(o *testNode) bool {
	return slices.ContainsFunc(n.gossip.Members(), func(m Member) bool { return m.Inc == o.inc })
}

func startGroup(t *testing.T, size int, change ...func(*Config)) []*testNode {
	t.Helper()
	var nodes []*testNode
	for i := range size {
		cfg := testConfig(fmt.Sprintf("n%d", i))
		for _, c := range change {
			c(&cfg)
		}
		if i > 0 {
			cfg.Seeds = []string{nodes[0].gossip.Addr()}
		}
		nodes = append(nodes, startNode(t, cfg))
	}
	eventually.True(t, "the group to form", func() bool { return allSeeAll(nodes) })
	return nodes
}

func allSeeAll(nodes []*testNode) bool {
	for _, n := range nodes {
		for _, o := range nodes {
			if n != o && !n.sees(o) {
				return false
			}
		}
	}
	return true
}

func last(kinds []Kind) Kind {
	if len(kinds) == 0 {
		return Alive
	}
	return kinds[len(kinds)-1]
}

func newInc() (inc ownership.Incarnation) {
	_, _ = rand.Read(inc[:]) // never fails
	return inc
}

func freeAddr(t *testing.T) string {
	t.Helper()
	addr, free := address.Held(t)
	free()
	return addr
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// The report about seeds ends with the incarnation that made it: the next one may find others at once.
func TestOnlySelfIsNotReportedForALaterIncarnation(t *testing.T) {
	t.Parallel()
	other := startNode(t, testConfig("other"))
	metrics := NewMetrics(prometheus.NewRegistry())
	var taken net.Listener // at the first address
	var run func(change func(*Config), until func(*Gossip) bool)
	run = func(change func(*Config), until func(*Gossip) bool) {
		cfg := testConfig("a")
		change(&cfg)
		g, err := New(cfg, Member{Inc: newInc(), GRPCAddr: "127.0.0.1:1665"}, nil, func(Evidence) {}, nil, quiet(), metrics)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		select {
		case <-g.Ready():
		case err := <-ended:
			if cancel(); !strings.Contains(err.Error(), inUse) {
				t.Fatal(err)
			}
			run(change, until) // another process has taken the address that was free: with another one
			return
		}
		eventually.True(t, "the state of this incarnation", func() bool { return until(g) })
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	only := func() bool { return testutil.ToFloat64(metrics.onlySelf) == 1 }
	run(func(c *Config) {
		c.Listen = freeAddr(t)
		if taken == nil {
			var err error
			if taken, err = net.Listen("tcp", c.Listen); err != nil {
				t.Fatal(err)
			}
		}
		c.Seeds = []string{c.Listen}
	}, func(*Gossip) bool { return only() })
	_ = taken.Close()
	if only() {
		t.Error("it is reported of a node that is in no gossip")
	}
	run(func(c *Config) { c.Seeds = []string{other.gossip.Addr()} }, func(g *Gossip) bool { return len(g.Members()) == 1 && !only() })
}
