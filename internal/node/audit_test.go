package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/audit/judge"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/devtools/testapp"
	"github.com/ringfence/router/internal/ownership"
)

// audited switches the auditor on.
func audited(c *Config) { c.Audit = audit.DefaultConfig() }

// publishEach publishes one event on each of n keys, with an instruction to the application.
func (g *group) publishEach(n int, conduct string) {
	g.t.Helper()
	for i := range n {
		name := fmt.Sprintf("event-%d", len(g.published))
		g.published = append(g.published, name)
		message := membroker.Message{Key: fmt.Sprintf("user-%d", i), Payload: []byte(name)}
		if conduct != "" {
			message.Properties = map[string]string{testapp.ConductProperty: conduct}
		}
		if _, err := g.broker.Publish(g.t.Context(), "persistent://public/default/orders", []membroker.Message{message}); err != nil {
			g.t.Fatal(err)
		}
	}
}

// auditOf returns the sum of what the auditors of members have found.
func auditOf(members ...*member) (sum judge.State) {
	for _, m := range members {
		s := m.audit.judge.State()
		sum.Handlings, sum.Overlaps, sum.Unheard = sum.Handlings+s.Handlings, sum.Overlaps+s.Overlaps, sum.Unheard+s.Unheard
		for i := range s.Undecided {
			sum.Undecided[i] += s.Undecided[i]
		}
		sum.Newest = append(sum.Newest, s.Newest...)
	}
	return sum
}

// refusing are credentials with which so many connections fail.
type refusing struct {
	credentials.TransportCredentials

	left *atomic.Int32
}

func (r refusing) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if r.left.Add(-1) >= 0 {
		return nil, nil, errors.New("refused by the test")
	}
	return r.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

func (r refusing) Clone() credentials.TransportCredentials {
	return refusing{r.TransportCredentials.Clone(), r.left}
}

// TestTheAuditorFindsHandlersThatOutliveTheirKey: handlers that ignore their cancellation run on while their keys move to
// another member, which runs the next events. When they end at last, both sides are compared at the next owner, and
// every overlap of the journals is found.
func TestTheAuditorFindsHandlersThatOutliveTheirKey(t *testing.T) {
	t.Parallel()
	calmly(t, theAuditorFindsHandlersThatOutliveTheirKey)
}

func theAuditorFindsHandlersThatOutliveTheirKey(t testing.TB, g *group) {
	forces := func(c *Config) { audited(c); c.Timing.DrainTimeout = 300 * time.Millisecond }
	var refused atomic.Int32 // connections of a, from now on: reports that fail are repeated
	a := g.startWith("a", forces, func(p *Parts) { p.ClientCreds = refusing{p.ClientCreds, &refused} })
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	g.startJournaled(a, func(w *journal.Writer) client.Handler {
		return func(_ context.Context, e *client.Event) error {
			h, err := w.Start(string(e.Payload), event.Key(e.Key), event.Fence(e.Fence))
			if err != nil {
				return err
			}
			<-released
			return w.End(h, journal.Done)
		}
	})
	t.Cleanup(release)
	g.ready(a)
	const keys, least = 80, 10 // overlaps that there are at least: b gets half of the keys
	g.publishEach(keys, "")
	g.eventually("all handlers run", func() error {
		if n := a.boxes.Stats().Running; n != keys {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	b := g.start("b", forces)
	g.startApp(b)
	g.ready(b)
	g.publishEach(keys, "")
	g.eventually("b has run events of keys whose handlers run at a", func() error {
		if n := b.boxes.Stats().Done; n < least {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	refused.Store(2)
	release()
	g.settled()
	report, err := journal.Check(g.files, slices.Values(g.published))
	if err != nil {
		t.Fatal(err)
	}
	if report.Overlaps < least {
		t.Fatalf("%d overlaps: this run proved nothing: %+v", report.Overlaps, report)
	}
	g.eventually("all overlaps are found", func() error {
		// An interval of the SDK contains that of the journal: on a busy machine, the next handler begins between the two ends.
		if found := auditOf(a, b); int(found.Overlaps) < int(report.Overlaps) {
			return fmt.Errorf("%d of %d: %+v", found.Overlaps, report.Overlaps, found)
		}
		return nil
	})
	if refused.Load() > 0 {
		t.Error("no report has failed")
	}
	found := auditOf(a, b)
	for _, f := range found.Newest {
		if f.First.Source.Name != "a" || f.Second.Source.Name != "b" || !f.First.Fence.Before(f.Second.Fence) || f.For <= 0 {
			t.Errorf("sides %+v and %+v", f.First, f.Second)
		}
	}
	if status := b.audited(); status.Overlaps == 0 || len(status.Newest) == 0 {
		t.Errorf("the report of b shows none: %+v", status)
	}
}

// TestTheAuditorInventsNothingInARollout: members are replaced one after the other under load.
func TestTheAuditorInventsNothingInARollout(t *testing.T) {
	t.Parallel()
	calmly(t, theAuditorInventsNothingInARollout)
}

func theAuditorInventsNothingInARollout(t testing.TB, g *group) {
	members := []*member{g.start("a", audited), g.start("b", audited)}
	for _, m := range members {
		g.startApp(m)
	}
	g.ready(members...)
	all := slices.Clone(members)
	stop := g.load(300)
	for round := range 2 {
		for i, old := range members {
			members[i] = g.start(fmt.Sprintf("%s%d", old.cfg.Name, round), audited)
			all = append(all, members[i])
			g.startApp(members[i])
			g.ready(members[i])
			old.stop()
			<-old.ended
		}
	}
	stop()
	g.settled()
	g.check()
	g.checkLog()
	sum := auditOf(all...)
	if sum.Overlaps != 0 || sum.Undecided != (judge.State{}).Undecided || sum.Unheard != 0 {
		t.Errorf("found %+v", sum)
	}
	if sum.Handlings < uint64(len(g.published)) {
		t.Errorf("%d handlings compared, %d events handled", sum.Handlings, len(g.published))
	}
}

// TestTheAuditorFindsAPlantedBug runs in a build with the switches, started with the bug no_wait: `make planted`.
func TestTheAuditorFindsAPlantedBug(t *testing.T) {
	if os.Getenv("RINGFENCE_PLANTED") != "no_wait" {
		t.Skip("no bug is planted: make planted")
	}
	calmly(t, theAuditorFindsAPlantedBug)
}

func theAuditorFindsAPlantedBug(t testing.TB, g *group) {
	const least, joinsLeast, joinsMost = 20, 4, 12
	g.work = testapp.Config{WorkMin: 20 * time.Millisecond, WorkMax: 100 * time.Millisecond}
	a := g.start("a", audited)
	g.startApp(a)
	g.ready(a)
	members := []*member{a}
	stop := g.load(100)
	// Each new member takes keys of the others while their handlers run. The number of overlaps depends on the machine.
	for i := 0; i < joinsMost && (i < joinsLeast || auditOf(members...).Overlaps < 2*least); i++ {
		m := g.start(fmt.Sprintf("b%d", i), audited)
		members = append(members, m)
		g.startApp(m)
		g.ready(m)
	}
	time.Sleep(time.Second)
	stop()
	g.settled()
	report, err := journal.Check(g.files, slices.Values(g.published))
	if err != nil {
		t.Fatal(err)
	}
	if report.Overlaps < least {
		t.Fatalf("%d overlaps after %d members: this run proved nothing: %+v", report.Overlaps, len(members), report)
	}
	g.eventually("all overlaps are found", func() error {
		if found := auditOf(members...); found.Overlaps < uint64(report.Overlaps) {
			return fmt.Errorf("%d of %d: %+v", found.Overlaps, report.Overlaps, found)
		}
		return nil
	})
	t.Logf("%d members, %d overlaps in the journals, %d found", len(members), report.Overlaps, auditOf(members...).Overlaps)
}

// TestReportsOfStrangersAreRefused: only a member that signs with the key of its incarnation is believed.
func TestReportsOfStrangersAreRefused(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, b := g.start("a", audited), g.start("b", audited)
	g.startApp(a)
	g.startApp(b)
	g.ready(a, b)
	to, known := b.memberNamed("a")
	if !known {
		t.Fatal("b does not know a")
	}
	send := func() error { return b.audit.exchange(t.Context(), to, exchangeReport()) }
	g.eventually("a believes b", send)
	own := *b.self.Load()
	for name, forged := range map[string]ownIncarnation{
		"no signature":         {inc: own.inc},
		"another incarnation":  {inc: newIncarnation(), key: own.key},
		"another member's key": {inc: own.inc, key: a.self.Load().key},
	} {
		b.self.Store(&forged)
		if err := send(); err == nil {
			t.Errorf("%s: the report was taken", name)
		}
	}
	b.self.Store(&own)
	to.Inc = newIncarnation()
	if err := send(); err == nil {
		t.Error("a report for another member was taken")
	}
	if err := errors.Join(a.CheckMember(), b.CheckMember()); err != nil {
		t.Error(err)
	}
}

func exchangeReport() (r exchange.Report) {
	r.Handlings = []audit.Handling{{Key: 1, Start: 1, End: 2}}
	return r
}

// memberNamed returns a member of the table.
func (m *member) memberNamed(name string) (ownership.Node, bool) {
	for _, n := range m.Table().Members {
		if n.Name == name {
			return n, true
		}
	}
	return ownership.Node{}, false
}

// checkLog replays the control log of the group.
func (g *group) checkLog() {
	g.t.Helper()
	replay := ownership.NewReplay("orders")
	err := controllog.Replay(g.t.Context(), g.log, "orders", func(at event.Position, r ownership.Record, sum uint64) {
		if v := replay.Read(at, r, sum); v != nil {
			g.t.Error(v)
		}
	})
	if err != nil {
		g.t.Fatal(err)
	}
	if c := replay.Checked(); c.Epochs == 0 || c.Acquired == 0 || c.Prefixes == 0 || c.Snaps == 0 {
		g.t.Errorf("the replay proved little: %+v", c)
	}
}
