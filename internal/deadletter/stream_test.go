package deadletter

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
	"github.com/ringfence/router/internal/source"
)

const streamTopic = "persistent://public/default/letters-partition-3"

// streamOf returns a broker in memory, and a reader of the letters that it holds.
func streamOf(t *testing.T, list ...[]byte) (*fakebroker.Cluster, *fakebroker.Broker, reader) {
	t.Helper()
	cluster := fakebroker.New()
	t.Cleanup(cluster.Close)
	broker := cluster.Broker("a:6650")
	client, err := entries.New(ReaderConfig("pulsar://a", 1<<20), entries.Access{Dial: cluster.Dial}, entries.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for _, one := range list {
		cluster.Publish(streamTopic, one, 1)
	}
	from, err := Connect(nil, client).letters(t.Context(), streamTopic, "kept", 100)
	if err != nil {
		t.Fatal(err)
	}
	return cluster, broker, from
}

func entryOf(t *testing.T, payload []byte, change func(*pulsarpb.MessageMetadata)) []byte {
	t.Helper()
	m := fakebroker.Metadata()
	change(m)
	entry, err := wiretest.Entry(m, payload)
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// TestMessagesOfEntries: whatever an entry holds, a reader shows at least one message for it, of which the last is that of the entry's end.
func TestMessagesOfEntries(t *testing.T) {
	t.Parallel()
	corrupt := entryOf(t, []byte("payload"), func(m *pulsarpb.MessageMetadata) { m.PartitionKey = new("key") })
	corrupt[len(corrupt)-1]++
	var batch []byte
	for i, single := range []*pulsarpb.SingleMessageMetadata{
		{PartitionKey: new("k"), OrderingKey: []byte("o"), EventTime: new(uint64(5)), Properties: []*pulsarpb.KeyValue{
			{Key: new("b"), Value: new("1")}, {Key: new("a"), Value: new("2")}, {Key: new("b"), Value: new("3")},
		}},
		{CompactedOut: new(true)},
		{NullValue: new(true)},
		{CompactedOut: new(true)},
	} {
		batch, _ = wiretest.AppendSingle(batch, single, fmt.Append(nil, "event ", i))
	}
	all := [][]byte{
		fakebroker.Message(""),
		corrupt,
		entryOf(t, []byte("payload"), func(m *pulsarpb.MessageMetadata) {
			m.PartitionKey, m.Compression = new("key"), pulsarpb.CompressionType(9).Enum()
		}),
		entryOf(t, []byte("mark"), func(m *pulsarpb.MessageMetadata) { m.MarkerType = new(int32(10)) }),
		entryOf(t, batch, func(m *pulsarpb.MessageMetadata) { m.NumMessagesInBatch = new(int32(4)) }),
		fakebroker.Batch("alone"),
		fakebroker.Chunk("u", 0, 2, 4, "ab"), fakebroker.Chunk("u", 1, 2, 4, "cd"),
		entryOf(t, []byte("late"), func(m *pulsarpb.MessageMetadata) { m.PublishTime, m.EventTime = new(uint64(1<<62)), new(uint64(1<<62)) }),
		entryOf(t, []byte("secret"), func(m *pulsarpb.MessageMetadata) {
			m.EncryptionKeys = []*pulsarpb.EncryptionKeys{{Key: new("k"), Value: []byte("v")}}
		}),
	}
	_, _, from := streamOf(t, all...)
	at := func(entry int64, batch int32) event.MessageID {
		return event.MessageID{Ledger: 1, Entry: entry, Batch: batch, TopicPartition: 3}
	}
	published := time.UnixMilli(1).UTC()
	want := []message{
		{ID: at(0, -1), Payload: []byte{}, Published: published, of: 1, shared: 1},
		{ID: at(1, -1), Payload: corrupt, Unreadable: "checksum: does not match the bytes", of: 1, shared: 1},
		{ID: at(2, -1), MessageKey: "key", Payload: all[2], Published: published, Unreadable: "compression: unknown", of: 1, shared: 1},
		{ID: at(3, -1), Payload: []byte("mark"), Published: published, Void: true, of: 1, shared: 1},
		{
			ID: at(4, 0), Batched: true, MessageKey: "k", OrderingKey: "o", EventTime: 5, Payload: []byte("event 0"), Published: published, of: 4, shared: 2,
			Properties: []event.Property{{Name: "a", Value: "2"}, {Name: "b", Value: "3"}},
		},
		{ID: at(4, 2), Batched: true, Payload: []byte("event 2"), Null: true, Published: published, index: 2, of: 4, shared: 2},
		{ID: at(4, -1), Batched: true, Published: published, Void: true, index: 3, of: 4, shared: 1},
		{ID: at(5, -1), Payload: []byte("alone"), Published: published, of: 1, shared: 1},
		{ID: at(7, -1), Payload: []byte("abcd"), Published: published, of: 1, shared: 1, first: Place{1, 6}},
		{ID: at(8, -1), Payload: []byte("late"), Published: time.UnixMilli(source.EventTimeMax).UTC(), of: 1, shared: 1},
		{ID: at(9, -1), Payload: []byte("secret"), Published: published, Encrypted: true, of: 1, shared: 1},
	}
	end, err := from.end(t.Context())
	if err != nil || end != (Place{1, 9}) {
		t.Errorf("the end is %v, %v", end, err)
	}
	for i, w := range want {
		m, err := from.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := *m
		if w.first == (Place{}) {
			w.first = w.place()
		}
		got.entry = nil
		if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", w); a != b {
			t.Errorf("message %d is\n%s, want\n%s", i, a, b)
		}
		if m.isLast(end) != (i == len(want)-1) || i > 3 && i < 7 && m.isLast(Place{1, 4}) != (i == 6) {
			t.Errorf("message %d is the last one: %v", i, m.isLast(end))
		}
	}
}

// TestAcksOfEntries: nothing is acked but on request, and an entry with several letters when all of them are, also if it comes again between.
func TestAcksOfEntries(t *testing.T) {
	t.Parallel()
	cluster, broker, from := streamOf(t, fakebroker.Message(""), fakebroker.Batch("1", "2"), fakebroker.Chunk("u", 0, 2, 4, "ab"), fakebroker.Chunk("u", 1, 2, 4, "cd"))
	next := func(n int) (all []*message) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range n {
			m, err := from.next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
		return all
	}
	backlog := func(want ...int64) {
		t.Helper()
		var got []int64
		for _, id := range cluster.Backlog(streamTopic) {
			got = append(got, id.Entry)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the broker keeps %v, want %v", got, want)
		}
	}
	ack := func(m *message) {
		t.Helper()
		if err := from.ack(m); err != nil {
			t.Error(err)
		}
	}
	first := next(4)
	backlog(0, 1, 2, 3)
	ack(first[0])
	backlog(1, 2, 3)
	ack(first[1])
	backlog(1, 2, 3)
	broker.Cut()
	again := next(3)
	ack(again[1])
	backlog(2, 3)
	ack(again[2])
	backlog()
	from.close()
}
