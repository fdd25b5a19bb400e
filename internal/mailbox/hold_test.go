package mailbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

func (f *fixture) hold(keys ...event.Key) {
	f.out.Reset()
	f.Hold(f.now, keys, &f.out)
}

func (f *fixture) releaseHold(keys ...event.Key) {
	f.out.Reset()
	f.Release(f.now, keys, &f.out)
}

// TestHoldKeepsAKeyWaiting: events of a held key wait in their order, other keys do not, and a release wakes the worker.
func TestHoldKeepsAKeyWaiting(t *testing.T) {
	f := newFixture(t, nil)
	f.accept(Local, f.event("held"), f.event("held"), f.event("other"))
	f.hold("held")
	if d := f.takeOne(); d.Object.Key != "other" {
		t.Fatalf("took %v of key %q", d.Object.ID, d.Object.Key)
	}
	f.accept(Local, f.event("held"))
	if s := f.Inspect("held"); s.Wait != WaitHold || s.Depth != 3 || f.Stats().OnHold != 1 {
		t.Fatalf("%+v, %d keys on hold", s, f.Stats().OnHold)
	}
	f.releaseHold("held")
	if !slices.Contains(f.out.Wake, 1) {
		t.Error("the release wakes no worker")
	}
	for _, want := range []int64{1, 2, 4} {
		d := f.takeOne()
		if d.Object.ID.Entry != want {
			t.Errorf("took event %d, want %d", d.Object.ID.Entry, want)
		}
		f.finish(d, event.ResultDone, "")
	}
	if n := f.Stats().OnHold; n != 0 {
		t.Errorf("%d keys on hold at the end", n)
	}
}

// TestHoldLetsARunningDeliveryFinish: its result counts, its retry waits first, when the hold is over as well as the delay.
func TestHoldLetsARunningDeliveryFinish(t *testing.T) {
	f := newFixture(t, nil)
	f.accept(Local, f.event("k"), f.event("k"))
	d := f.takeOne()
	f.hold("k")
	f.hold("k") // again: nothing changes
	f.finish(d, event.ResultRetry, "no")
	s := f.Inspect("k")
	if s.Wait != WaitHold || s.Attempts != 1 || !s.HeldUntil.After(f.now) {
		t.Fatalf("after the failure %+v", s)
	}
	f.releaseHold("k")
	if s := f.Inspect("k"); s.Wait != WaitRetry || !f.out.DueSooner {
		t.Fatalf("released before the delay: %+v", s)
	}
	f.now = s.HeldUntil
	f.Tick(f.now, &f.out)
	d = f.takeOne()
	f.hold("k")
	f.want(f.finish(d, event.ResultDone, ""), says(Local, 1, verdict{Kind: event.Done}))
	if got := f.take(); len(got) != 0 {
		t.Errorf("%d deliveries of a held key", len(got))
	}
}

// TestHoldOutlastsMoves: a key is on hold whether its partition is ours or not, with and without events.
func TestHoldOutlastsMoves(t *testing.T) {
	f := newFixture(t, nil)
	p := ring.PartitionOf("k")
	f.hold("k")
	f.accept(Local, f.event("k"))
	f.want(f.setGate(p, ownership.Closed), says(Local, 1, verdict{event.NotOwner, event.Detail{Epoch: f.epoch}}))
	if n := f.Stats().OnHold; n != 0 {
		t.Errorf("%d keys on hold here after the move", n)
	}
	f.setGate(p, ownership.Open)
	f.accept(Local, f.event("k"))
	if got := f.take(); len(got) != 0 || f.Inspect("k").Wait != WaitHold {
		t.Errorf("%d deliveries after the partition came back, it waits for %v", len(got), f.Inspect("k").Wait)
	}
	f.setGate(p, ownership.Waiting)
	if w := f.Inspect("k").Wait; w != WaitGate {
		t.Errorf("behind a waiting gate it waits for %v", w)
	}
	f.releaseHold("k", "never seen")
	f.setGate(p, ownership.Open)
	f.takeOne()
}

// TestMailboxesHoldKeysOfAllShards: each key is held in the shard of its partition.
func TestMailboxesHoldKeysOfAllShards(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Shards = 4
	now := clock.Instant(time.Hour)
	m := NewMailboxes(cfg, modelRetry, "me", func() clock.Instant { return now })
	var out Output
	m.SetGates(openAll(), event.Position{Ledger: 1, Entry: 5}, &out)
	m.WorkerUp(1, &out)
	var keys []event.Key
	var events []*event.Event
	for i := range 40 {
		key := event.Key(fmt.Sprintf("key-%d", i))
		keys = append(keys, key)
		events = append(events, &event.Event{
			Handle: event.Handle(i + 1), ID: event.MessageID{Ledger: 7, Entry: int64(i), Batch: -1, TopicPartition: -1},
			Key: key, Partition: ring.PartitionOf(string(key)),
		})
	}
	m.Hold(keys[:30], &out)
	m.Accept(Local, event.Position{Ledger: 1, Entry: 5}, event.RefsTo(events...), &out)
	taken := m.Take(openLease, 1, 100, nil)
	if s := m.Stats(); len(taken) != 10 || s.OnHold != 30 {
		t.Fatalf("%d deliveries, %d keys on hold, want 10 and 30", len(taken), s.OnHold)
	}
	m.Release(keys, &out)
	if got := m.Take(openLease, 1, 100, nil); len(got) != 30 {
		t.Errorf("%d deliveries after the release, want 30", len(got))
	}
}
