package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/claim"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/eventually"
)

// memGroupLogs are the logs of some groups in memory.
type memGroupLogs struct {
	groupLogs
	mu   sync.Mutex
	logs map[string]*controllog.Mem
}

func newMemGroupLogs() *memGroupLogs {
	m := &memGroupLogs{logs: map[string]*controllog.Mem{}}
	open := func(topic string) (controllog.Transport, error) { return m.log(topic), nil }
	m.groupLogs = groupLogs{open: open, alive: 300 * time.Millisecond}
	return m
}

func (m *memGroupLogs) log(topic string) *controllog.Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.logs[topic] == nil {
		m.logs[topic] = controllog.NewMem()
	}
	return m.logs[topic]
}

// claim appends the claim that a router of these settings makes.
func (m *memGroupLogs) claim(t *testing.T, cfg config.Config) {
	t.Helper()
	places, err := claimedBy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range places {
		data, err := claim.Encode(claim.Record{Resources: p.Resources, Identity: cfg.Identity(), Began: true, Gen: 2})
		if err != nil {
			t.Fatal(err)
		}
		m.log(p.Topic).Put(data)
	}
}

// held lists the claims with their holders, in short form.
func (m *memGroupLogs) held(t *testing.T, cfg config.Config) string {
	t.Helper()
	claims, err := m.show(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, c := range claims {
		all = append(all, c.Resource[strings.LastIndex(c.Resource, "/")+1:]+": "+c.Held)
	}
	return strings.Join(all, ", ")
}

// TestGroupShow: the page and the JSON name the holder, the differences, and the generation.
func TestGroupShow(t *testing.T) {
	m := newMemGroupLogs()
	ours := settings(t).Config
	if got := m.held(t, ours); got != "__ring-orders: nobody, orders orders: nobody, orders-orders-RETRY orders: nobody" {
		t.Errorf("at first: %s", got)
	}
	m.claim(t, ours)
	other := ours
	other.Key.From = "property:user"
	if got := m.held(t, other); got != "__ring-orders: another group, orders orders: another group, orders-orders-RETRY orders: another group" {
		t.Errorf("with another key: %s", got)
	}
	claims, err := m.show(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	showClaims(&page{out: &text}, claims)
	for _, want := range []string{
		`control persistent://public/default/__ring-orders: key.from is "property:user" here and "message_key" there`, "up to generation 2",
		"__ring-orders                    a group with other settings  up to",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the page does not say %s:\n%s", want, text.String())
		}
	}
	data, err := json.Marshal(claims[0])
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), `"differences":[{"name":"key.from","ours":"property:user","theirs":"message_key"}]`) {
		t.Errorf("JSON: %s", data)
	}
}

// TestAMistypedTopic: a router with a mistyped topic claims the control topic, which the corrected settings do not get. What
// the commands say then leads to the topics, whose names no claim has, and to the release, with the topic as a flag.
func TestAMistypedTopic(t *testing.T) {
	m := newMemGroupLogs()
	ours := settings(t).Config
	mistyped := ours
	mistyped.Pulsar.Topics = []string{"ordres"}
	m.claim(t, mistyped)
	claims, err := m.show(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	showClaims(&page{out: &text}, claims)
	err = m.release(t.Context(), ours, releaseOptions{}, io.Discard)
	if !errors.Is(err, node.ErrIdentity) {
		t.Fatalf("the release with the corrected settings: %v", err)
	}
	for name, told := range map[string]string{"group show": text.String(), "group release": err.Error()} {
		if !strings.Contains(told, "their names follow from pulsar.topics: compare these first") {
			t.Errorf("%s says nothing of pulsar.topics:\n%s", name, told)
		}
	}
	if !strings.Contains(text.String(), "run `router group release` with the settings there") || !strings.Contains(err.Error(), "flags such as --pulsar.topics") {
		t.Errorf("neither says how to go on:\n%s\n%v", text.String(), err)
	}
	if err := m.release(t.Context(), mistyped, releaseOptions{}, io.Discard); err != nil {
		t.Fatalf("the release with the mistyped topic: %v", err)
	}
	m.claim(t, ours)
	if got := m.held(t, ours); got != "__ring-orders: this group, orders orders: this group, orders-orders-RETRY orders: this group" {
		t.Errorf("after the release: %s", got)
	}
}

func TestGroupRelease(t *testing.T) {
	ours := settings(t).Config
	other := ours
	other.Key.From = "property:user"
	const held = "__ring-orders: this group, orders orders: this group, orders-orders-RETRY orders: this group"
	const free = "__ring-orders: nobody, orders orders: nobody, orders-orders-RETRY orders: nobody"

	for name, test := range map[string]struct {
		with  config.Config
		o     releaseOptions
		lives bool
		err   error
		after string
	}{
		"the holder, who was stopped":     {with: ours, after: free},
		"members live":                    {with: ours, lives: true, err: errAlive, after: held},
		"by force, though they live":      {with: ours, lives: true, o: releaseOptions{force: true}, after: free},
		"with other settings":             {with: other, err: node.ErrIdentity, after: held},
		"with other settings, by force":   {with: other, o: releaseOptions{force: true}, after: free},
		"one topic that was taken out":    {with: ours, o: releaseOptions{topics: []string{"orders"}}, after: "__ring-orders: this group, orders orders: nobody, orders-orders-RETRY orders: this group"},
		"a topic that nobody holds":       {with: ours, o: releaseOptions{topics: []string{"more"}}, after: held},
		"what is of no group of gossip's": {with: gossiping(ours), err: node.ErrIdentity, after: held},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMemGroupLogs()
			m.claim(t, ours)
			if test.lives {
				m.alive = eventually.Most // it ends with the first Beat
				stop := beats(t, m.log(ours.ControlTopic()))
				defer stop()
			}
			var out bytes.Buffer
			err := m.release(t.Context(), test.with, test.o, &out)
			if !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
				t.Errorf("%v, want %v", err, test.err)
			}
			if got := m.held(t, ours); got != test.after {
				t.Errorf("afterwards: %s, want %s\n%s", got, test.after, out.String())
			}
		})
	}
	if code := exitCode(errors.Join(node.ErrIdentity)); code != exitIdentity {
		t.Errorf("a release with other settings ends with %d", code)
	}
}

func gossiping(cfg config.Config) config.Config {
	cfg.Ownership.Mode = config.ModeGossip
	return cfg
}

// beats writes the Beats of a member.
func beats(t *testing.T, log *controllog.Mem) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for seq := uint64(1); ; seq++ {
			data, err := controllog.Encode(ownership.Record{
				LogVersion: ownership.LogVersionMin, Group: "orders", Inc: ownership.Incarnation{1}, Body: &ownership.Beat{Seq: seq},
			})
			if err != nil {
				t.Error(err)
				return
			}
			log.Put(data)
			select {
			case <-ticker.C:
			case <-done:
				return
			}
		}
	})
	return func() { close(done); writing.Wait() }
}

// TestGroupReleaseSaysSo: what was released and cannot be said is an error.
func TestGroupReleaseSaysSo(t *testing.T) {
	ours := settings(t).Config
	m := newMemGroupLogs()
	if err := m.release(t.Context(), ours, releaseOptions{}, fullDisk{}); !errors.Is(err, errFull) {
		t.Errorf("%v, want %v", err, errFull)
	}
}

// TestNoTopicIsCreatedByAQuestion: of a mistyped group, router audit and router group show say that it is not there, and open no log of it.
func TestNoTopicIsCreatedByAQuestion(t *testing.T) {
	m := newMemGroupLogs()
	var broken error
	m.exists = func(context.Context, string) (bool, error) { return false, broken }
	ours := settings(t).Config
	if _, err := m.audit(t.Context(), ours); !errors.Is(err, errNoGroup) || !strings.Contains(err.Error(), "there is no topic persistent://public/default/__ring-orders;") || exitCode(err) != exitFailed {
		t.Errorf("audit: %v", err)
	}
	claims, err := m.show(t.Context(), ours)
	if err != nil || len(claims) == 0 || !claims[0].Missing || claims[0].Held != heldByNobody {
		t.Errorf("group show: %+v, %v", claims, err)
	}
	var text bytes.Buffer
	showClaims(&page{out: &text}, claims)
	if n := strings.Count(text.String(), "there is no topic "+claims[0].Topic); n != 1 {
		t.Errorf("the page says %d times that there is no such topic:\n%s", n, text.String())
	}
	if len(m.logs) != 0 {
		t.Errorf("%d topics are created", len(m.logs))
	}
	broken = errors.New("away")
	if _, err := m.audit(t.Context(), ours); !errors.Is(err, broken) || errors.Is(err, errNoGroup) {
		t.Errorf("audit without an answer: %v", err)
	}
	if _, err := m.show(t.Context(), ours); !errors.Is(err, broken) {
		t.Errorf("group show without an answer: %v", err)
	}
}
