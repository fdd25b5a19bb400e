package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/written"
)

// failsBy waits until the readiness of a member fails by a check, with a text in its error.
func (g *group) failsBy(m *member, check, text string) {
	g.t.Helper()
	g.eventually(check+" fails with "+text, func() error {
		for _, c := range m.Probes().Ready {
			if err := c.Ask(); c.Name == check && err != nil && strings.Contains(err.Error(), text) {
				return nil
			} else if c.Name == check {
				return fmt.Errorf("%s: %w", check, errors.Join(err, errors.New("not yet")))
			}
		}
		return errors.New("there is no such check")
	})
}

// A member whose name another one has says so, and not only that it is not in the group.
func TestReadinessNamesADuplicate(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	done := func(context.Context, *client.Event) error { return nil }
	long := func(c *Config) { c.Timing.NameInUseAfter = time.Hour }
	first := g.start("a", long)
	g.plain(first, done)
	g.ready(first)
	said := &written.Text{}
	second := g.startWith("a", long, func(p *Parts) { p.Log = slog.New(slog.NewTextHandler(said, nil)) })
	g.plain(second, done)
	g.failsBy(second, "member", "is a member with the name a: each router needs its own node.name; this router exits if that lasts for 1h0m0s")
	g.eventually("the log says for how long it waits", func() error {
		for _, line := range said.With("kind=name_held") {
			if strings.Contains(line, `reason="it beats under the name of this router, which exits if that lasts for 1h0m0s"`) {
				return nil
			}
		}
		return errors.New("not yet")
	})
	if err := first.CheckMember(); err != nil {
		t.Errorf("the first one: %v", err)
	}
}

func TestReadinessNamesTheBrokersFault(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	m := g.startWith("a", nil, func(p *Parts) { p.BrokerFault = func() error { return errors.New("the broker refuses") } })
	g.failsBy(m, "broker", "the broker refuses")
}

// A drain says what it waits for.
func TestReadinessNamesWhatADrainWaitsFor(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	release, running := make(chan struct{}), make(chan struct{}, 1)
	m := g.start("a", nil)
	g.plain(m, func(context.Context, *client.Event) error {
		running <- struct{}{}
		<-release
		return nil
	})
	g.ready(m)
	if m.DrainWaits() != "" {
		t.Errorf("without a drain it waits for %s", m.DrainWaits())
	}
	g.publish(1, 1)
	<-running
	drained := m.Drain()
	g.failsBy(m, "drain", "draining: 1 handler still running")
	close(release)
	g.closes("it has drained", drained)
	g.failsBy(m, "drain", "drained: /undrain")
	g.failsBy(m, "member", "left the group: this router is drained")
	g.failsBy(m, "lease", "no lease: this router is drained") // not that the control log cannot be written
	if m.DrainWaits() != "" {
		t.Errorf("after a drain it waits for %s", m.DrainWaits())
	}
}

// A node that has lost one of its topics is ready: it reads the others. One that has lost all says which, and why.
func TestReadyWithoutALostTopic(t *testing.T) {
	denied := func(topic string) error { return errors.New("denied " + topic) }
	lost := map[string]error{"persistent://public/default/a": denied("a"), "persistent://public/default/a-s-RETRY": denied("retry")}
	if err := allUnread([]string{"a", "b"}, lost); err != nil {
		t.Errorf("with one topic of two: %v", err)
	}
	if err := allUnread([]string{"a", "b"}, nil); err != nil {
		t.Errorf("with all topics: %v", err)
	}
	lost["persistent://public/default/b"] = denied("b")
	if err := allUnread([]string{"a", "b"}, lost); err == nil || !strings.Contains(err.Error(), "denied a") || !strings.Contains(err.Error(), "denied b") {
		t.Errorf("without any topic: %v, want an error with the reasons", err)
	}
	lost["persistent://public/default/b"] = fmt.Errorf("%w: %w", source.ErrPartlyRead, denied("b"))
	if err := allUnread([]string{"a", "b"}, lost); err != nil {
		t.Errorf("with a partition of one topic: %v", err)
	}
}

// TestLeaseOfARouterThatHasLeft: its lease ends while its drain goes on, as planned.
func TestLeaseOfARouterThatHasLeft(t *testing.T) {
	t.Parallel()
	r, _ := standing(t)
	n := r.node
	n.Drain()
	if err := n.CheckLease(); err == nil || strings.Contains(err.Error(), "has left") {
		t.Errorf("before it has left: %v", err)
	}
	close(n.drainCycle().left)
	if err := n.CheckLease(); err == nil || err.Error() != "no lease: this router has left the group" {
		t.Errorf("it has left: %v", err)
	}
}
