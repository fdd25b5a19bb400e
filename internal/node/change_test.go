package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// meter follows every event of a steady load from its publication to the start of its
// handler, to tell how long keys wait while the group changes.
type meter struct {
	*group
	work func(key string) time.Duration

	mu       sync.Mutex
	sent     []clock.Instant
	handled  []handled
	starts   map[string]int // how often each event was begun
	overlaps int
	running  map[string]bool
}

// handled is one handling.
type handled struct {
	key        string
	event      int
	id         event.MessageID
	token      int64
	start, end clock.Instant
}

func newMeter(g *group) *meter {
	return &meter{
		group: g, starts: map[string]int{}, running: map[string]bool{},
		work: func(string) time.Duration { return 500 * time.Microsecond },
	}
}

// app connects an application to m and returns how to stop it.
func (t *meter) app(m *member) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = client.Run(ctx, m.endpoint, t.handle, client.WithLogger(slog.New(slog.DiscardHandler)), client.WithDrainGrace(5*time.Second))
	}()
	m.stopApp = sync.OnceFunc(func() { cancel(); <-done })
}

func (t *meter) handle(_ context.Context, e *client.Event) error {
	n, err := strconv.Atoi(string(e.Payload))
	if err != nil {
		return err
	}
	h := handled{key: e.Key, event: n, id: idOf(e.ID), token: e.FencingToken, start: clock.Now()}
	t.mu.Lock()
	t.starts[string(e.Payload)]++
	if t.running[e.Key] {
		t.overlaps++
	}
	t.running[e.Key] = true
	t.mu.Unlock()
	time.Sleep(t.work(e.Key))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running[e.Key] = false
	h.end = clock.Now()
	t.handled = append(t.handled, h)
	return nil
}

func idOf(id client.MessageID) event.MessageID {
	return event.MessageID{Ledger: id.Ledger, Entry: id.Entry, Batch: int32(id.Batch), TopicPartition: int32(id.TopicPartition)}
}

// doneAt fails for events that were done and that the present owner of their partition
// would work on if they were delivered again. It counts those that it answers.
func (t *meter) doneAt(members ...*member) (answered map[string]int) {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	answered = map[string]int{}
	forgotten := 0
	for _, h := range t.handled {
		again := &event.Event{ID: h.id, Key: event.Key(h.key), Partition: ring.PartitionOf(h.key), Handle: 1 << 40}
		for _, m := range members {
			if m.Table().Owner(again.Partition).Inc != m.self.Load().inc {
				continue
			}
			var out mailbox.Output
			m.boxes.Accept(mailbox.Local, event.Position{}, event.RefsTo(again), &out)
			if len(out.Answers) == 1 && out.Answers[0].Verdicts[0].Kind == event.Done {
				answered[m.cfg.Name]++
			} else {
				forgotten++
			}
		}
	}
	if forgotten > 0 {
		for _, m := range members {
			for result := range admission.Results {
				t.t.Logf("%s: %v ids are %v", m.cfg.Name, counted(m.metrics.admitted.WithLabelValues(result.String())), result)
			}
		}
		t.t.Errorf("%d of %d events that were done would be done again", forgotten, len(t.handled))
	}
	return answered
}

// doneOf returns the events that were done, of the partitions that members have by the first one's table. One event may have been handled twice, if
// a lease ran out beneath its handler.
func (t *meter) doneOf(members ...*member) map[event.MessageID]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	done := map[event.MessageID]bool{}
	for _, h := range t.handled {
		owner := members[0].Table().Owner(ring.PartitionOf(h.key)).Name
		if slices.ContainsFunc(members, func(m *member) bool { return m.cfg.Name == owner }) {
			done[h.id] = true
		}
	}
	return done
}

// TestMovedPartitionsBringWhatWasDone: after a join and after a leave, the new owners know the
// events that the old owners have finished.
func TestMovedPartitionsBringWhatWasDone(t *testing.T) {
	t.Parallel()
	calmly(t, movedPartitionsBringWhatWasDone)
}

func movedPartitionsBringWhatWasDone(t testing.TB, group *group) {
	g := newMeter(group)
	a, b := g.start("a", nil), g.start("b", nil)
	g.app(a)
	g.app(b)
	g.ready(a, b)
	stop := g.load(1000, 500*time.Millisecond)
	time.Sleep(time.Second)
	stop()
	g.settled()

	c := g.start("c", nil)
	g.app(c)
	g.ready(c)
	g.eventually("the windows are there", func() error { // c may have to ask the broker first
		if n, want := c.boxes.Stats().WindowIDs, len(g.doneOf(c)); n < want || want < len(g.handled)/6 {
			return fmt.Errorf("%d ids of %d events", n, want)
		}
		return nil
	})
	for _, m := range []*member{a, b} {
		<-m.pool.HandedOver()
	}
	if answered := g.doneAt(a, b, c); answered["c"] == 0 {
		t.Errorf("nothing had moved to c: %v", answered)
	}
	a.stop()
	<-a.ended
	g.eventually("b and c remember all", func() error {
		n, all := b.boxes.Stats().WindowIDs+c.boxes.Stats().WindowIDs, g.doneOf(b, c)
		if rest := g.doneOf(b, c, a); n < len(all) || len(all) < len(rest) {
			return fmt.Errorf("%d ids of %d events, and %d events with those of the member that has left", n, len(all), len(rest))
		}
		return nil
	})
	answered := g.doneAt(b, c)
	if answered["b"]+answered["c"] != len(g.handled) {
		t.Errorf("b and c answer for %v events, want %d", answered, len(g.handled))
	}
	t.Logf("of %d events: %v", len(g.handled), answered)
}

// load publishes one event of every key in each round, spread over it. What does not fit within loadMax is late.
func (t *meter) load(keys int, round time.Duration) (stop func()) {
	const pace = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		begun, next := clock.Now(), 0
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			due := int(clock.Now().Sub(begun) * time.Duration(keys) / round)
			s := t.broker.SubscriptionStats("orders")
			if room := max(0, loadMax-s.Backlog-s.Unacked); due > next+room {
				begun = begun.Add(round * time.Duration(due-next-room) / time.Duration(keys))
				due = next + room
			}
			t.mu.Lock()
			var batch []membroker.Message
			for ; next < due; next++ {
				batch = append(batch, membroker.Message{Key: fmt.Sprintf("user-%d", next%keys), Payload: []byte(strconv.Itoa(next))})
				t.sent = append(t.sent, clock.Now())
				t.published = append(t.published, strconv.Itoa(next))
			}
			t.mu.Unlock()
			for len(batch) > 0 {
				n := min(20, len(batch))
				if _, err := t.broker.Publish(ctx, "persistent://public/default/orders", batch[:n]); err != nil && ctx.Err() == nil {
					t.t.Error(err)
				}
				batch = batch[n:]
			}
		}
	}()
	return func() { cancel(); <-done }
}

// waits holds the waits of events that were published in a span of time.
type waits struct {
	moved, stayed     []time.Duration // of keys that changed their owner in the span, and of all other keys
	movedOwn          []time.Duration // the former without the time in which an event of the key ran
	duplicates, total int
}

func (t *meter) between(from, to clock.Instant) waits {
	t.mu.Lock()
	defer t.mu.Unlock()
	var w waits
	byKey := map[string][]handled{}
	for _, h := range t.handled {
		byKey[h.key] = append(byKey[h.key], h)
	}
	for _, hs := range byKey {
		slices.SortFunc(hs, func(a, b handled) int { return int(a.start - b.start) })
		for i, h := range hs {
			sent := t.sent[h.event]
			if sent.Before(from) || to.Before(sent) {
				continue
			}
			w.total++
			wait, own := h.start.Sub(sent), h.start.Sub(sent)
			if i > 0 {
				own = min(own, h.start.Sub(hs[i-1].end))
			}
			if i > 0 && hs[i-1].token != h.token {
				w.moved, w.movedOwn = append(w.moved, wait), append(w.movedOwn, own)
			} else {
				w.stayed = append(w.stayed, own)
			}
		}
	}
	for _, n := range t.starts {
		w.duplicates += n - 1
	}
	return w
}

// spread describes durations.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "none"
	}
	slices.Sort(d)
	at := func(q float64) time.Duration { return d[int(q*float64(len(d)-1))].Round(100 * time.Microsecond) }
	return fmt.Sprintf("n %d p50 %v p99 %v max %v", len(d), at(0.5), at(0.99), at(1))
}

func (w waits) String() string {
	return fmt.Sprintf("%d events, %d duplicates; moved: %s; moved without own handler: %s; stayed: %s",
		w.total, w.duplicates, spread(w.moved), spread(w.movedOwn), spread(w.stayed))
}

// span measures the waits while do runs, and a moment longer.
func (t *meter) span(what string, do func()) waits {
	from := clock.Now()
	do()
	time.Sleep(700 * time.Millisecond)
	to := clock.Now()
	time.Sleep(500 * time.Millisecond)
	w := t.between(from, to)
	t.t.Logf("%-10s %v", what, w)
	return w
}

// TestKeysKeepFlowing reports how long keys wait in a calm group, a join and a leave. It asserts only
// figures that a loaded machine reaches too.
func TestKeysKeepFlowing(t *testing.T) {
	t.Parallel()
	g := newMeter(newGroup(t))
	if d := os.Getenv("NODE_TEST_WORK"); d != "" {
		work, err := time.ParseDuration(d)
		if err != nil {
			t.Fatal(err)
		}
		g.work = func(string) time.Duration { return work }
	}
	a, b := g.start("a", nil), g.start("b", nil)
	g.app(a)
	g.app(b)
	g.ready(a, b)
	stop := g.load(1000, time.Second)
	g.span("calm", func() { time.Sleep(time.Second) })
	c := g.start("c", nil)
	g.span("join", func() {
		g.app(c)
		g.ready(c)
	})
	g.span("calm", func() { time.Sleep(time.Second) })
	g.span("leave", func() {
		a.stop()
		<-a.ended
	})
	stop()
	g.settled()
	if g.overlaps > 0 {
		t.Errorf("%d overlaps", g.overlaps)
	}
}

// TestWhoWaitsForARunningHandler has slow handlers running while partitions move. It reports how long
// all keys of a partition wait for the handlers running on it (see docs/adr), and how long all other
// keys wait.
func TestWhoWaitsForARunningHandler(t *testing.T) {
	t.Parallel()
	const slow = 2 * time.Second
	g := newMeter(newGroup(t))
	g.work = func(key string) time.Duration {
		if strings.HasSuffix(key, "77") { // every hundredth
			return slow
		}
		return 500 * time.Microsecond
	}
	a, b := g.start("a", nil), g.start("b", nil)
	g.app(a)
	g.app(b)
	g.ready(a, b)
	stop := g.load(10000, 5*time.Second) // 20 slow ones a second, 40 at a time
	time.Sleep(3 * time.Second)
	c := g.start("c", nil)
	from := clock.Now()
	g.app(c)
	g.ready(c)
	time.Sleep(time.Second)
	to := clock.Now()
	time.Sleep(slow)
	stop()
	g.settled()

	beside, alone := g.moved(from, to)
	t.Logf("moved, beside a running handler of another key: %s", spread(beside))
	t.Logf("moved, beside none: %s", spread(alone))
	if len(alone) == 0 {
		t.Error("no key has moved: this run proved nothing")
	}
	if g.overlaps > 0 {
		t.Errorf("%d overlaps", g.overlaps)
	}
}

// moved returns how long events published in a span waited whose key had another owner
// when they were begun than before, apart from those whose own key was running: where
// another key of the partition ran under the old owner meanwhile, and where none did.
func (t *meter) moved(from, to clock.Instant) (beside, alone []time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	on := map[ring.Partition][]handled{}
	for _, h := range t.handled {
		on[ring.PartitionOf(h.key)] = append(on[ring.PartitionOf(h.key)], h)
	}
	for _, hs := range on {
		old := slices.MinFunc(hs, func(a, b handled) int { return cmp.Compare(a.token, b.token) }).token
		for _, h := range hs {
			sent := t.sent[h.event]
			if h.token == old || sent.Before(from) || to.Before(sent) {
				continue
			}
			ran := func(own bool) bool {
				return slices.ContainsFunc(hs, func(o handled) bool {
					return o.token == old && (o.key == h.key) == own && o.start.Before(h.start) && sent.Before(o.end)
				})
			}
			switch wait := h.start.Sub(sent); {
			case ran(true):
			case ran(false):
				beside = append(beside, wait)
			default:
				alone = append(alone, wait)
			}
		}
	}
	return beside, alone
}

// TestRollingRestart restarts five members one after the other, under their names.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	g := newMeter(newGroup(t))
	names := []string{"a", "b", "c", "d", "e"}
	members := map[string]*member{}
	for _, name := range names {
		members[name] = g.start(name, nil)
		g.app(members[name])
	}
	for _, name := range names {
		g.ready(members[name])
	}
	stop := g.load(500, time.Second)
	time.Sleep(time.Second)
	before := g.epochs()
	for _, name := range names {
		g.span("restart "+name, func() {
			old := members[name]
			old.stop()
			<-old.ended
			old.stopApp()
			members[name] = g.start(name, nil)
			g.app(members[name])
			g.ready(members[name])
		})
	}
	stop()
	g.settled()
	if g.overlaps > 0 {
		t.Errorf("%d overlaps", g.overlaps)
	}
	epochs := g.epochs()
	since := epochs[len(before)-1:]
	moves := make(map[int]int) // how often → partitions
	for p := range ring.Partition(ring.Partitions) {
		moves[movesOf(p, since)]++
	}
	t.Logf("%d epochs; partitions by their moves: %v", len(since)-1, moves)
	// A machine that stops for seconds loses members: they are removed, or join once more.
	lost := len(since)-1 > 2*len(names) || slices.ContainsFunc(since[1:], func(e epoch) bool {
		return !strings.HasPrefix(e.reason, "leave ") && !strings.HasPrefix(e.reason, "join ")
	})
	// Members that join one by one leave partitions where they are, some of which are then not where the ring has them.
	home, err := ring.New([]ring.Member{"a", "b", "c", "d", "e"}, ring.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := 0
	for p := range ring.Partition(ring.Partitions) {
		if since[0].owners[p] != home.Owner(p).String() {
			elsewhere++
		}
	}
	if !lost && moves[2] < ring.Partitions-2*elsewhere {
		t.Errorf("partitions by their moves: %v, want 2 for each but about %d: away and back", moves, elsewhere)
	}
}

// epoch is one table of the log.
type epoch struct {
	owners []string // partition → name of its owner
	reason string
}

// epochs returns the tables of the log: each names its owners by the names of members.
func (t *meter) epochs() []epoch {
	t.t.Helper()
	ctx, cancel := context.WithCancel(t.t.Context())
	defer cancel()
	end := t.log.Put(nil) // an undecodable record
	names := map[ownership.Incarnation]string{}
	var list []epoch
	cur := event.Position{}
	add := func(table []uint16, members []ownership.Incarnation, reason string) {
		e := epoch{reason: reason, owners: make([]string, len(table))}
		for p, i := range table {
			e.owners[p] = names[members[i]]
		}
		list = append(list, e)
	}
	_ = t.log.Tail(ctx, event.Position{Ledger: 1}, 0, func() {}, func(x controllog.Entry) {
		if x.At == end {
			cancel()
			return
		}
		r, err := controllog.Decode("orders", x.Data)
		if err != nil {
			return
		}
		switch b := r.Body.(type) {
		case *ownership.Genesis:
			var members []ownership.Incarnation
			for _, n := range b.Members {
				names[n.Inc] = n.Name
				members = append(members, n.Inc)
			}
			cur = x.At
			add(b.Table, members, "genesis")
		case *ownership.Hello:
			names[b.Node.Inc] = b.Node.Name
		case *ownership.Epoch:
			if b.Prev == cur {
				cur = x.At
				add(b.Table, b.Members, b.Reason)
			}
		}
	})
	return list
}

// movesOf returns how often a partition changes its owner.
func movesOf(p ring.Partition, epochs []epoch) (moves int) {
	for i := range epochs[1:] {
		if epochs[i].owners[p] != epochs[i+1].owners[p] {
			moves++
		}
	}
	return moves
}
