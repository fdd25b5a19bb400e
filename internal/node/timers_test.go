package node

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/testing/eventually"
)

// timed notes the timers that handlers get.
type timed struct {
	mu   sync.Mutex
	got  map[string]int // by key/name/payload
	last *client.Event
	fail bool // the next handler of an event that sets timers fails after that
}

func (n *timed) count(what string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.got[what]
}

func (n *timed) handle(_ context.Context, e *client.Event) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.Timer != nil {
		if time.Now().Before(e.Timer.Due) { // on one machine there is one clock
			n.got["too early"]++
		}
		n.last = e
		n.got[e.Key+"/"+e.Timer.Name+"/"+string(e.Payload)]++
		return nil
	}
	e.After(300*time.Millisecond, "first", []byte("1"))
	e.After(0, "second", []byte("2"))
	if n.fail {
		n.fail = false
		return client.RetryAfter(errors.New("not this time"), time.Millisecond)
	}
	return nil
}

// TestTimers: timers that a handler sets, and events of Send, come to the owner of their key when they are due: also
// after the member that set them has gone. A handler that fails sets none, and one that runs twice sets them once.
func TestTimers(t *testing.T) {
	t.Parallel()
	calmly(t, timers)
}

func timers(t testing.TB, g *group) {
	n := &timed{got: map[string]int{}}
	a, b := g.start("a", nil), g.start("b", nil)
	quiet := client.WithLogger(slog.New(slog.DiscardHandler))
	for _, m := range []*member{a, b} {
		g.serve(m, n.handle, quiet, client.WithDrainGrace(5*time.Second), client.WithCall("remind", func(_ context.Context, c *client.Call) ([]byte, error) {
			c.After(10*time.Millisecond, "called", nil)
			return nil, nil
		}))
	}
	g.ready(a, b)
	own, other := g.owned(a), g.owned(b)
	lane, err := client.Dial(a.endpoint, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lane.Close() }()

	n.fail = true
	for _, key := range []string{own, other} {
		g.publishOne(key)
		eventually.True(t, "its timers come", func() bool { return n.count(key+"/first/1") > 0 && n.count(key+"/second/2") > 0 })
	}
	id, err := lane.Send(t.Context(), other, []byte("sent"), client.WithSendAfter(200*time.Millisecond), client.WithSendName("mine"), client.WithSendProperties(map[string]string{"a": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "what was sent comes", func() bool { return n.count(other+"/mine/sent") == 1 })
	n.mu.Lock()
	if a, _ := n.last.Property("a"); n.last.ID != id || a != "1" || len(n.last.Properties) != 1 {
		t.Errorf("sent as %v, and came as %+v", id, n.last)
	}
	n.mu.Unlock()
	for range 2 {
		if _, err := lane.Send(t.Context(), own, []byte("once"), client.WithSendID("order-7")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := lane.Invoke(t.Context(), own, "remind", nil); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the timer of a call, and what was sent, come", func() bool { return n.count(own+"/called/") > 0 && n.count(own+"//once") > 0 })
	due := time.Now().Add(4 * time.Second)
	if _, err := lane.Send(t.Context(), own, []byte("late"), client.WithSendAt(due)); err != nil {
		t.Fatal(err)
	}
	a.stop()
	<-a.ended
	if !time.Now().Before(due) {
		t.Log("the member that set the timer took so long to leave that this run says nothing of the other one")
	}
	eventually.True(t, "the other member gets what was set before", func() bool { return n.count(own+"//late") == 1 })
	for what, want := range map[string]int{
		own + "/called/": 1, own + "/first/1": 1, own + "/second/2": 1, other + "/first/1": 1, other + "/second/2": 1, own + "//once": 1, "too early": 0,
	} {
		if got := n.count(what); got != want {
			t.Errorf("%s came %d times, want %d", what, got, want)
		}
	}
	if _, err := lane.Send(t.Context(), own, nil); !errors.Is(err, client.ErrNotSent) {
		t.Errorf("through a router that has gone: %v", err)
	}
	other2, err := client.Dial(b.endpoint, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other2.Close() }()
	if _, err := other2.Send(t.Context(), own, nil, client.WithSendName("a\nb")); !errors.Is(err, client.ErrNotSent) {
		t.Errorf("a bad name: %v", err)
	}
}

// TestPublishWithoutTheGroup: the sender of an event learns where the router says why it takes no part in its group, as one without an
// application does.
func TestPublishWithoutTheGroup(t *testing.T) {
	t.Parallel()
	if err := new(Node).Publish(nil, nil); err == nil || !strings.Contains(err.Error(), "/readyz") {
		t.Errorf("Publish = %v, want an error that names /readyz", err)
	}
}
