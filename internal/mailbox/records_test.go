package mailbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// remembering is mailboxes with one worker and open gates that keep a history, at a time that
// the test sets.
type remembering struct {
	*Mailboxes
	t   *testing.T
	now clock.Instant
	out Output
	id  int64
}

func newRemembering(t *testing.T) *remembering {
	m := &remembering{t: t, now: clock.Instant(time.Hour)}
	m.Mailboxes = NewMailboxes(DefaultConfig(), modelRetry, "me", func() clock.Instant { return m.now })
	m.Remember(history.DefaultConfig())
	m.SetGates(openAll(), event.Position{Ledger: 1, Entry: 5}, &m.out)
	m.WorkerUp(1, &m.out)
	return m
}

func (m *remembering) accept(key event.Key) {
	m.id++
	m.Accept(Local, event.Position{}, event.RefsTo(&event.Event{
		Handle: event.Handle(m.id), ID: event.MessageID{Ledger: 7, Entry: m.id, Batch: -1, TopicPartition: -1}, Key: key, Partition: ring.PartitionOf(string(key)),
	}), &m.out)
}

func (m *remembering) takeOne() event.Delivery {
	m.t.Helper()
	got := m.Take(openLease, 1, 100, nil)
	if len(got) != 1 {
		m.t.Fatalf("%d deliveries, want 1", len(got))
	}
	return got[0]
}

func (m *remembering) finish(d event.Delivery, r event.Result) {
	r.Delivery = d.ID
	m.Finish([]event.Result{r}, &m.out)
}

func (m *remembering) gate(p ring.Partition, gate ownership.Gate, token ownership.Token) {
	m.SetGates([]ownership.GateChange{{Partition: p, Gate: gate, Token: token}}, event.Position{Ledger: 1, Entry: 6}, &m.out)
}

// The history of a key has each attempt with its fence and its end, what moved, and what is here;
// a delivery that ends after its partition has moved has the fence under which it began.
func TestHistoryOfAKey(t *testing.T) {
	m := newRemembering(t)
	const key = "alice"
	p, hash := ring.PartitionOf(key), ring.HashOf(key)
	m.gate(p, ownership.Open, 5)
	m.accept(key)
	accepted := m.now
	m.now = m.now.Add(time.Second)
	first := m.takeOne()
	m.now = m.now.Add(time.Second)
	m.finish(first, event.Result{Kind: event.ResultRetry, Reason: "no", Ran: event.Interval{Start: 1, Length: 2}})
	m.now = m.now.Add(time.Hour)
	m.Tick(&m.out)
	second := m.takeOne()
	m.accept(key)
	m.accept("bob") // another key
	m.gate(p, ownership.Draining, 0)
	m.now = m.now.Add(time.Second)
	m.finish(second, event.Result{Kind: event.ResultCancelled})

	got, oldest := m.History(hash)
	type end struct {
		id    int64
		n     uint16
		end   history.End
		fence event.Fence
	}
	var ends []end
	for _, a := range got {
		ends = append(ends, end{a.ID.Entry, a.Number, a.End, a.Fence})
	}
	want := []end{{1, 1, history.Retried, first.Fence()}, {2, 1, history.Moved, event.Fence{}}, {1, 2, history.Moved, second.Fence()}}
	if !slices.Equal(ends, want) || first.Token != 5 || !first.Fence().Before(second.Fence()) {
		t.Fatalf("attempts %+v, want %+v", ends, want)
	}
	if a := got[0]; a.Accepted != accepted || a.Delivered != accepted.Add(time.Second) || a.Ended != accepted.Add(2*time.Second) || a.Result != event.ResultRetry || a.Ran.Length != 2 {
		t.Errorf("the first attempt is %+v", a)
	}
	if oldest != 0 {
		t.Errorf("it goes back to %d", oldest)
	}

	m.gate(p, ownership.Open, 9)
	m.accept(key)
	m.accept(key)
	third := m.takeOneOf(key)
	got, _ = m.History(hash)
	if n := len(got); n != 5 || got[3].End != history.Open || got[3].Fence != third.Fence() || got[3].Ended != 0 || got[4].Delivered != 0 || got[3].Number != 1 {
		t.Errorf("with one that runs and one that waits: %+v", got)
	}
	if got, _ := m.History(ring.HashOf("nobody")); len(got) != 0 {
		t.Errorf("of a key without events: %+v", got)
	}
}

// takeOneOf takes deliveries, and returns that of a key.
func (m *remembering) takeOneOf(key event.Key) event.Delivery {
	m.t.Helper()
	for _, d := range m.Take(openLease, 1, 100, nil) {
		if d.Object.Key == key {
			return d
		}
	}
	m.t.Fatalf("no delivery of the key")
	return event.Delivery{}
}

// A delivery has the fence under which it began, however often its partition moves until it ends,
// and none is kept of it then.
func TestFencesOfEarlierTenures(t *testing.T) {
	m := newRemembering(t)
	const key = "alice"
	p := ring.PartitionOf(key)
	m.gate(p, ownership.Open, 5)
	m.accept(key)
	d := m.takeOne()
	for token := ownership.Token(6); token < 9; token++ {
		m.now = m.now.Add(time.Second)
		m.gate(p, ownership.Draining, token)
	}
	m.finish(d, event.Result{Kind: event.ResultDone})
	if got, _ := m.History(ring.HashOf(key)); len(got) != 1 || got[0].Fence != d.Fence() || got[0].End != history.Done {
		t.Errorf("attempts %+v", got)
	}
	m.each(func(b *Boxes) {
		if n := len(b.records.fences); n > 0 {
			t.Errorf("%d fences are kept", n)
		}
	})
}

// A key whose handler runs all the time is the hottest of the last window, with its name once
// it had events at the end of one; handler times, waits and rates are counted.
func TestHotKeysAndTimes(t *testing.T) {
	m := newRemembering(t)
	for range 10 {
		m.accept("hot")
		m.accept("cold")
		m.now = m.now.Add(10 * time.Millisecond)
		both := m.Take(openLease, 1, 100, nil)
		slices.SortFunc(both, func(a, b event.Delivery) int { return strings.Compare(string(a.Object.Key), string(b.Object.Key)) })
		m.finish(both[0], event.Result{Kind: event.ResultDone}) // cold
		m.now = m.now.Add(990 * time.Millisecond)
		m.finish(both[1], event.Result{Kind: event.ResultDone}) // hot
	}
	m.accept("hot")
	if keys := m.HotKeys(); len(keys) != 0 {
		t.Errorf("before the end of the first window there are %+v", keys)
	}
	m.CountHotKeys()
	keys := m.HotKeys()
	if len(keys) != 2 || keys[0].Name != "hot" || keys[0].Busy < 0.9 || keys[0].Rate != 1 || keys[0].Outgrows != 0 || keys[1].Name != "" || keys[1].Busy > 0.1 {
		t.Errorf("hot keys %+v", keys)
	}
	if r := m.Rates(); r.Done != 2 || r.Accepted != 2.1 || r.Retried != 0 {
		t.Errorf("rates %+v", r)
	}
	times := m.Times()
	handled, sum, _ := times.Handled.Histogram()
	queued, _, _ := times.Queued.Histogram()
	if handled != 20 || queued != 20 || sum < 9.9 || sum > 20 {
		t.Errorf("%d handled in %v s, %d waited", handled, sum, queued)
	}
	last := m.takeOne()
	m.now = m.now.Add(HotEvery)
	m.finish(last, event.Result{Kind: event.ResultDone})
	m.CountHotKeys()
	if keys := m.HotKeys(); len(keys) != 1 || keys[0].Name != "hot" {
		t.Errorf("without an event at the end of the window: %+v", keys)
	}
	m.now = m.now.Add(HotEvery)
	m.CountHotKeys()
	if keys, r := m.HotKeys(), m.Rates(); len(keys) != 0 || r.Done != 0 {
		t.Errorf("after a window without events: %+v, %+v", keys, r)
	}
}

// A handler that runs for several windows counts in each of them for the part that it ran there, and its event when it ends.
func TestAHandlerThatRunsOnIsHot(t *testing.T) {
	m := newRemembering(t)
	for range 3000 { // the running key is not in the first step of the walk
		m.accept(event.Key(fmt.Sprint("waits ", m.id)))
	}
	waiting := m.Take(openLease, 1, 3000, nil)
	m.accept("slow")
	d := m.takeOne()
	for _, one := range waiting {
		m.finish(one, event.Result{Kind: event.ResultDone})
	}
	hot := func() (busy, rate float64) {
		t.Helper()
		m.CountHotKeys()
		for _, k := range m.HotKeys() {
			if k.Hash == ring.HashOf("slow") {
				return k.Busy, k.Rate
			}
		}
		t.Errorf("the key is none of %d hot ones", len(m.HotKeys()))
		return 0, 0
	}
	for range 2 {
		m.now = m.now.Add(HotEvery)
		if busy, rate := hot(); busy < 0.999 || busy > 1.001 || rate != 0 {
			t.Errorf("while its handler runs it is busy %v, at %v events a second; want 1 and 0", busy, rate)
		}
	}
	m.now = m.now.Add(HotEvery / 2)
	m.finish(d, event.Result{Kind: event.ResultDone})
	m.now = m.now.Add(HotEvery / 2)
	if busy, rate := hot(); busy < 0.499 || busy > 0.501 || rate != 0.1 {
		t.Errorf("in the window in which it ends it is busy %v, at %v events a second; want 0.5 and 0.1", busy, rate)
	}
}
