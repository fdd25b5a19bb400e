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
