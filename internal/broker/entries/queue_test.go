package entries

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

// A lost topic partition is told at once, though a backlog of others waits: that may never end, and nothing else says that one is not read.
func TestALossComesBeforeABacklog(t *testing.T) {
	q := NewQueue()
	for range 3 {
		q.push(new(Delivered))
	}
	lost := &LostError{Topic: "t", Cause: errors.New("gone")}
	q.lose(lost)
	q.push(new(Delivered))
	if got, err := q.Receive(t.Context(), nil, 2); !errors.Is(err, ErrLost) || len(got) > 0 {
		t.Fatalf("Receive = %d entries, %v, want the loss", len(got), err)
	}
	for _, want := range []int{2, 2} {
		if got, err := q.Receive(t.Context(), nil, 2); err != nil || len(got) != want {
			t.Errorf("Receive = %d entries, %v, want %d", len(got), err, want)
		}
	}
}

// Small entries that declare large payloads take no more memory than a bound while they wait: permits count events, of which each of them has one.
func TestWaitingEntriesAreNotAllDecompressed(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		const count, size = 90, 1 << 20
		m := fakebroker.Metadata()
		payload, err := wiretest.Compress(m, pulsarpb.CompressionType_ZSTD, make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		entry, err := wiretest.Entry(m, payload)
		if err != nil {
			t.Fatal(err)
		}
		for range count {
			r.cluster.Publish(topicName, entry, 1)
		}
		r.subscribe()
		synctest.Wait()
		held := 0
		for _, d := range r.queue.entries {
			held += len(d.Entry.Payload)
		}
		if r.queue.Len() != count || held > openMax+size+count*len(payload) || int64(held) != r.queue.bytes.Load() {
			t.Errorf("%d entries wait with %d bytes, %d by the count; want %d with at most %d", r.queue.Len(), held, r.queue.bytes.Load(), count, openMax+size)
		}
		var parser wire.Parser
		for i, d := range r.receive(count) {
			if d.Open(&parser); d.Broken != nil || len(d.Entry.Payload) != size {
				t.Fatalf("entry %d has %d bytes (%v)", i, len(d.Entry.Payload), d.Broken)
			}
		}
		if n := r.queue.bytes.Load(); n != 0 {
			t.Errorf("an empty queue counts %d bytes", n)
		}
	})
}
