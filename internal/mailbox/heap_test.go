package mailbox

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/ring"
)

// A million keys, ten thousand at a time, leave nothing behind but the window of done
// events and room for as many keys as there were at once.
func TestHeapAfterAMillionKeys(t *testing.T) {
	const keys, atOnce = 1_000_000, 10_000
	m := NewMailboxes(DefaultConfig(), outcome.DefaultConfig(), "me", clock.Now)
	var out Output
	m.SetGates(openAll(), event.Position{}, &out)
	m.WorkerUp(1, &out)
	heap := func() int {
		runtime.GC()
		runtime.GC() // frees the memory that the first one has only finalized
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int(s.HeapAlloc)
	}
	before := heap()
	for first := 0; first < keys; first += atOnce {
		events := make([]*event.Event, atOnce)
		for i := range events {
			key := fmt.Sprintf("shopper-%d", first+i)
			events[i] = &event.Event{
				Handle: event.Handle(first + i + 1), Key: event.Key(key), Partition: ring.PartitionOf(key),
				ID: event.MessageID{Ledger: 7, Entry: int64(first + i)}, Payload: make([]byte, 100),
			}
		}
		m.Accept(Local, event.Position{}, event.RefsTo(events...), &out)
		if s := m.Stats(); s.Keys != atOnce {
			t.Fatalf("%d active keys, want %d", s.Keys, atOnce)
		}
		results := make([]event.Result, 0, atOnce)
		for _, d := range m.Take(openLease, 1, atOnce, nil) {
			results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
		}
		m.Finish(results, &out)
		out.Reset()
	}
	s := m.Stats()
	full := DefaultConfig().WindowBytesMax / recordBytes
	if s.Done != keys || s.Keys != 0 || s.WindowIDs != full {
		t.Fatalf("%d done, %d keys left, %d ids in the window", s.Done, s.Keys, s.WindowIDs)
	}
	// Besides their places, active keys and events have cells in indexes that grow by doubling,
	// and stand in the queue of a worker; slabs, queues and the output have spare room of their own.
	const perKey = 4 * int(unsafe.Sizeof(actor{})+unsafe.Sizeof(item{})+unsafe.Sizeof(event.Verdict{}))
	left, bound := heap()-before, DefaultConfig().WindowBytesMax+atOnce*perKey
	t.Logf("%.1f MiB are left, of %.1f for the window and %.1f for %d keys", float64(left)/(1<<20), float64(DefaultConfig().WindowBytesMax)/(1<<20),
		float64(atOnce*perKey)/(1<<20), atOnce)
	if left > bound {
		t.Errorf("%d bytes are left, want %d at most", left, bound)
	}
	runtime.KeepAlive(m)
}
