package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/ring"
)

// holding is an application whose handlers wait until they are released or cut.
type holding struct {
	mu       sync.Mutex
	released chan struct{}
	running  int
	cut      int
}

func (h *holding) handle(ctx context.Context, _ *client.Event) error {
	h.mu.Lock()
	released := h.released
	h.running++
	h.mu.Unlock()
	var err error
	select {
	case <-released:
	case <-ctx.Done():
		err = ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if err != nil {
		h.cut++
	}
	return err
}

// hold makes the handlers that begin from now on wait for the release.
func (h *holding) hold() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	released := make(chan struct{})
	h.released = released
	return func() { close(released) }
}

func (g *group) startHolding(m *member, h *holding) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := client.Run(ctx, m.endpoint, h.handle, client.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
			g.t.Errorf("application: %v", err)
		}
	}()
	m.stopApp = sync.OnceFunc(func() { cancel(); <-done })
}

// TestRolloutIsReported: the three members of a group are replaced one after the other, by processes that remember nothing. The first has
// handlers that end while it leaves, those of the second are cut at the drain timeout. Afterwards the group tells all of it.
func TestRolloutIsReported(t *testing.T) {
	t.Parallel()
	calmly(t, rolloutIsReported)
}

func rolloutIsReported(t testing.TB, g *group) {
	app := &holding{}
	app.hold()()
	const timeout = 300 * time.Millisecond
	members := map[string]*member{}
	start := func(name string) {
		m := g.start(name, func(c *Config) {
			audited(c)
			if name == "b" {
				c.Timing.DrainTimeout = timeout
			}
		})
		members[name] = m
		g.startHolding(m, app)
	}
	all := func() []*member { return []*member{members["a"], members["b"], members["c"]} }
	for _, name := range []string{"a", "b", "c"} {
		start(name)
	}
	ready := func() {
		g.ready(all()...)
		g.eventually("all gates are open", func() error {
			open := 0
			for _, m := range all() {
				s := m.Status()
				if open += s.Open; s.Open == 0 || s.Withheld > 0 {
					return fmt.Errorf("%s: %+v", m.cfg.Name, s)
				}
			}
			if open != ring.Partitions {
				return fmt.Errorf("%d are open", open)
			}
			return nil
		})
	}
	ready()
	running := func(name string, n int) int {
		g.publishEach(n, "")
		g.eventually("all handlers run", func() error {
			sum := 0
			for _, m := range all() {
				sum += m.boxes.Stats().Running
			}
			app.mu.Lock()
			defer app.mu.Unlock()
			if sum != n || app.running != n { // a delivery that has not begun is taken back, and does not count
				return fmt.Errorf("%d are delivered, and %d run", sum, app.running)
			}
			return nil
		})
		return members[name].boxes.Stats().Running
	}
	before := time.Now()
	// replace ends a member and starts it again. The handlers are released while it leaves, or when it has ended.
	replace := func(name string, release func(), leaving bool) {
		old := members[name]
		old.stop()
		if leaving {
			g.eventually(name+" has left", func() error {
				if _, is := members["c"].memberNamed(name); is {
					return fmt.Errorf("%s is a member", name)
				}
				if s := old.Status(); s.Open > 0 { // what is answered before it knows of the move does not count
					return fmt.Errorf("%s has open gates: %+v", name, s)
				}
				return nil
			})
			release()
		}
		<-old.ended
		old.stopApp()
		if !leaving {
			release()
		}
		g.settled() // else the next move finds handlers as well
		start(name)
		ready()
	}

	release := app.hold()
	answered := running("a", 60)
	replace("a", release, true)
	release = app.hold()
	cut := running("b", 60)
	replace("b", release, false)
	replace("c", func() {}, false)
	var rollouts report.Rollouts
	g.eventually("all members tell of one rollout", func() error { // on a busy machine some do not answer in time
		if rollouts = members["a"].reports.Rollouts(t.Context(), 1); len(rollouts.Rollouts) != 1 || len(rollouts.Silent) > 0 {
			return fmt.Errorf("%+v", rollouts)
		}
		return nil
	})
	text, _ := json.MarshalIndent(rollouts, "", " ")
	for _, m := range rollouts.Rollouts[0].Members {
		if m.Left < 1 || m.Joined < 1 {
			t.Errorf("%+v", m)
		}
	}
	app.mu.Lock()
	if app.cut != cut || cut == 0 || answered == 0 {
		t.Errorf("%d handlers of b were cut, want %d; a had %d: this run proved little", app.cut, cut, answered)
	}
	app.mu.Unlock()
	var reasons []string
	for _, m := range rollouts.Rollouts[0].Moves {
		if m.Time.Before(before.Add(-time.Second)) { // its clock is that of the log
			continue
		}
		reasons = append(reasons, m.Reason)
		gained, lost := 0, 0
		for _, w := range m.Words {
			gained, lost = gained+w.Gained, lost+w.Lost
		}
		if m.Partitions == 0 || gained != m.Partitions || lost != m.Partitions || m.Waiting > 0 || len(m.Unknown) > 0 || m.Unanswered > 0 || m.Pause <= 0 {
			t.Errorf("%q: %d partitions moved, %d of them to and %d from members that tell: %+v", m.Reason, m.Partitions, gained, lost, m.MoveSum)
		}
		want := report.MoveSum{}
		switch m.Reason {
		case "leave a":
			want.Answered = uint64(answered)
		case "leave b":
			want.Cut = uint64(cut)
			if m.Pause < timeout.Seconds()*9/10 || m.Forced == 0 {
				t.Errorf("the keys of b waited for %v, and its handlers had %v", m.Pause, timeout)
			}
		}
		if m.Answered != want.Answered || m.Cut != want.Cut {
			t.Errorf("%q: %d handlers were answered and %d cut, want %d and %d", m.Reason, m.Answered, m.Cut, want.Answered, want.Cut)
		}
	}
	if got := strings.Join(reasons, "; "); got != "leave a; join a; leave b; join b; leave c; join c" {
		t.Errorf("the moves are %q", got)
	}
	if t.Failed() {
		t.Logf("%s", text)
	}
}

// TestMovesAreBounded: a wait ends when all keys of the partition may run, one that is broken off does not count, and the words of others are
// bounded in number.
func TestMovesAreBounded(t *testing.T) {
	g := newGroup(t)
	m := g.start("a", nil)
	r := newRollout(m.Node)
	token := ownership.TokenOf(0, ownership.Position{Ledger: 1, Entry: 7})
	r.own = []seenMove{{token: token}}
	gate := func(at clock.Instant, state ownership.Gate, withheld ...ring.KeyHash) {
		r.gates(at, []ownership.GateChange{{Partition: 5, Gate: state, Token: token, Withheld: withheld}})
	}
	gate(clock.Instant(time.Second), ownership.Waiting)
	gate(clock.Instant(2*time.Second), ownership.Closed)
	gate(clock.Instant(10*time.Second), ownership.Waiting)
	gate(clock.Instant(11*time.Second), ownership.Open, 3)
	if w := r.words()[0]; w.Waited != 0 || w.Waiting != 1 {
		t.Errorf("%+v, and a key waits still", w)
	}
	gate(clock.Instant(13*time.Second), ownership.Open)
	if w := r.words()[0]; w.Waited != 3 || w.Waiting != 0 {
		t.Errorf("%+v, want a wait of 3 s", w)
	}
	var told report.MoveWords
	for i := range 2 * report.MoveWordsMax {
		told = told.Add(report.MoveWord{Member: "b", Incarnation: "i", At: fmt.Sprint("1:", i)})
	}
	if err := r.take(report.EncodeMoves(told)); err != nil || len(r.words()) != report.MoveWordsMax {
		t.Errorf("%d words, %v", len(r.words()), err)
	}
	if err := r.take([]byte("[{]")); err == nil {
		t.Error("malformed words were taken")
	}
}
