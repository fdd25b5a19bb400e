package mailbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

var openLease = ownership.Lease{Until: clock.Forever - 1}

// openAll opens every gate.
func openAll() []ownership.GateChange {
	changes := make([]ownership.GateChange, ring.Partitions)
	for p := range changes {
		changes[p] = ownership.GateChange{Partition: ring.Partition(p), Gate: ownership.Open, Token: 1}
	}
	return changes
}

// benchEvents returns events of different keys; their ids are set by the caller.
func benchEvents(n int) []*event.Event {
	events := make([]*event.Event, n)
	for i := range events {
		key := event.Key(fmt.Sprintf("user-%d", i))
		events[i] = &event.Event{
			Handle: event.Handle(i), Key: key, Partition: ring.PartitionOf(string(key)),
			Payload: make([]byte, 100),
		}
	}
	return events
}

// One operation is one event, from its receipt to its verdict, in batches of 64. The
// dedup window is full, so each event also pushes an old id out of it.
func BenchmarkAcceptTakeFinish(b *testing.B) {
	const batch = 64
	cfg := DefaultConfig()
	boxes := New(cfg, outcome.DefaultConfig(), "a")
	var out Output
	boxes.SetGates(0, openAll(), event.Position{}, &out)
	boxes.WorkerUp(0, 1, &out)
	events := benchEvents(10_000)
	deliveries := make([]event.Delivery, 0, batch)
	results := make([]event.Result, 0, batch)
	entry := int64(0)
	round := func(batch []*event.Event) {
		out.Reset()
		now := clock.Instant(entry) * clock.Instant(time.Microsecond)
		for _, e := range batch {
			entry++
			e.ID = event.MessageID{Ledger: 7, Entry: entry, Batch: -1, TopicPartition: -1}
		}
		boxes.Accept(now, Local, event.Position{}, event.RefsTo(batch...), &out)
		deliveries = boxes.Take(now, openLease, 1, len(batch), deliveries[:0])
		results = results[:0]
		for _, d := range deliveries {
			results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
		}
		boxes.Finish(now, results, &out)
		if len(out.Answers) != 1 || len(out.Answers[0].Verdicts) != len(batch) {
			b.Fatalf("%d events are not all done: %v", len(batch), out.Answers)
		}
	}
	for at := 0; boxes.window.n < boxes.window.countMax; at = (at + batch) % (len(events) - batch) {
		round(events[at : at+batch])
	}
	b.ReportAllocs()
	b.ResetTimer()
	for at := 0; at < b.N; at += batch {
		from := at % (len(events) - batch)
		round(events[from : from+min(batch, b.N-at)])
	}
}

// One operation is one event through the sharded, locked boxes, in batches of 256
// from the senders and of 64 to the workers.
func BenchmarkMailboxes(b *testing.B) {
	b.Run("from=local", func(b *testing.B) { benchmarkMailboxes(b, Local) })
	b.Run("from=peer", func(b *testing.B) { benchmarkMailboxes(b, 7) })
}

func benchmarkMailboxes(b *testing.B, from Sender) {
	boxes := NewMailboxes(DefaultConfig(), outcome.DefaultConfig(), "a", clock.Now)
	boxes.Remember(history.DefaultConfig())
	var out Output
	boxes.SetGates(openAll(), event.Position{}, &out)
	boxes.WorkerUp(1, &out)
	events := benchEvents(10_000)
	var deliveries []event.Delivery
	var results []event.Result
	entry := int64(0)
	b.ReportAllocs()
	for at := 0; at < b.N; at += 256 {
		out.Reset()
		first := at % (len(events) - 256)
		batch := events[first : first+min(256, b.N-at)]
		for _, e := range batch {
			entry++
			e.ID = event.MessageID{Ledger: 7, Entry: entry, Batch: -1, TopicPartition: -1}
		}
		boxes.Accept(from, event.Position{}, event.RefsTo(batch...), &out)
		for done := 0; done < len(batch); {
			deliveries = boxes.Take(openLease, 1, 64, deliveries[:0])
			done += len(deliveries)
			results = results[:0]
			for _, d := range deliveries {
				results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
			}
			boxes.Finish(results, &out)
		}
	}
}

// One operation is the look-up of an id in a full window, half of them known.
func BenchmarkWindowLookup(b *testing.B) {
	w := newTestWindow(DefaultConfig().WindowBytesMax/recordBytes, time.Hour)
	for i := range w.countMax {
		w.add(0, ring.Partition(i%ring.Partitions), event.MessageID{Ledger: 7, Entry: int64(i)})
	}
	b.ReportAllocs()
	b.ResetTimer()
	known := 0
	for i := range b.N {
		if w.has(event.MessageID{Ledger: 7, Entry: int64(i*7919) % int64(2*w.countMax)}) {
			known++
		}
	}
	if b.N > 1000 && (known < b.N/3 || known > b.N*2/3) {
		b.Fatalf("%d of %d ids known, want about half", known, b.N)
	}
}

// One operation closes the gates of a fifth of all partitions, with a full window, as in the step
// that moves them. The handover to next owners comes later.
func BenchmarkMoveAway(b *testing.B) {
	m := NewMailboxes(DefaultConfig(), outcome.DefaultConfig(), "me", clock.Now)
	var out Output
	m.SetGates(openAll(), event.Position{}, &out)
	done := make([]event.Finished, DefaultConfig().WindowBytesMax/recordBytes)
	for i := range done {
		done[i] = event.Finished{Partition: ring.Partition(i % ring.Partitions), ID: event.MessageID{Ledger: 7, Entry: int64(i)}, At: clock.Now()}
	}
	m.LearnDone(done, &out)
	leaving := openAll()[:ring.Partitions/5]
	for i := range leaving {
		leaving[i].Gate = ownership.Closed
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		m.SetGates(leaving, event.Position{}, &out)
		out.Reset()
	}
	b.StopTimer()
	if n := m.Stats().WindowIDs; n < len(done)/2 {
		b.Fatalf("%d ids left of %d", n, len(done))
	}
}
