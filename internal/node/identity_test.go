package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/key"
)

// settings is an identity with these values of key.from and pulsar.subscription.
func settings(keyFrom, subscription string) identity.Identity {
	return identity.Of(
		identity.Setting{Name: "key.from", Value: keyFrom},
		identity.Setting{Name: "pulsar.subscription", Value: subscription},
	)
}

// refused waits until a member has ended because of its settings, and checks its error.
func (g *group) refused(m *member, wants ...string) {
	g.t.Helper()
	g.closes("the member that differs has ended", m.ended)
	if !errors.Is(m.err, ErrIdentity) || !errors.Is(m.err, ErrExit) {
		g.t.Fatalf("it ended with %v, want %v", m.err, ErrIdentity)
	}
	for _, want := range wants {
		if !strings.Contains(m.err.Error(), want) {
			g.t.Errorf("%q does not say %q", m.err, want)
		}
	}
}

// plain connects an application with any handler.
func (g *group) plain(m *member, handle client.Handler) {
	g.t.Helper()
	g.serve(m, handle)
}

// A member that takes keys from elsewhere, as in a rolling change of key.from, ends with both values. The group
// continues, and events with one key never run at once.
func TestOtherKeySettingsAreRefused(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	var running, overlaps, handled atomic.Int64
	handle := func(context.Context, *client.Event) error {
		if running.Add(1) > 1 {
			overlaps.Add(1)
		}
		time.Sleep(2 * time.Millisecond)
		running.Add(-1)
		handled.Add(1)
		return nil
	}
	with := func(from string) (func(*Config), func(*Parts)) {
		return func(c *Config) { c.Identity = settings(from, "orders") }, func(p *Parts) {
			x, err := key.Parse(from, key.Reject)
			if err != nil {
				t.Fatal(err)
			}
			p.Key = x
		}
	}
	a := g.startWith(with2(with("message_key"))("a"))
	g.plain(a, handle)
	g.ready(a)
	b := g.startWith(with2(with("json:user"))("b"))
	g.plain(b, handle)
	g.refused(b, `key.from is "json:user" here and "message_key" there`)
	for range 100 {
		batch := []membroker.Message{{Key: "order-00", Payload: []byte(`{"user":"u7"}`)}}
		if _, err := g.broker.Publish(t.Context(), "persistent://public/default/orders", batch); err != nil {
			t.Fatal(err)
		}
	}
	g.eventually("all are done", func() error {
		if n := handled.Load(); n < 100 { // an event whose lease ran out runs again
			return fmt.Errorf("%d handled", n)
		}
		return nil
	})
	if n := overlaps.Load(); n > 0 {
		t.Errorf("%d overlaps", n)
	}
	g.ready(a)
}

func with2(adjust func(*Config), exchange func(*Parts)) func(string) (string, func(*Config), func(*Parts)) {
	return func(name string) (string, func(*Config), func(*Parts)) { return name, adjust, exchange }
}

// Differing members that start at the same moment: one of them becomes the group, and all others end.
func TestDifferingMembersStartAtOnce(t *testing.T) {
	t.Parallel()
	for round := range 3 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			var members []*member
			for i, from := range []string{"message_key", "json:user", "property:user"} {
				m := g.start(fmt.Sprintf("m%d", i), func(c *Config) { c.Identity = settings(from, "orders") })
				g.plain(m, func(context.Context, *client.Event) error { return nil })
				members = append(members, m)
			}
			g.eventually("one is left", func() error {
				left, ready := 0, 0
				for _, m := range members {
					select {
					case <-m.ended:
						if !errors.Is(m.err, ErrIdentity) {
							t.Fatalf("%v", m.err)
						}
					default:
						left++
						if m.CheckMember() == nil {
							ready++
						}
					}
				}
				if left == 0 {
					t.Fatal("all have ended")
				}
				if left > 1 || ready != 1 {
					return fmt.Errorf("%d are left, %d of them ready", left, ready)
				}
				return nil
			})
		})
	}
}

// Two applications under one group name: the second one would take the first one's events.
func TestOtherTopicsOrSubscriptionAreRefused(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.start("a", func(c *Config) { c.Identity = settings("message_key", "orders") })
	g.plain(a, func(context.Context, *client.Event) error { return nil })
	g.ready(a)
	b := g.start("b", func(c *Config) {
		c.Identity, c.Topics = settings("message_key", "orders"), []string{"persistent://public/default/billing"}
	})
	g.refused(b, "pulsar.topics", "persistent://public/default/billing", "persistent://public/default/orders")
	c := g.start("c", func(c *Config) { c.Identity = settings("message_key", "billing") })
	g.refused(c, `pulsar.subscription is "billing" here and "orders" there`)
	g.ready(a)
}

// A topic that a rolling deploy adds is consumed once all members list it, one that it takes away until then.
func TestTopicsChangeInARollingDeploy(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	const orders, returns = "persistent://public/default/orders", "persistent://public/default/returns"
	var handled atomic.Int64
	handle := func(_ context.Context, e *client.Event) error {
		if strings.HasSuffix(e.Topic, "returns") {
			handled.Add(1)
		}
		return nil
	}
	more := func(c *Config) { c.Topics = []string{orders, returns} }
	a := g.start("a", nil)
	g.plain(a, handle)
	g.ready(a)
	if _, err := g.broker.Publish(t.Context(), returns, []membroker.Message{{Key: "k", Payload: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	b := g.start("b", more)
	g.plain(b, handle)
	g.ready(a, b)
	if got := fmt.Sprint(b.TopicsNotConsumed()); got != "map["+returns+":[a]]" {
		t.Errorf("not consumed: %s", got)
	}
	if n := handled.Load(); n > 0 {
		t.Errorf("%d events of the new topic were handled while a member does not know it", n)
	}
	a.stop()
	<-a.ended
	c := g.start("c", more)
	g.plain(c, handle)
	g.ready(b, c)
	g.eventually("the event of the new topic is handled", func() error {
		if handled.Load() == 0 {
			return fmt.Errorf("not consumed: %v", b.TopicsNotConsumed())
		}
		return nil
	})
}

// The control topic was deleted by force and made anew with lower ledger ids while the group runs, as after a restored
// cluster: no lower token is given out, and the members log the advice.
func TestTokensDoNotFallWhileTheGroupRuns(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	for range 1000 {
		g.log.Roll()
	}
	var lowest, newest atomic.Int64
	handle := func(_ context.Context, e *client.Event) error {
		if last := newest.Swap(e.FencingToken); e.FencingToken < last {
			lowest.Store(e.FencingToken)
		}
		return nil
	}
	a := g.start("a", nil)
	g.plain(a, handle)
	g.ready(a)
	g.publish(50, 1)
	g.settled()
	g.log.Restore(event.Position{Ledger: 5})
	g.refused(a, "fencing tokens would go backward", "ownership.generation to 1 or higher")
	if newest.Load() == 0 || lowest.Load() != 0 {
		t.Fatalf("newest token %d, a lower one after it: %d", newest.Load(), lowest.Load())
	}
	a.stopApp()
	before := newest.Load()
	b := g.start("b", func(c *Config) { c.Generation = 1 })
	g.plain(b, handle)
	g.ready(b)
	g.publish(50, 1)
	g.settled()
	if newest.Load() <= before {
		t.Errorf("token %d of generation 1 is not above %d", newest.Load(), before)
	}
}
