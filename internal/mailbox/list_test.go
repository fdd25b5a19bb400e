package mailbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Among 10,000 keys of which each has an event or two, the stuck key, the key that fails and the
// keys with more events, or calls, than their handlers can do are the first of the list, and each
// is in the list of its state.
func TestTheWorstKeysOfMany(t *testing.T) {
	now := clock.Instant(time.Hour)
	m := NewMailboxes(DefaultConfig(), modelRetry, "me", func() clock.Instant { return now })
	var out Output
	m.SetGates(openAll(), event.Position{Ledger: 1, Entry: 5}, &out)
	m.WorkerUp(1, &out)
	var id int64
	accept := func(key string, events int) {
		for range events {
			id++
			m.Accept(Local, event.Position{}, event.RefsTo(&event.Event{
				Handle: event.Handle(id), ID: event.MessageID{Ledger: 7, Entry: id, Batch: -1, TopicPartition: -1},
				Key: event.Key(key), Partition: ring.PartitionOf(key),
			}), &out)
		}
	}
	take := func() event.Delivery {
		d := m.Take(openLease, 1, 1, nil)
		if len(d) != 1 {
			t.Fatalf("%d deliveries, want 1", len(d))
		}
		return d[0]
	}
	accept("stuck", 2)
	take()
	accept("failing", 1)
	m.Finish([]event.Result{{Delivery: take().ID, Kind: event.ResultRetry, Reason: "no"}}, &out)
	accept("called", 1)
	take()
	for i := range 100 {
		id := fmt.Sprint("call-", i)
		m.Accept(Local, event.Position{}, event.RefsTo(&event.Event{
			Handle: event.NewCallHandle(uint64(1 + i)), ID: event.CallMessageID("called", id, 0), Key: "called", Partition: ring.PartitionOf("called"),
			Call: &event.Call{Method: "m", ID: id, Deadline: now.Add(time.Hour)},
		}), &out)
	}
	now = now.Add(time.Minute)
	accept("hot", 500)
	take()
	now = now.Add(time.Second)
	for i := range 10_000 {
		accept(fmt.Sprint("user-", i), 1+i%2)
	}
	now = now.Add(100 * time.Millisecond)

	worst := m.Keys(EveryKey, 50)
	if c := worst.Counts; c.Keys != 10_004 || c.Running != 3 || c.Waiting != 10_001 || c.Failing != 1 || c.Chosen != 10_004 {
		t.Errorf("counts %+v", c)
	}
	if len(worst.Keys) != 50 || worst.Keys[0].Key != "called" || worst.Keys[1].Key != "hot" || worst.Keys[2].Key != "stuck" || worst.Keys[3].Key != "failing" {
		t.Fatalf("%d keys are listed, the first of them %+v", len(worst.Keys), worst.Keys[:min(4, len(worst.Keys))])
	}
	called, hot, stuck, failing := worst.Keys[0], worst.Keys[1], worst.Keys[2], worst.Keys[3]
	if called.Calls != 100 || called.Behind() != 0 || called.Wait != WaitHandler {
		t.Errorf("called %+v", called)
	}
	if hot.Behind() != 499 || hot.Wait != WaitHandler || stuck.Behind() != 1 || failing.Behind() != 0 || failing.Wait != WaitRetry || failing.Attempts != 1 {
		t.Errorf("hot %+v, stuck %+v, failing %+v", hot, stuck, failing)
	}
	for i := 1; i < len(worst.Keys); i++ {
		if before, k := worst.Keys[i-1], worst.Keys[i]; before.Weight(now) < k.Weight(now) || k.Hash != ring.HashOf(string(k.Key)) {
			t.Errorf("%+v is before %+v", before, k)
		}
	}
	for which, want := range map[Which][]event.Key{RunningKeys: {"called", "hot", "stuck"}, FailingKeys: {"failing"}} {
		got := m.Keys(which, 50)
		if len(got.Keys) != len(want) || got.Counts.Chosen != len(want) || got.Counts.Keys != 10_004 {
			t.Fatalf("selection %d lists %d keys and counts %+v", which, len(got.Keys), got.Counts)
		}
		for i := range want {
			if got.Keys[i].Key != want[i] {
				t.Errorf("selection %d has %q in place %d, want %q", which, got.Keys[i].Key, i, want[i])
			}
		}
	}
	if waiting := m.Keys(WaitingKeys, 1); waiting.Keys[0].Key != "failing" || waiting.Counts.Chosen != 10_001 {
		t.Errorf("of those that wait, %+v is first of %d", waiting.Keys[0], waiting.Counts.Chosen)
	}
}
