package deadletter

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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

// chunksOf returns a cluster whose only topic partition holds entries, and a Broker for it.
func chunksOf(t *testing.T, list ...[]byte) *Broker {
	t.Helper()
	cluster := fakebroker.New()
	t.Cleanup(cluster.Close)
	cluster.Broker("a:6650")
	client, err := entries.New(ReaderConfig("pulsar://a", 1<<20), entries.Access{Dial: cluster.Dial}, entries.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for _, one := range list {
		cluster.Publish(streamTopic, one, 1)
	}
	cfg := DefaultConfig()
	cfg.AnswerMax, cfg.QuietMax = time.Hour, time.Hour // nothing is waited for
	return New(cfg, Connect(nil, client))
}

// TestAnEndOfChunks: a topic partition that ends with chunks whose message lacks others is read to its end, and they are named.
func TestAnEndOfChunks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		list   [][]byte
		want   []string
		unsure string
	}{
		"behind a message": {[][]byte{fakebroker.Message("a"), fakebroker.Chunk("u", 0, 2, 4, "ab")}, []string{"a"}, "at least 1"},
		"before and behind a message": {
			[][]byte{fakebroker.Chunk("u", 0, 2, 4, "ab"), fakebroker.Message("a"), fakebroker.Chunk("v", 0, 3, 4, "a"), fakebroker.Chunk("v", 1, 3, 4, "b")},
			[]string{"a"},
			"at least 2",
		},
		"before a message": {[][]byte{fakebroker.Chunk("u", 0, 2, 4, "ab"), fakebroker.Message("a")}, []string{"a"}, "at least 1"},
		"alone":            {[][]byte{fakebroker.Chunk("u", 0, 2, 4, "ab")}, nil, "at least 1"},
		"none":             {[][]byte{fakebroker.Chunk("u", 0, 2, 4, "ab"), fakebroker.Chunk("u", 1, 2, 4, "cd")}, []string{"abcd"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, since := range []time.Time{{}, time.UnixMilli(1)} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var got []string
				end, unsure, err := chunksOf(t, c.list...).readSince(ctx, streamTopic, since, func(m *message) error {
					got = append(got, string(m.Payload))
					return nil
				})
				if err != nil || !slices.Equal(got, c.want) || end != (Place{1, int64(len(c.list) - 1)}) {
					t.Errorf("it reads %q up to %v: %v", got, end, err)
				}
				if !strings.Contains(unsure, c.unsure) || (unsure == "") != (c.unsure == "") {
					t.Errorf("it says %q", unsure)
				}
			}
		})
	}
}

// TestAnInterruptedBatchBeforeChunks: chunks behind a batch, or at the place before it, hide nothing: what is not whole was not sent.
func TestAnInterruptedBatchBeforeChunks(t *testing.T) {
	t.Parallel()
	dead := fakebroker.Chunk("dead", 0, 2, 4, "ab")
	for name, c := range map[string]struct {
		list  [][]byte
		place int64
		want  []string
		why   string
	}{
		"behind it":                         {[][]byte{fakebroker.Message("a"), fakebroker.Message("b"), dead}, 0, []string{"b"}, ""},
		"nothing else":                      {[][]byte{fakebroker.Message("a"), dead}, 0, nil, ""},
		"nothing else, a message of chunks": {[][]byte{fakebroker.Chunk("u", 0, 2, 4, "ab"), fakebroker.Chunk("u", 1, 2, 4, "cd"), dead}, 1, nil, ""},
		"all that is there":                 {[][]byte{dead, fakebroker.Chunk("dead2", 0, 2, 4, "ab")}, 0, nil, "holds nothing behind {1 0}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var got []string
			why, err := chunksOf(t, c.list...).readBehind(ctx, streamTopic, Place{1, c.place}, func(m *message) error {
				got = append(got, string(m.Payload))
				return nil
			})
			if err != nil || why != c.why || !slices.Equal(got, c.want) {
				t.Errorf("it reads %q and says %q, %v", got, why, err)
			}
		})
	}
}
