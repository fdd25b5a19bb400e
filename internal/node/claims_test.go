package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/claim"
	"github.com/ringfence/router/internal/source"
)

const claimedTopic = "persistent://public/default/orders"

// claimsOf is a Keeper for a group on the control topic of a namespace.
func claimsOf(t *testing.T, claims controllog.Transport, namespace string) *claim.Keeper {
	t.Helper()
	control := "persistent://" + namespace + "/__ring-orders"
	cfg := claim.DefaultConfig()
	cfg.Identity = identity.Of(identity.Setting{Name: "node.group", Value: "orders"}, identity.Setting{Name: "control_log.topic", Value: control})
	var err error
	if cfg.Places, err = claim.Places([]string{claimedTopic}, "orders", ""); err != nil {
		t.Fatal(err)
	}
	open := func(string) (controllog.Transport, error) { return claims, nil }
	return claim.New(cfg, open, slog.New(slog.DiscardHandler), claim.NewMetrics(prometheus.NewRegistry()))
}

// handle connects an application of one member.
func (g *group) handle(m *member, h client.Handler) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = client.Run(ctx, m.endpoint, h, client.WithLogger(slog.New(slog.DiscardHandler)), client.WithDrainGrace(5*time.Second)) // its router may end
	}()
	m.stopApp = sync.OnceFunc(func() { cancel(); <-done })
}

// TestOtherControlLogIsRefused: a member whose control log lies in another namespace would be a second owner of
// every key. The claims topic makes it end, with both names; the existing group continues alone.
func TestOtherControlLogIsRefused(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	claims, other := controllog.NewMem(), controllog.NewMem()
	var running, overlaps atomic.Int64
	handle := func(context.Context, *client.Event) error {
		if running.Add(1) > 1 {
			overlaps.Add(1)
		}
		time.Sleep(3 * time.Millisecond)
		running.Add(-1)
		return nil
	}
	a := g.startWith("a", nil, func(p *Parts) { p.Claims = claimsOf(t, claims, "public/default") })
	g.handle(a, handle)
	g.ready(a)
	seed := a.incarnation.Load().gossip.Addr()
	b := g.startWith("b", func(c *Config) { c.Membership.Seeds = []string{seed} }, func(p *Parts) {
		p.ControlLog = func() (controllog.Transport, error) { return other, nil } // __ring-orders in another namespace
		p.Claims = claimsOf(t, claims, "public/next")
	})
	g.handle(b, handle)
	for range 100 {
		batch := []membroker.Message{{Key: "user-0", Payload: []byte("x")}}
		if _, err := g.broker.Publish(t.Context(), claimedTopic, batch); err != nil {
			t.Fatal(err)
		}
	}
	g.closes("the second group's router has ended", b.ended)
	if !errors.Is(b.err, ErrIdentity) || !errors.Is(b.err, ErrExit) ||
		!strings.Contains(b.err.Error(), `control_log.topic is "persistent://public/next/__ring-orders" here and "persistent://public/default/__ring-orders" there`) {
		t.Errorf("the second group's router ended with %v", b.err)
	}
	g.eventually("all done", func() error {
		if s := g.broker.SubscriptionStats("orders"); s.Published != 100 || s.Backlog != 0 || s.Unacked != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if n := overlaps.Load(); n != 0 {
		t.Errorf("%d overlaps", n)
	}
	g.ready(a)
	if end, _ := other.End(t.Context()); end.Entry >= 0 {
		t.Errorf("the second group has written to its control log, up to %v", end)
	}
}

// TestReleaseEndsTheGroup: a forced release ends the running members, and then the other group begins.
func TestReleaseEndsTheGroup(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	claims := controllog.NewMem()
	var subscriptions atomic.Int64
	a := g.startWith("a", nil, func(p *Parts) {
		p.Claims = claimsOf(t, claims, "public/default")
		newSource := p.Source
		p.Source = func(topics []string) *source.Source {
			subscriptions.Add(1)
			return newSource(topics)
		}
	})
	g.startApp(a)
	g.ready(a)
	g.eventually("the generation is written down", func() error {
		if _, ok := a.parts.Claims.Began(); !ok {
			return errors.New("not yet")
		}
		return nil
	})
	if _, err := claim.Look(t.Context(), claims, func(f *claim.Fold) (*claim.Record, error) {
		return &claim.Record{Resources: f.Resources(), Release: true, Force: true}, nil
	}); err != nil {
		t.Fatal(err)
	}
	g.closes("a has ended", a.ended)
	if !errors.Is(a.err, ErrIdentity) || !errors.Is(a.err, claim.ErrReleased) {
		t.Errorf("a ended with %v", a.err)
	}
	if n := subscriptions.Load(); n != 1 || errors.Is(a.err, ErrDrainTimeout) { // it is a member to the end
		t.Errorf("it subscribed %d times, and ended with %v; want it once, and an end without waiting", n, a.err)
	}
	b := g.startWith("b", nil, func(p *Parts) { p.Claims = claimsOf(t, claims, "public/next") })
	g.eventually("b holds the subscription", b.CheckClaim)
	if gen, had := b.claimedGeneration(); !had || gen != 0 {
		t.Errorf("b does not know that there was a group: %v, generation %d", had, gen)
	}
}

// TestNewControlLogNeedsAGeneration: on a subscription that had a group, a control topic without a record is no new
// group: its tokens could be lower than those that sinks have seen. With a generation that is set it begins.
func TestNewControlLogNeedsAGeneration(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	claims := controllog.NewMem()
	begins := func(name string, generation uint32) *member {
		m := g.startWith(name, func(c *Config) { c.Generation = generation }, func(p *Parts) { p.Claims = claimsOf(t, claims, "public/default") })
		g.startApp(m)
		return m
	}
	a := begins("a", 0)
	g.ready(a)
	g.eventually("the generation is written down", func() error {
		if _, ok := a.parts.Claims.Began(); !ok {
			return errors.New("not yet")
		}
		return nil
	})
	before := a.Table().Tokens[0]
	a.stop()
	<-a.ended
	a.stopApp()

	g.log = controllog.NewMem() // the control topic was deleted, or the namespace is another cluster's
	b := begins("a", 0)
	g.closes("b has ended", b.ended)
	if !errors.Is(b.err, ErrIdentity) || !strings.Contains(b.err.Error(), "set ownership.generation to 1 or higher") {
		t.Errorf("on another control log, after tokens up to %d, b ended with %v", before, b.err)
	}
	b.stopApp()

	c := begins("a", 1)
	g.ready(c)
	if after := c.Table().Tokens[0]; after <= before {
		t.Errorf("the token went from %d to %d", before, after)
	}
}

// TestDrainBeforeTheClaim: a router that still waits for its claims ends at once when it is drained.
func TestDrainBeforeTheClaim(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.startWith("a", nil, func(p *Parts) { p.Claims = claimsOf(t, unread{}, "public/default") })
	g.eventually("it reports the reason of its wait", func() error {
		for _, probe := range [][]Check{a.Probes().Startup, a.Probes().Ready} {
			if bad := failing(probe); !strings.HasPrefix(bad, "claim") {
				return fmt.Errorf("fails: %s", bad)
			}
		}
		return nil
	})
	if a.Status().Phase != "joining" || a.incarnation.Load() != nil {
		t.Errorf("it has joined: %+v", a.Status())
	}
	a.stop()
	g.closes("it has ended", a.ended)
	if a.err != nil {
		t.Errorf("it ended with %v", a.err)
	}
}

// unread is a log that cannot be read.
type unread struct{ controllog.Transport }

func (unread) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (unread) Tail(ctx context.Context, _ event.Position, _ int, _ func(), _ func(controllog.Entry)) error {
	<-ctx.Done()
	return ctx.Err()
}
