package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/mailbox"
)

// letters collects the dead letters of a group.
type letters struct {
	g   *group
	mu  sync.Mutex
	got map[string]string // payload → reason
	n   int
}

func (g *group) letters() *letters {
	g.t.Helper()
	topic := g.source.Resolved().DeadLetterTopic
	c, err := g.broker.Subscribe(g.t.Context(), membroker.SubscribeOptions{Subscription: "test", Topics: []string{topic}})
	if err != nil {
		g.t.Fatal(err)
	}
	l := &letters{g: g, got: map[string]string{}}
	c.Permit(1000)
	ctx, cancel := context.WithCancel(g.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			entries, err := c.Receive(ctx)
			if err != nil {
				return
			}
			l.mu.Lock()
			for _, e := range entries {
				for _, m := range e.Messages {
					l.got[string(m.Payload)] = m.Properties["ringfence-reason"]
					l.n++
				}
			}
			l.mu.Unlock()
		}
	}()
	g.t.Cleanup(func() { cancel(); c.Close(); <-done })
	return l
}

// want waits for the letter of an event, and checks that there are so many in all.
func (l *letters) want(payload, reason string, n int) {
	l.g.t.Helper()
	l.g.eventually("the dead letter of "+payload, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !strings.HasPrefix(l.got[payload], reason) || l.n != n {
			return fmt.Errorf("there are %d: %v", l.n, l.got)
		}
		return nil
	})
}

// skip orders a skip at a member.
func (m *member) skip(ctx context.Context, key event.Key, id event.MessageID) (act.Shown, act.Result, error) {
	return m.Acts().Skip(ctx, act.Order{Key: key, By: "alice", From: "127.0.0.1:1", Reason: "poison pill", Event: id})
}

// publishAlone publishes an event as an entry of its own, and returns its id.
func (g *group) publishAlone(key string) event.MessageID {
	g.t.Helper()
	at, err := g.broker.Publish(g.t.Context(), "persistent://public/default/orders", []membroker.Message{{Key: key, Payload: fmt.Appendf(nil, "event-%d", len(g.published))}})
	if err != nil {
		g.t.Fatal(err)
	}
	g.published = append(g.published, key)
	return event.MessageID{Ledger: at.Ledger, Entry: at.Entry, Batch: -1, TopicPartition: -1}
}

// acked waits until every event is, whatever other topics have.
func (g *group) acked() {
	g.t.Helper()
	g.eventually("every event is acked", func() error {
		if s := g.broker.TopicStats("persistent://public/default/orders", "orders"); s.Acked != len(g.published) || s.Backlog+s.Unacked != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// end waits until a member knows the end of the newest act.
func (g *group) end(m *member, want string) {
	g.t.Helper()
	g.eventually("the end of the skip is known", func() error {
		if list := m.Acts().List(); len(list) == 0 || list[0].End != want {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
}

// running are handlers that answer when the test says so.
type running struct {
	begun  chan *client.Event
	answer chan error
	cut    chan error // causes
}

// handle waits for an answer of the test. It notes when it is cut, and does not heed it.
func (r *running) handle(ctx context.Context, e *client.Event) error {
	r.begun <- e
	stop := context.AfterFunc(ctx, func() { r.cut <- context.Cause(ctx) })
	defer stop()
	return <-r.answer
}

// TestSkipOfWhatRuns: the handler is cut at once. If it answers that the event is done, it is; if it fails, or does not answer
// until its deadline, the event is a dead letter. The key's next event begins only then.
func TestSkipOfWhatRuns(t *testing.T) {
	t.Parallel()
	calmly(t, skipOfWhatRuns)
}

func skipOfWhatRuns(t testing.TB, g *group) {
	acts := controllog.NewMem()
	r := &running{begun: make(chan *client.Event, 10), answer: make(chan error, 10), cut: make(chan error, 10)}
	a := g.startWith("a", nil, actsOn("a", acts, nil))
	g.handle(a, r.handle)
	g.ready(a)
	dead := g.letters()
	next := func(want string) {
		t.Helper()
		select {
		case e := <-r.begun:
			if string(e.Payload) != want {
				t.Fatalf("%s begins, want %s", e.Payload, want)
			}
		case <-t.Context().Done():
			t.Fatal("nothing begins")
		}
	}
	skip := func(id *event.MessageID) act.Shown {
		t.Helper()
		if id == nil {
			running := a.boxes.Inspect("k").Event
			id = &running
		}
		s, result, err := a.skip(t.Context(), "k", *id)
		if err != nil || result != act.Skipping {
			t.Fatalf("skip: %+v %s %v", s, result, err)
		}
		if cause := <-r.cut; !errors.Is(cause, client.ErrHandlerTimeout) {
			t.Errorf("the handler is cut by %v", cause)
		}
		return s
	}
	g.publishKeys("k", "k", "k", "k")

	next("event-0")
	found, err := FirstEvent(t.Context(), a.reports, "k")
	if err != nil {
		t.Fatal(err)
	}
	skip(&found)
	if _, err := FirstEvent(t.Context(), a.reports, "k"); !errors.Is(err, act.ErrUnknown) {
		t.Errorf("the first event beside a skip: %v", err)
	}
	if len(r.begun) > 0 || a.boxes.Inspect("k").Wait != mailbox.WaitHandler {
		t.Error("the next event begins before the answer")
	}
	r.answer <- nil
	g.end(a, "done")

	next("event-1")
	s := skip(nil)
	r.answer <- errors.New("no")
	dead.want("event-1", "skipped by alice: poison pill (act "+s.ID+")", 1)
	g.end(a, "dead_letter")

	next("event-2")
	skip(nil) // and there is no answer
	next("event-3")
	dead.want("event-2", "skipped by alice", 2)
	g.end(a, "dead_letter")
	r.answer <- nil // of event-2 or event-3: the late one counts for nothing
	r.answer <- nil
	g.acked()
	if s := a.boxes.Stats(); s.Skipped != 2 || s.SkippedDone != 1 {
		t.Errorf("%d skipped, %d done, want 2 and 1", s.Skipped, s.SkippedDone)
	}
	dead.want("event-2", "skipped by alice", 2)
	if _, err := FirstEvent(t.Context(), a.reports, "another key"); !errors.Is(err, act.ErrNothing) {
		t.Errorf("the first event of a key that has none: %v", err)
	}
}

// TestSkipOutlastsMoves: any member takes a skip. The first event of a key on hold leaves at once, a second order of the
// same skip changes nothing, and an event that is skipped while no member has it becomes a dead letter at whichever owner gets it.
func TestSkipOutlastsMoves(t *testing.T) {
	t.Parallel()
	calmly(t, skipOutlastsMoves)
}

func skipOutlastsMoves(t testing.TB, g *group) {
	h, start := g.withActs()
	a, b := start("a"), start("b")
	g.ready(a, b)
	dead := g.letters()
	const key = "stuck"
	if _, _, err := a.Acts().Hold(t.Context(), act.Order{Key: key, By: "alice", From: "127.0.0.1:1", Reason: "a look"}); err != nil {
		t.Fatal(err)
	}
	g.eventually("b holds the key", func() error {
		if _, held := b.Acts().Held(key); !held {
			return errors.New("it does not")
		}
		return nil
	})
	g.goByActs(b)
	var ids []event.MessageID
	for range 4 {
		ids = append(ids, g.publishAlone(key))
	}
	g.waitsOnHold(key, 4, a, b)
	id, err := FirstEvent(t.Context(), b.reports, key)
	first := slices.Index(ids, id)
	if err != nil || first < 0 {
		t.Fatalf("the first event is %v (%v), of %v", id, err, ids)
	}
	skipped, result, err := b.skip(t.Context(), key, id)
	if err != nil || result != act.Skipping || skipped.Event != id.String() {
		t.Fatalf("skip: %+v %s %v", skipped, result, err)
	}
	dead.want(fmt.Sprintf("event-%d", first), "skipped by alice: poison pill", 1)
	g.waitsOnHold(key, 3, a, b)
	g.end(a, "dead_letter")
	if again, result, err := a.skip(t.Context(), key, id); err != nil || result != act.Already || again.ID != skipped.ID || again.End != "dead_letter" {
		t.Errorf("again: %+v %s %v", again, result, err)
	}
	other := (first + 1) % len(ids)
	if _, _, err := a.skip(t.Context(), key, ids[other]); err != nil {
		t.Fatal(err)
	}
	dead.want(fmt.Sprintf("event-%d", other), "skipped by alice", 2)
	g.waitsOnHold(key, 2, a, b)

	c := start("c")
	g.ready(c)
	coming := ids[3]
	coming.Entry++
	if _, _, err := c.skip(t.Context(), key, coming); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*member{a, b} {
		m.stop()
		g.closes(m.cfg.Name+" has ended", m.ended)
	}
	g.eventually("c owns everything", func() error {
		if s := c.Status(); s.Open == 0 || s.Waiting > 0 || s.Pending > 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	g.publishAlone(key)
	g.publishAlone(key)
	dead.want("event-4", "skipped by alice", 3)
	g.waitsOnHold(key, 3, c)
	if at := newReporter(c.Node).Key(t.Context(), key); len(at.Skips) != 3 || at.Skips[0].Event != coming.String() || at.Skips[0].End != "dead_letter" && at.Skips[0].End != "" {
		t.Errorf("c reports %+v", at.Skips)
	}
	if s := newReporter(c.Node).Status(); s.Acts == nil || s.Acts.Skips == nil || *s.Acts.Skips != 3 {
		t.Errorf("c reports acts %+v", s.Acts)
	}
	if _, _, err := c.Acts().Release(t.Context(), act.Order{Key: key, By: "alice", From: "127.0.0.1:1", Reason: "fixed"}); err != nil {
		t.Fatal(err)
	}
	g.acked()
	got, want := h.of(key), []string{"event-5"}
	for i := range ids {
		if i != first && i != other {
			want = append(want, fmt.Sprintf("event-%d", i))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("handled %v, want %v once each", got, want)
	}
	dead.want("event-4", "skipped by alice", 3)
}
