package mailbox

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// An event that waits long keeps nothing of the frame that brought it, and is otherwise unchanged.
func TestUnpin(t *testing.T) {
	f := newFixture(t, nil)
	running, waiting, local := f.event("ann"), f.event("ann"), f.event("bob")
	waiting.Properties = []event.Property{{Name: "n", Value: "v"}}
	f.accept(3, running, waiting)
	f.accept(Local, local)
	for _, d := range f.take() {
		if d.Object.Key == "bob" {
			f.finish(d, event.ResultNotStarted, "")
		}
	}
	f.now = f.now.Add(unpinAfter - 1)
	f.Tick(f.now, &f.out)
	young := f.event("cat")
	f.accept(3, young)
	f.now = f.now.Add(unpinAfter)
	f.Tick(f.now, &f.out)
	f.Tick(f.now.Add(unpinAfter), &f.out) // copies nothing again
	for _, e := range []*event.Event{running, waiting, local, young} {
		it := f.search(nil, f.spans.find(hashOf(e.ID), e.ID), bitOf(e.ID))
		is := it.ref.Event()
		if moved := is != e; moved != (e != local) {
			t.Errorf("event of %s: copied %v", string(e.Key), moved)
		}
		if string(is.Payload) != string(e.Payload) || is.Key != e.Key || len(is.Properties) != len(e.Properties) {
			t.Errorf("event of %s is another one now: %+v", string(e.Key), is)
		}
	}
	if n := f.counters.Unpinned; n != 3 {
		t.Errorf("%d events were copied, want 3", n)
	}
	a := f.actor("ann", f.hashOfKey("ann"))
	if unsafe.StringData(string(a.key)) == unsafe.StringData(string(running.Key)) {
		t.Error("the actor's key lies in the frame")
	}
}

// Peers' frames never keep more memory than they may, however little time passes: waiting events in
// old frames are copied out, in every shard.
func TestUnpinByVolume(t *testing.T) {
	cfg := DefaultConfig()
	cfg.FramesBytesMax = 1 << 20
	m := NewMailboxes(cfg, modelRetry, "me", func() clock.Instant { return clock.Instant(time.Hour) })
	var out Output
	open := make([]ownership.GateChange, ring.Partitions)
	for p := range open {
		open[p] = ownership.GateChange{Partition: ring.Partition(p), Gate: ownership.Open, Token: 1}
	}
	m.SetGates(open, event.Position{Ledger: 1}, &out)
	payload := make([]byte, 8<<10)
	for i := range 1000 {
		key := event.Key(fmt.Sprint("key", i))
		m.Accept(7, event.Position{Ledger: 1}, event.RefsTo(&event.Event{
			Handle: event.Handle(i + 1), ID: event.MessageID{Ledger: 1, Entry: int64(i)}, Key: key, Partition: ring.PartitionOf(string(key)), Payload: payload,
		}), &out)
	}
	frame := uint64(8<<10 + 256)
	if s := m.Stats(); s.Events != 1000 || uint64(1000-s.Unpinned)*frame > uint64(cfg.FramesBytesMax) || s.Unpinned == 1000 {
		t.Errorf("%d of %d events were copied; frames of %d bytes may keep %d", s.Unpinned, s.Events, frame, cfg.FramesBytesMax)
	}
}

// A frame counts with all its bytes, also those of duplicates: one waiting event keeps all of
// it.
func TestUnpinCountsDuplicates(t *testing.T) {
	cfg := DefaultConfig()
	cfg.FramesBytesMax = 1 << 20
	m := NewMailboxes(cfg, modelRetry, "me", func() clock.Instant { return clock.Instant(time.Hour) })
	var out Output
	p := ring.PartitionOf("ann")
	m.SetGates([]ownership.GateChange{{Partition: p, Gate: ownership.Open, Token: 1}}, event.Position{Ledger: 1}, &out)
	known := &event.Event{Handle: 1, ID: event.MessageID{Ledger: 1}, Key: "ann", Partition: p, Payload: make([]byte, 8<<10)}
	for range 1 << 20 / known.Bytes() {
		m.Accept(7, event.Position{Ledger: 1}, event.RefsTo(known), &out)
	}
	if s := m.Stats(); s.Events != 1 || s.Unpinned != 1 {
		t.Errorf("of %d events %d were copied out after a megabyte of frames, want 1 of 1", s.Events, s.Unpinned)
	}
}

// The memory of a frame that brings a newer version of a waiting event is freed, whether the older version came from this node or from a peer.
func TestUnpinANewerVersion(t *testing.T) {
	for name, first := range map[string]Sender{"of an event of this node": Local, "of an event that was copied out": 3} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.setGate(ring.PartitionOf("ann"), ownership.Waiting)
			old := f.event("ann")
			f.accept(first, old)
			tick := func() {
				f.now = f.now.Add(2 * unpinAfter)
				f.Tick(f.now, &f.out)
			}
			tick()
			newer := *old
			newer.Attempts, newer.Handle = 3, 99
			f.accept(4, &newer)
			tick()
			it := f.search(nil, f.spans.find(hashOf(old.ID), old.ID), bitOf(old.ID))
			if it.attempts != 3 {
				t.Fatalf("it has failed %d times, want 3", it.attempts)
			}
			if unsafe.SliceData(it.ref.Event().Payload) == unsafe.SliceData(newer.Payload) {
				t.Error("its payload lies in the second frame")
			}
		})
	}
}

// A visit that waits keeps nothing of the frame that brought it, though its holder has come back by way of this node.
func TestUnpinAVisitThatCameBack(t *testing.T) {
	f := newFixture(t, nil)
	f.WorkerGone(f.now, 1, &f.out)
	ask := func(from Sender) *event.Event {
		e := f.event("key")
		e.ID, e.Payload = event.CallMessageID("key", "id", 0), nil
		e.Handle, e.Call = event.NewCallHandle(uint64(from+1)), &event.Call{ID: "id", Reservation: true, Deadline: f.now.Add(time.Hour)}
		f.accept(from, e)
		return e
	}
	e := ask(3)
	ask(Local)
	f.now = f.now.Add(2 * unpinAfter)
	f.Tick(f.now, &f.out)
	if it := f.search(f.actor("key", f.hashOfKey("key")), f.spans.find(hashOf(e.ID), e.ID), bitOf(e.ID)); unsafe.StringData(string(it.ref.Event().Key)) == unsafe.StringData(string(e.Key)) {
		t.Error("its key lies in the frame")
	}
}
