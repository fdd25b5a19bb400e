package mailbox

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// crowd is senders, workers and a mover of gates at work on the same mailboxes.
type crowd struct {
	*testing.T
	boxes   *Mailboxes
	keys    []event.Key
	inKey   map[event.Key]*atomic.Int32 // deliveries that run
	fences  map[event.Key]*event.Fence  // of the newest delivery; its key's deliveries take turns at it
	refused chan address                // to be sent again; holds as many as there are events
	settled sync.Map                    // address → nothing
	left    sync.WaitGroup              // events without a final verdict
	stop    chan struct{}
}

func (c *crowd) stopped() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

func (c *crowd) send(to address, out *Output) {
	key := c.keys[int(to.handle)%len(c.keys)]
	c.boxes.Accept(to.sender, event.Position{}, event.RefsTo(&event.Event{
		Handle: to.handle, Key: key, Partition: ring.PartitionOf(string(key)),
		ID: event.MessageID{Ledger: int64(to.sender), Entry: int64(to.handle)},
	}), out)
	c.hear(out)
}

// hear takes verdicts in: one Done for each event, until then it is sent again.
func (c *crowd) hear(out *Output) {
	for _, v := range said(out) {
		to := address{v.To, v.Handle}
		if v.Kind != event.Done {
			c.refused <- to
		} else if _, twice := c.settled.LoadOrStore(to, nil); twice {
			c.Errorf("handle %d of sender %d is done twice", v.Handle, v.To)
		} else {
			c.left.Done()
		}
	}
	out.Reset()
}

func (c *crowd) work(w event.WorkerID) {
	var out Output
	var taken []event.Delivery
	for !c.stopped() {
		taken = c.boxes.Take(openLease, w, 16, taken[:0])
		for _, d := range taken {
			if n := c.inKey[d.Object.Key].Add(1); n != 1 {
				c.Errorf("%d deliveries of one key at once", n)
			}
			if newest := c.fences[d.Object.Key]; newest.Before(d.Fence()) {
				*newest = d.Fence()
			} else {
				c.Errorf("a delivery of key %q with fence %v after %v", d.Object.Key, d.Fence(), *newest)
			}
		}
		runtime.Gosched()
		var results []event.Result
		for _, d := range taken {
			c.inKey[d.Object.Key].Add(-1)
			results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
		}
		c.boxes.Finish(results, &out)
		c.hear(&out)
	}
}

// moveGates closes and opens one partition after the other. Like the driver of
// ownership it opens none while something runs.
func (c *crowd) moveGates() {
	var out Output
	for i := 0; !c.stopped(); i++ {
		p := ring.PartitionOf(string(c.keys[i%len(c.keys)]))
		c.boxes.SetGates([]ownership.GateChange{{Partition: p, Gate: ownership.Draining}}, event.Position{}, &out)
		for c.boxes.Running(p) > 0 && !c.stopped() {
			runtime.Gosched()
		}
		if c.boxes.Running(p) == 0 {
			c.boxes.SetGates([]ownership.GateChange{{Partition: p, Gate: ownership.Open, Token: ownership.Token(i + 2)}}, event.Position{}, &out)
		}
		c.hear(&out)
	}
}

func (c *crowd) sendAgain() {
	var out Output
	for {
		select {
		case <-c.stop:
			return
		case to := <-c.refused:
			c.send(to, &out)
		}
	}
}

func TestMailboxesUnderConcurrency(t *testing.T) {
	const senders, eventsEach, workers = 2, 3000, 2
	c := &crowd{
		T:       t,
		boxes:   NewMailboxes(DefaultConfig(), outcome.DefaultConfig(), "me", clock.Now),
		inKey:   map[event.Key]*atomic.Int32{},
		fences:  map[event.Key]*event.Fence{},
		refused: make(chan address, senders*eventsEach),
		stop:    make(chan struct{}),
	}
	for i := range 50 {
		c.keys = append(c.keys, event.Key(fmt.Sprintf("key-%d", i)))
		c.inKey[c.keys[i]] = new(atomic.Int32)
		c.fences[c.keys[i]] = new(event.Fence)
	}
	c.boxes.SetGates(openAll(), event.Position{}, &Output{})
	c.left.Add(senders * eventsEach)
	var running sync.WaitGroup
	for w := event.WorkerID(1); w <= workers; w++ { // 0 is the keeper
		c.boxes.WorkerUp(w, &Output{})
		running.Go(func() { c.work(w) })
	}
	running.Go(c.moveGates)
	running.Go(c.sendAgain)
	for from := range Sender(senders) {
		running.Go(func() {
			var out Output
			for handle := range event.Handle(eventsEach) {
				c.send(address{from, handle}, &out)
			}
		})
	}
	c.left.Wait()
	close(c.stop)
	running.Wait()

	s := c.boxes.Stats()
	if s.Events+s.Running+s.Keys+s.Bytes+s.Ready != 0 || s.Oldest != clock.Forever {
		t.Errorf("something is left: %+v", s)
	}
	if s.Done != senders*eventsEach {
		t.Errorf("%d done, want %d", s.Done, senders*eventsEach)
	}
	if s.Moved+s.NotOwner == 0 {
		t.Error("no event met a closed gate: this run proved little")
	}
}

// newMailboxes returns mailboxes of four shards with open gates, whose clock is *now.
func newMailboxes(now *clock.Instant) *Mailboxes {
	cfg := DefaultConfig()
	cfg.Shards = 4
	m := NewMailboxes(cfg, modelRetry, "me", func() clock.Instant { return *now })
	m.SetGates(openAll(), event.Position{}, &Output{})
	return m
}

func TestMailboxesFindTheShardOfEverything(t *testing.T) {
	now := clock.Instant(time.Hour)
	m := newMailboxes(&now)
	var out Output
	m.WorkerUp(1, &out)
	events := benchEvents(100)
	for i, e := range events {
		e.ID.Entry = int64(i)
	}
	m.Accept(Local, event.Position{}, event.RefsTo(events...), &out)
	if !slices.Contains(out.Wake, 1) {
		t.Error("worker 1 was not woken")
	}
	if got := m.Inspect("user-7"); got.Wait != WaitSlot || got.Partition != ring.PartitionOf("user-7") {
		t.Errorf("user-7: %+v", got)
	}
	if got := m.Take(openLease, 1, 30, nil); len(got) != 30 {
		t.Fatalf("%d deliveries, want 30", len(got))
	} else {
		m.WorkerGone(1, &out)
		m.WorkerUp(2, &out)
		got = m.Take(openLease, 2, 1000, got)
		if len(got) != 100 || m.Take(openLease, 2, 1, nil) != nil {
			t.Fatalf("%d deliveries, want 100", len(got))
		}
		results := make([]event.Result, 0, len(got))
		ids := map[event.DeliveryID]bool{}
		for _, d := range got {
			ids[d.ID] = true
			if m.Running(d.Partition) == 0 {
				t.Errorf("nothing runs on partition %d", d.Partition)
			}
			results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
		}
		if len(ids) != 100 {
			t.Errorf("%d ids for 100 deliveries", len(ids))
		}
		out.Reset()
		m.Finish(results, &out)
	}
	if n := len(said(&out)); n != 100 || out.Ignored != 0 {
		t.Errorf("%d verdicts, %d ignored", n, out.Ignored)
	}
	m.SetGates([]ownership.GateChange{{Partition: events[7].Partition}}, event.Position{}, &out)
	got, _ := m.TakeHandover(1000, func(ring.Partition) bool { return true }, nil)
	isSeventh := func(d event.Finished) bool { return d.ID == events[7].ID && d.Partition == events[7].Partition }
	if !slices.ContainsFunc(got, isSeventh) {
		t.Errorf("handed over %v, without event 7", got)
	}
}

func TestMailboxesTick(t *testing.T) {
	now := clock.Instant(time.Hour)
	m := newMailboxes(&now)
	var out Output
	if got := m.Next(); got != clock.Forever {
		t.Errorf("idle mailboxes are due at %d", got)
	}
	e := benchEvents(1)
	m.Accept(3, event.Position{}, event.RefsTo(e...), &out)
	m.SenderGone(3)
	m.WorkerUp(1, &out)
	d := m.Take(openLease, 1, 1, nil)
	out.Reset()
	m.Finish([]event.Result{{Delivery: d[0].ID, Kind: event.ResultRetry, After: time.Second}}, &out)
	if got := said(&out); len(got) != 0 {
		t.Errorf("verdicts %v for a stream that is gone", got)
	}
	if got, want := m.Next(), now.Add(time.Second); got != want {
		t.Errorf("due at %d, want %d", got, want)
	}
	now = now.Add(time.Second)
	m.Tick(&out)
	if got := m.Take(openLease, 1, 1, nil); len(got) != 1 || got[0].Attempt != 2 {
		t.Errorf("deliveries %+v, want the second attempt", got)
	}
}

func TestMetrics(t *testing.T) {
	now := clock.Instant(time.Hour)
	m := newMailboxes(&now)
	var out Output
	m.WorkerUp(1, &out)
	events := benchEvents(3)
	for i, e := range events {
		e.ID.Entry = int64(i)
	}
	m.Accept(Local, event.Position{}, event.RefsTo(events...), &out)
	m.Accept(2, event.Position{}, event.RefsTo(events[:1]...), &out)
	m.Finish([]event.Result{{Delivery: m.Take(openLease, 1, 1, nil)[0].ID, Kind: event.ResultDone}, {Delivery: 1 << 40}}, &out)
	now = now.Add(90 * time.Second)

	reg := prometheus.NewPedanticRegistry()
	NewMetrics(reg, m, nil)
	want := `
# HELP ringfence_mailbox_active_keys Keys with events here.
# TYPE ringfence_mailbox_active_keys gauge
ringfence_mailbox_active_keys 2
# HELP ringfence_mailbox_deliveries_total Deliveries that ended, by outcome.
# TYPE ringfence_mailbox_deliveries_total counter
ringfence_mailbox_deliveries_total{outcome="crashed"} 0
ringfence_mailbox_deliveries_total{outcome="done"} 1
ringfence_mailbox_deliveries_total{outcome="failed"} 0
ringfence_mailbox_deliveries_total{outcome="ignored"} 1
ringfence_mailbox_deliveries_total{outcome="rejected"} 0
ringfence_mailbox_deliveries_total{outcome="retried"} 0
ringfence_mailbox_deliveries_total{outcome="returned"} 0
# HELP ringfence_mailbox_events_total Events received from senders, by immediate answer.
# TYPE ringfence_mailbox_events_total counter
ringfence_mailbox_events_total{answer="accepted"} 3
ringfence_mailbox_events_total{answer="duplicate"} 0
ringfence_mailbox_events_total{answer="joined"} 1
ringfence_mailbox_events_total{answer="misplaced"} 0
ringfence_mailbox_events_total{answer="not_owner"} 0
ringfence_mailbox_events_total{answer="not_yet"} 0
ringfence_mailbox_events_total{answer="overloaded"} 0
# HELP ringfence_mailbox_oldest_event_seconds Age of the oldest event here, 0 when there is none.
# TYPE ringfence_mailbox_oldest_event_seconds gauge
ringfence_mailbox_oldest_event_seconds 90
`
	names := []string{
		"ringfence_mailbox_active_keys", "ringfence_mailbox_deliveries_total",
		"ringfence_mailbox_events_total", "ringfence_mailbox_oldest_event_seconds",
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestBucketsKeepTheOrderWithinAShard(t *testing.T) {
	var b buckets[int]
	for _, values := range [][]int{{5, 3, 8, 13, 0, 2}, {}, {4, 1}} { // shrinks: the memory is used again
		b.fill(values, 3, func(v *int) int { return *v % 3 })
		for shard := range 3 {
			var want []int
			for _, v := range values {
				if v%3 == shard {
					want = append(want, v)
				}
			}
			if got := b[shard]; !slices.Equal(got, want) {
				t.Errorf("shard %d of %v holds %v, want %v", shard, values, got, want)
			}
		}
	}
}

// Each call reaches the shards that it is about.
func TestCallsReachTheirShards(t *testing.T) {
	const keys = 40
	now := clock.Instant(time.Hour)
	fill := func(call func(i int) *event.Call) (*Mailboxes, []*event.Event, *Output) {
		m := newMailboxes(&now)
		var out Output
		m.SetCovers(true)
		m.WorkerUp(1, &out)
		var events []*event.Event
		for i := range keys {
			key := event.Key(fmt.Sprint("key-", i))
			e := &event.Event{Handle: event.Handle(i + 1), Key: key, Partition: ring.PartitionOf(string(key)), ID: event.MessageID{Ledger: 7, Entry: int64(i), Batch: -1, TopicPartition: -1}}
			if call != nil {
				e.Call, e.Handle = call(i), event.NewCallHandle(uint64(i+1))
				e.ID = event.CallMessageID(key, e.Call.ID, uint64(i))
			}
			events = append(events, e)
		}
		m.Accept(Local, event.Position{}, event.RefsTo(events...), &out)
		out.Reset()
		return m, events, &out
	}
	finished := func(events []*event.Event) (all []event.Finished) {
		for _, e := range events {
			all = append(all, event.Finished{Partition: e.Partition, ID: e.ID, At: now})
		}
		return all
	}
	t.Run("running", func(t *testing.T) {
		m, _, _ := fill(nil)
		parts := func() (running int) {
			for _, p := range m.Parts() {
				running += p.Running
			}
			return running
		}
		if parts() != 0 {
			t.Errorf("%d run before they are taken", parts())
		}
		given := m.Take(openLease, 1, keys, nil)
		if len(given) != keys || parts() != keys {
			t.Fatalf("%d deliveries, %d run on partitions, want %d", len(given), parts(), keys)
		}
		for _, d := range given {
			if e := m.Delivered(d.ID); e == nil || e.ID != d.MessageID() {
				t.Fatalf("delivery %d is of %v", d.ID, e)
			}
			if o := m.Outlook(event.Result{Delivery: d.ID, Kind: event.ResultRetry}); o.Attempts != 1 {
				t.Fatalf("delivery %d looks like %+v", d.ID, o)
			}
			if got := m.Busy(d.Partition); !slices.Contains(got, d.Key) {
				t.Fatalf("the key %v is not busy: %v", d.Key, got)
			}
		}
	})
	t.Run("parks", func(t *testing.T) {
		m, events, out := fill(nil)
		m.SetLease(openLease, out)
		var parks []event.Park
		for _, e := range events {
			parks = append(parks, event.Park{Key: e.Key, State: event.ParkOn})
		}
		m.Park(parks, out)
		if got := said(out); len(got) != keys || got[0].Kind != event.Parked {
			t.Fatalf("%d verdicts, want that all are parked", len(got))
		}
		for i := range parks {
			parks[i].State = event.NotParked
		}
		m.Park(parks, out)
		m.each(func(b *Boxes) {
			if n := len(b.parks); n > 0 {
				t.Errorf("%d keys are still parked", n)
			}
		})
	})
	t.Run("windows", func(t *testing.T) {
		m, events, out := fill(nil)
		m.LearnDone(finished(events), out)
		if got := said(out); len(got) != keys || got[0].Kind != event.Done || len(m.Take(openLease, 1, keys, nil)) != 0 {
			t.Fatalf("%d verdicts on events that an earlier owner has done, want %d", len(got), keys)
		}
		var gates []ownership.GateChange
		for _, e := range events {
			gates = append(gates, ownership.GateChange{Partition: e.Partition})
		}
		m.SetGates(gates, event.Position{Ledger: 1}, out)
		none, all := func(ring.Partition) bool { return false }, func(ring.Partition) bool { return true }
		for range 100 {
			if got, more := m.TakeHandover(4*keys, none, nil); len(got) > 0 || !more {
				break
			}
		}
		if got, _ := m.TakeHandover(4*keys, all, nil); len(got) > 0 {
			t.Fatalf("%d ids are looked at again without a restart", len(got))
		}
		m.RestartHandover()
		if got, _ := m.TakeHandover(4*keys, all, nil); len(got) != keys {
			t.Errorf("%d ids are handed over after a restart, want %d", len(got), keys)
		}
	})
	t.Run("forget", func(t *testing.T) {
		m, events, out := fill(nil)
		m.LearnDone(finished(events), out)
		if n := m.Forget(); n != keys {
			t.Errorf("%d ids were forgotten, want %d", n, keys)
		}
	})
	t.Run("cancels", func(t *testing.T) {
		m, events, out := fill(func(int) *event.Call { return &event.Call{Method: "m", Deadline: now.Add(time.Minute)} })
		var handles []event.Handle
		for _, e := range events {
			handles = append(handles, e.Handle)
		}
		m.Cancel(Local, handles, out)
		if got := m.Take(openLease, 1, keys, nil); len(got) != 0 {
			t.Errorf("%d calls begin that nobody waits for", len(got))
		}
	})
	t.Run("reservations", func(t *testing.T) {
		m, events, out := fill(func(i int) *event.Call {
			return &event.Call{ID: fmt.Sprint("id-", i), Reservation: true, TTL: event.TTLLeast, Deadline: now.Add(time.Minute)}
		})
		given := m.Take(openLease, event.Keeper, keys, nil)
		if len(given) != keys {
			t.Fatalf("%d reservations begin, want %d", len(given), keys)
		}
		for _, d := range given {
			m.Grant(d.ID, event.Grant{Fence: d.Fence()}, out)
		}
		if got := said(out); len(got) != keys || got[0].Kind != event.Granted {
			t.Fatalf("%d verdicts, want %d grants", len(got), keys)
		}
		renewable := func() (running, telling int) {
			for _, e := range events {
				id, told := m.Renewable(Local, e.Handle)
				if id != 0 {
					running++
				}
				if told {
					telling++
				}
			}
			return running, telling
		}
		if running, telling := renewable(); running != keys || telling != 0 {
			t.Errorf("%d reservations may be renewed, and %d verdicts are on their way, want %d and none", running, telling, keys)
		}
		var results []event.Result
		for _, d := range given {
			results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
		}
		out.Reset()
		m.Finish(results, out)
		if running, telling := renewable(); running != 0 || telling != len(out.Telling) || telling == 0 {
			t.Errorf("%d reservations may be renewed, and %d verdicts of %d are on their way", running, telling, len(out.Telling))
		}
		m.Told(out.Telling)
		if running, telling := renewable(); running+telling != 0 {
			t.Errorf("%d reservations may be renewed, and %d verdicts are on their way, want none", running, telling)
		}
	})
}

// Handlers of calls that have ended count as answered, whether they failed or not; calls that have not run do not.
// Without an event there is no oldest one.
func TestMetricsOfCalls(t *testing.T) {
	now := clock.Instant(time.Hour)
	m := newMailboxes(&now)
	var out Output
	m.WorkerUp(1, &out)
	reg := prometheus.NewPedanticRegistry()
	NewMetrics(reg, m, nil)
	want := `
# HELP ringfence_mailbox_oldest_event_seconds Age of the oldest event here, 0 when there is none.
# TYPE ringfence_mailbox_oldest_event_seconds gauge
ringfence_mailbox_oldest_event_seconds 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "ringfence_mailbox_oldest_event_seconds"); err != nil {
		t.Error(err)
	}
	for i, r := range []event.Result{{Kind: event.ResultDone}, {Kind: event.ResultReject, Reason: "no"}, {Kind: event.ResultCrashed}, {Kind: event.ResultNotStarted, Reply: &event.CallReply{Code: event.CodeNoHandler}}} {
		e := &event.Event{Handle: event.NewCallHandle(uint64(i + 1)), ID: event.CallMessageID("k", "", uint64(i)), Key: "k", Partition: ring.PartitionOf("k"), Call: &event.Call{Method: "m", Deadline: now.Add(time.Minute)}}
		m.Accept(Local, event.Position{}, event.RefsTo(e), &out)
		r.Delivery = m.Take(openLease, 1, 1, nil)[0].ID
		m.Finish([]event.Result{r}, &out)
	}
	if got := m.Stats().Answered; got != 2 {
		t.Errorf("%d calls are answered, want 2", got)
	}
}
