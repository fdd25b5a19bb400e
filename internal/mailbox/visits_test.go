package mailbox

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// A visit whose time was up when a worker looked, and is not any more since another caller has joined before Tick, still runs.
func TestVisitThatIsWantedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		call   event.Call
		worker event.WorkerID
	}{
		"call":        {event.Call{Method: "m", ID: "id"}, 1},
		"reservation": {event.Call{ID: "id", Reservation: true}, event.Keeper},
	} {
		t.Run(name, func(t *testing.T) {
			b, lease := New(modelConfig, modelRetry, "me"), ownership.Lease{Until: clock.Forever}
			var out Output
			key, now := event.Key("key"), clock.Instant(time.Hour)
			p := ring.PartitionOf(string(key))
			b.SetGates(now, []ownership.GateChange{{Partition: p, Gate: ownership.Open, Token: 1}}, event.Position{}, &out)
			b.WorkerUp(now, 1, &out)
			ask := func(h event.Handle, timeout time.Duration) {
				call := c.call
				call.Deadline = now.Add(timeout)
				b.Accept(now, Local, event.Position{}, event.RefsTo(&event.Event{Handle: h, ID: event.CallMessageID(key, "id", 0), Key: key, Partition: p, Call: &call}), &out)
			}
			ask(1, time.Second)
			now = now.Add(2 * time.Second)
			if got := b.Take(now, lease, c.worker, 1, nil); len(got) != 0 {
				t.Fatalf("it begins after its time: %+v", got)
			}
			ask(2, time.Minute)
			out.Reset()
			b.Tick(now, &out)
			if got := b.Take(now, lease, c.worker, 1, nil); len(got) != 1 {
				t.Errorf("it does not run: %+v", b.Inspect(key))
			}
		})
	}
}

// A call that had a place among many events is over when these are, and their places are given up with its own: its deadline passes later, and finds
// nothing.
func TestDeadlineOfACallWhosePlaceIsGone(t *testing.T) {
	config := modelConfig
	config.DepthMax, config.BytesMax = 1_000_000, 1<<40
	b, lease := New(config, modelRetry, "me"), ownership.Lease{Until: clock.Forever}
	var out Output
	key, now := event.Key("key"), clock.Instant(time.Hour)
	p := ring.PartitionOf(string(key))
	b.SetGates(now, []ownership.GateChange{{Partition: p, Gate: ownership.Open, Token: 1}}, event.Position{}, &out)
	b.WorkerUp(now, 1, &out)
	const burst = (idleBlocks + 1) * blockLen
	for i := range int64(burst) {
		e := &event.Event{Handle: event.NewHandle(uint64(i+1), 0), ID: event.MessageID{Ledger: 1, Entry: i, Batch: -1, TopicPartition: -1}, Key: key, Partition: p}
		b.Accept(now, Local, event.Position{}, event.RefsTo(e), &out)
	}
	call := event.Call{Method: "m", ID: "id", Deadline: now.Add(time.Minute)}
	b.Accept(now, Local, event.Position{}, event.RefsTo(&event.Event{Handle: event.NewCallHandle(1), ID: event.CallMessageID(key, "id", 0), Key: key, Partition: p, Call: &call}), &out)
	high := false
	for {
		taken := b.Take(now, lease, 1, 1000, nil)
		if len(taken) == 0 {
			break
		}
		for _, d := range taken {
			if d.Call() != nil {
				high = int(b.find(d.ID).place) >= idleBlocks*blockLen
			}
			b.Finish(now, []event.Result{{Delivery: d.ID, Kind: event.ResultDone}}, &out)
		}
		out.Reset()
	}
	if places := b.items.places(); !high || places != idleBlocks*blockLen {
		t.Fatalf("the call's place is high: %t; %d places are left: this shows nothing", high, places)
	}
	b.Tick(now.Add(time.Hour), &out)
	if got := b.Stats().Events; got != 0 {
		t.Errorf("%d events are left", got)
	}
}
