package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/report"
)

// actsOn makes a member take acts from a log.
func actsOn(name string, log controllog.Transport, change func(*act.Config)) func(*Parts) {
	return func(p *Parts) {
		cfg := act.DefaultConfig()
		if change != nil {
			change(&cfg)
		}
		open := func() (controllog.Transport, error) { return log, nil }
		p.Acts = act.New(cfg, name, open, time.Now, slog.New(slog.DiscardHandler), act.NewMetrics(prometheus.NewRegistry()))
	}
}

// handledKeys records the events of one key in the order in which handlers began.
type handledKeys struct {
	mu     sync.Mutex
	events map[string][]string
	stuck  atomic.Pointer[chan struct{}] // handlers that begin wait for it, if it is set
}

func (h *handledKeys) handle(_ context.Context, e *client.Event) error {
	if stuck := h.stuck.Load(); stuck != nil {
		<-*stuck
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events[e.Key] = append(h.events[e.Key], string(e.Payload))
	return nil
}

func (h *handledKeys) of(key string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events[key])
}

func (g *group) publishKeys(keys ...string) {
	g.t.Helper()
	batch := make([]membroker.Message, len(keys))
	for i, key := range keys {
		batch[i] = membroker.Message{Key: key, Payload: fmt.Appendf(nil, "event-%d", len(g.published))}
		g.published = append(g.published, key)
	}
	if _, err := g.broker.Publish(g.t.Context(), "persistent://public/default/orders", batch); err != nil {
		g.t.Fatal(err)
	}
}

// waitsOnHold waits until the owner of the key among the members has it on hold with so many events.
func (g *group) waitsOnHold(key event.Key, events int, members ...*member) {
	g.t.Helper()
	g.eventually(fmt.Sprintf("%d events of the key are on hold", events), func() error {
		for _, m := range members {
			if s := m.boxes.Inspect(key); s.Wait == mailbox.WaitHold && s.Depth == events {
				return nil
			}
		}
		return fmt.Errorf("it waits for %v with %d", members[0].boxes.Inspect(key).Wait, members[0].boxes.Inspect(key).Depth)
	})
}

// withActs makes members share an acts topic. It returns what their handlers have handled, and a function that starts a member.
func (g *group) withActs() (h *handledKeys, start func(name string) *member) {
	h = &handledKeys{events: map[string][]string{}}
	acts := controllog.NewMem()
	return h, func(name string) *member {
		m := g.startWith(name, nil, actsOn(name, acts, nil))
		g.handle(m, h.handle)
		return m
	}
}

// goByActs returns once the mailboxes of members go by the acts that Held tells of, which it does a moment before them.
// They do when an act of the member's own has come back, since that one is behind.
func (g *group) goByActs(members ...*member) {
	g.t.Helper()
	for _, m := range members {
		if _, _, err := m.Acts().Release(g.t.Context(), act.Order{Key: "another", By: "alice", From: "127.0.0.1:1", Reason: "nothing"}); err != nil {
			g.t.Fatal(err)
		}
	}
}

// TestHoldOutlastsMoves: a hold that any member has taken keeps the key waiting at its owner and at each next owner,
// also one that starts later; other keys go on, and after the release its events are handled in their order.
func TestHoldOutlastsMoves(t *testing.T) {
	t.Parallel()
	calmly(t, holdOutlastsMoves)
}

func holdOutlastsMoves(t testing.TB, g *group) {
	h, start := g.withActs()
	a, b := start("a"), start("b")
	g.ready(a, b)
	const key = "stuck"
	hold, _, err := b.Acts().Hold(t.Context(), act.Order{Key: key, By: "alice", From: "127.0.0.1:1", Reason: "poison pill"})
	if err != nil {
		t.Fatal(err)
	}
	g.eventually("both hold the key", func() error {
		for _, m := range []*member{a, b} {
			if _, held := m.Acts().Held(key); !held {
				return errors.New(m.cfg.Name + " does not")
			}
		}
		return nil
	})
	g.goByActs(a, b)
	g.publishKeys(key, "other", key, key)
	g.publishKeys("other", key)
	g.waitsOnHold(key, 4, a, b)
	g.eventually("the other key goes on", func() error {
		if n := len(h.of("other")); n != 2 {
			return fmt.Errorf("%d handled", n)
		}
		return nil
	})
	reports := newReporter(a.Node)
	if at := reports.Key(t.Context(), key); at.Hold == nil || *at.Hold != (report.Hold{By: "alice", Via: hold.Via, Reason: "poison pill", Since: hold.At.UTC(), Until: hold.Until.UTC()}) {
		t.Errorf("a reports %+v", at.Hold)
	}

	c := start("c")
	g.ready(c)
	a.stop()
	g.closes("a has ended", a.ended)
	b.stop()
	g.closes("b has ended", b.ended)
	g.eventually("c owns everything", func() error {
		if s := c.Status(); s.Open == 0 || s.Waiting > 0 || s.Pending > 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	g.waitsOnHold(key, 4, c)
	if got := h.of(key); len(got) != 0 {
		t.Fatalf("a held key was handled: %v", got)
	}
	if s := newReporter(c.Node).Status(); s.Acts == nil || s.Acts.HeldKeys != 1 || s.Acts.Error != "" || s.Events.OnHoldKeys != 1 {
		t.Errorf("c reports acts %+v, %d keys on hold", s.Acts, s.Events.OnHoldKeys)
	}
	if _, result, err := c.Acts().Release(t.Context(), act.Order{Key: key, By: "bob", From: "127.0.0.1:1", Reason: "fixed"}); err != nil || result != act.Released {
		t.Fatalf("release: %s %v", result, err)
	}
	g.settled()
	got := h.of(key)
	slices.Sort(got) // the two entries may have been received by different members, which a SHARED subscription may reverse
	if want := []string{"event-0", "event-2", "event-3", "event-5"}; !slices.Equal(got, want) {
		t.Errorf("handled %v, want %v once each", got, want)
	}
	if got := h.of(key); slices.Index(got, "event-0") > slices.Index(got, "event-2") || slices.Index(got, "event-2") > slices.Index(got, "event-3") {
		t.Errorf("the events of one entry were handled as %v", got)
	}
	var trail []string
	for _, one := range c.Acts().List() {
		if one.Key == key {
			trail = append(trail, one.Act+" by "+one.By+" because "+one.Reason)
		}
	}
	if want := []string{"release by bob because fixed", "hold by alice because poison pill"}; !slices.Equal(trail, want) {
		t.Errorf("the trail is %q", trail)
	}
}

// TestUnreadableActsDoNotStopEvents: a member that cannot read the acts topic takes part after acts.start_wait, refuses
// acts, and says why in its reports.
func TestUnreadableActsDoNotStopEvents(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.startWith("a", nil, actsOn("a", unread{}, func(c *act.Config) { c.StartWait = 10 * time.Millisecond }))
	g.startApp(a)
	g.ready(a)
	g.publish(100, 10)
	g.settled()
	g.check()
	if _, _, err := a.Acts().Hold(t.Context(), act.Order{Key: "k", By: "alice", From: "-", Reason: "no"}); !errors.Is(err, act.ErrUnreadable) {
		t.Errorf("a hold: %v", err)
	}
	s := newReporter(a.Node).Status()
	if s.Acts == nil || !strings.Contains(s.Acts.Error, "not read yet") {
		t.Errorf("it reports %+v", s.Acts)
	}
}

// TestActsAreReadBeforeAnyEvent: a member waits for the acts topic before it joins.
func TestActsAreReadBeforeAnyEvent(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.startWith("a", nil, actsOn("a", unread{}, func(c *act.Config) { c.StartWait = time.Hour }))
	g.startApp(a)
	g.eventually("its application is connected", a.CheckApp)
	if a.incarnation.Load() != nil {
		t.Error("it has joined")
	}
	a.stop()
	g.closes("it has ended", a.ended)
	if a.err != nil {
		t.Errorf("it ended with %v", a.err)
	}
}

// TestADrainDoesNotEndTheWaitForActs: a member that was drained while it could not read the acts yet, and is to come back, still
// waits for them before it joins: it would run keys that are held.
func TestADrainDoesNotEndTheWaitForActs(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	var readable atomic.Bool
	acts := controllog.NewMem()
	a := g.startWith("a", nil, func(p *Parts) {
		cfg := act.DefaultConfig()
		cfg.StartWait = time.Hour
		open := func() (controllog.Transport, error) {
			if !readable.Load() {
				return nil, errors.New("the topic is away")
			}
			return acts, nil
		}
		p.Acts = act.New(cfg, "a", open, time.Now, slog.New(slog.DiscardHandler), act.NewMetrics(prometheus.NewRegistry()))
	})
	g.drainAndUndrain(a)
	g.serve(a, done)
	time.Sleep(time.Second)
	if a.incarnation.Load() != nil {
		t.Error("it takes part without the acts")
	}
	readable.Store(true)
	g.ready(a)
}

// TestActsThatAreReadCountAsRead: a member that comes back from a drain that took longer than its patience, and has
// read the acts meanwhile, does not say that it takes part without them.
func TestActsThatAreReadCountAsRead(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	m := g.startWith("a", nil, actsOn("a", controllog.NewMem(), func(c *act.Config) { c.StartWait = time.Nanosecond }))
	<-m.parts.Acts.Read()
	var said strings.Builder
	n := &Node{log: slog.New(slog.NewTextHandler(&said, nil)), parts: m.parts, drainCycles: newDrainCycles()}
	for range 100 { // both are there to be chosen
		if !n.awaitActs(t.Context()) {
			t.Fatal("it does not take part")
		}
	}
	if said.Len() > 0 {
		t.Error(said.String())
	}
}
