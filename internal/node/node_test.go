package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/devtools/testapp"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
	"github.com/ringfence/router/ring"
)

// group is a router group in this process: real nodes with real streams and gossip
// on loopback, over a broker and a control log in memory.
type group struct {
	t      testing.TB
	broker *membroker.Broker
	log    *controllog.Mem
	dir    string
	work   testapp.Config // of every application
	source source.Config  // of every member
	feed   source.MemBroker

	mu        sync.Mutex
	files     []journal.File
	published []string
	started   []*member
}

func newGroup(t testing.TB) *group {
	t.Helper()
	groups.enter(t)
	from := source.DefaultConfig()
	from.Topics, from.Subscription = []string{"orders"}, "orders"
	broker := membroker.New(membroker.DefaultConfig())
	return &group{
		source: from, feed: broker,
		t: t, broker: broker, log: controllog.NewMem(), dir: t.TempDir(),
		work: testapp.Config{WorkMin: 10 * time.Microsecond, WorkMax: 2 * time.Millisecond},
	}
}

// member is a node and its application.
type member struct {
	*Node
	reports  *report.Group
	endpoint string
	stop     context.CancelFunc
	ended    chan struct{} // closed when Run has returned err
	err      error
	stopApp  func()
}

func (g *group) start(name string, adjust func(*Config)) *member {
	g.t.Helper()
	return g.startWith(name, adjust, nil)
}

// startWith starts a member, after exchange has had its parts.
func (g *group) startWith(name string, adjust func(*Config), exchange func(*Parts)) *member {
	g.t.Helper()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			g.t.Fatal(err)
		}
		return l
	}
	appListener, peerListener := listen(), listen()
	cfg := Config{
		Group: "orders", Name: name, Build: "test", PeerAddr: peerListener.Addr().String(),
		App: app.DefaultConfig(), Forward: forward.DefaultConfig(), Mailbox: mailbox.DefaultConfig(), Retry: outcome.DefaultConfig(),
		Ring: ring.DefaultConfig(), Timing: ownership.CalmTiming(), ControlLog: controllog.DefaultConfig(), Lane: lane.DefaultConfig(),
		Membership: membership.DefaultConfig(), DrainTimeout: 20 * time.Second,
	}
	cfg.Membership.Listen = "127.0.0.1:0"
	cfg.Topics = g.source.Resolved().Topics
	// The race detector slows everything down several times, and these tests run beside each other: they are not about a
	// silent peer, nor about a lease that runs out. A new group takes as long whatever the lease is.
	cfg.Forward.PingAfter, cfg.Forward.DeadAfter, cfg.Forward.HelloTimeout = 5*time.Second, 20*time.Second, 20*time.Second
	if adjust != nil {
		adjust(&cfg)
	}
	extractor, err := key.Parse("message_key", key.Reject)
	if err != nil {
		g.t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("NODE_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", name)
	}
	sourceMetrics := source.NewMetrics(registry)
	parts := Parts{
		Key: extractor, AppListener: appListener, PeerListener: peerListener,
		ServerCreds: insecure.NewCredentials(), ClientCreds: insecure.NewCredentials(),
		Source: func(topics []string) *source.Source {
			from := g.source.Resolved()
			from.Topics = topics
			return source.NewMem(from, g.feed, sourceMetrics, log)
		},
		ControlLog: func() (controllog.Transport, error) { return g.log, nil },
		Registry:   registry, Log: log,
	}
	if exchange != nil {
		exchange(&parts)
	}
	n, err := New(cfg, parts)
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &member{Node: n, reports: n.Reports(nil), endpoint: appListener.Addr().String(), stop: stop, ended: make(chan struct{}), stopApp: func() {}}
	g.started = append(g.started, m)
	go func() {
		m.err = n.Run(ctx)
		close(m.ended)
	}()
	g.t.Cleanup(func() {
		m.stopApp()
		stop()
		<-m.ended
	})
	return m
}

// startApp connects an application that keeps a journal.
func (g *group) startApp(m *member) {
	g.t.Helper()
	g.startJournaled(m, func(w *journal.Writer) client.Handler { return testapp.New(g.work, w).Handle })
}

// startJournaled connects an application whose handler keeps a journal.
func (g *group) startJournaled(m *member, handler func(*journal.Writer) client.Handler) {
	g.t.Helper()
	g.mu.Lock()
	path := filepath.Join(g.dir, fmt.Sprintf("%d.journal", len(g.files)))
	g.files = append(g.files, journal.File{Path: path})
	g.mu.Unlock()
	w, err := journal.Create(path)
	if err != nil {
		g.t.Fatal(err)
	}
	handle := handler(w)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := client.Run(ctx, m.endpoint, handle, client.WithLogger(slog.New(slog.DiscardHandler)), client.WithDrainGrace(5*time.Second)); err != nil {
			g.t.Errorf("application: %v", err)
		}
		if err := w.Close(); err != nil {
			g.t.Error(err)
		}
	}()
	m.stopApp = sync.OnceFunc(func() { cancel(); <-done })
}

// publish sends n events on keys, in entries of up to 50.
func (g *group) publish(n, keys int) {
	g.t.Helper()
	for n > 0 {
		batch := make([]membroker.Message, min(n, 50))
		for i := range batch {
			name := fmt.Sprintf("event-%d", len(g.published))
			g.published = append(g.published, name)
			batch[i] = membroker.Message{Key: fmt.Sprintf("user-%d", len(g.published)%keys), Payload: []byte(name)}
		}
		if _, err := g.broker.Publish(g.t.Context(), "persistent://public/default/orders", batch); err != nil {
			g.t.Fatal(err)
		}
		n -= len(batch)
	}
}

// loadMax bounds the open events of a load: on a slow machine more would take longer than the tests wait, and members that
// have no time left lose their leases.
const loadMax = 2000

// load publishes about 2,000 events a second until it is stopped, fewer if they are not handled as fast.
func (g *group) load(keys int) (stop func()) {
	ctx, cancel := context.WithCancel(g.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		pace := time.NewTicker(25 * time.Millisecond)
		defer pace.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-pace.C:
				if s := g.broker.SubscriptionStats("orders"); s.Backlog+s.Unacked < loadMax {
					g.publish(50, keys)
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

func (g *group) settled() {
	g.t.Helper()
	g.eventually("everything is settled", func() error {
		s := g.broker.SubscriptionStats("orders")
		if s.Published != len(g.published) || s.Backlog != 0 || s.Unacked != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// check reads the journals.
func (g *group) check() journal.Report {
	g.t.Helper()
	report, err := journal.Check(g.files, slices.Values(g.published))
	if err != nil {
		g.t.Fatal(err)
	}
	if report.Overlaps != 0 || report.Lost != 0 || report.Unknown != 0 || report.StaleTokens != 0 || report.Published == 0 {
		g.t.Errorf("a promise broke: %+v", report)
	}
	return report
}

func (g *group) ready(members ...*member) {
	g.t.Helper()
	for _, m := range members {
		g.eventually(m.cfg.Name+" is ready", func() error {
			return errors.Join(m.CheckMember(), m.CheckApp(), m.CheckLease(), m.CheckSource())
		})
	}
}

func (g *group) eventually(what string, ask func() error) {
	g.t.Helper()
	eventually.NoError(g.t, eventually.Most, what, ask)
}

func TestJoinAndLeave(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, b := g.start("a", nil), g.start("b", nil)
	g.startApp(a)
	g.startApp(b)
	g.ready(a, b)
	g.publish(200, 200) // on every key, however little the load publishes
	stopLoad := g.load(200)
	c := g.start("c", nil)
	g.startApp(c)
	g.ready(c)
	time.Sleep(500 * time.Millisecond) // of work as three
	a.stop()
	<-a.ended
	if a.err != nil {
		t.Errorf("a left with %v", a.err)
	}
	time.Sleep(500 * time.Millisecond) // of work as two
	stopLoad()
	g.publish(200, 200)
	g.settled()
	if report := g.check(); report.Handoff.Count == 0 {
		t.Errorf("no key moved between the members: this run proved nothing: %+v", report)
	}
}

// TestAbsentApplication: a member whose application is gone for longer than a
// restart gives its partitions up and takes no events, and comes back with it.
func TestAbsentApplication(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	impatient := func(c *Config) { c.Timing.AppAbsence = 300 * time.Millisecond }
	var log written.Text
	a := g.startWith("a", impatient, func(p *Parts) { p.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	b := g.start("b", impatient)
	g.startApp(a)
	g.startApp(b)
	g.ready(a, b)
	g.publish(1000, 100)
	g.settled()

	a.stopApp()
	g.eventually("a is no member", func() error {
		if a.Status().Member {
			return errors.New("it still is")
		}
		return nil
	})
	g.eventually("a has stopped consuming", func() error {
		if s := g.broker.SubscriptionStats("orders"); s.Consumers != 1 {
			return fmt.Errorf("%d consumers", s.Consumers)
		}
		return nil
	})
	g.publish(1000, 100)
	g.settled()
	every := report.KeysQuestion{Limit: report.KeysLimit}
	if at := newReporter(a.Node).Key(t.Context(), "k"); !at.NoApplication || !newReporter(a.Node).Keys(t.Context(), every).NoApplication {
		t.Errorf("a does not report that it has no application: %+v", at)
	}
	if at := newReporter(b.Node).Key(t.Context(), "k"); at.NoApplication || newReporter(b.Node).Keys(t.Context(), every).NoApplication {
		t.Errorf("b reports that it has no application: %+v", at)
	}

	g.startApp(a)
	g.ready(a)
	g.publish(1000, 100)
	g.settled()
	g.check()
	if blamed := log.With("did not report the ends"); blamed != nil { // it was not asked: a had no subscription when its partitions came back
		t.Errorf("a blames the broker: %s", blamed)
	}
}

// TestLostMemberBeginsAgain: a control log that goes back cannot be trusted; every
// member starts again, and nothing runs twice.
func TestLostMemberBeginsAgain(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, b := g.start("a", nil), g.start("b", nil)
	g.startApp(a)
	g.startApp(b)
	g.ready(a, b)
	g.publish(2000, 100)
	before := a.self.Load().inc
	g.log.Roll()
	g.log.Forget(event.Position{Ledger: 1 << 30}) // the last applied record is gone: contiguity cannot be shown
	g.publish(2000, 100)
	g.eventually("a is another incarnation, and ready", func() error {
		if a.self.Load().inc == before {
			return errors.New("it is the same")
		}
		return errors.Join(a.CheckMember(), a.CheckLease())
	})
	g.settled()
	g.check()
}
