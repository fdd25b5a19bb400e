package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

// rig is a reader of entries at a broker in memory.
type rig struct {
	*testing.T
	*entryReader
	cluster *fakebroker.Cluster
	broker  *fakebroker.Broker
	topic   string
}

// inMemory runs a test in a bubble.
func inMemory(t *testing.T, change func(*Config), test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Topics, cfg.Subscription = []string{"t"}, "s"
		if change != nil {
			change(&cfg)
		}
		cfg = cfg.Resolved()
		cluster := fakebroker.New()
		defer cluster.Close()
		broker := cluster.Broker("a:6650")
		client := entriesConfig(cfg, &pulsar.ClientOptions{URL: "pulsar://a:6650"})
		metrics := entries.NewMetrics(prometheus.NewRegistry())
		r, err := newEntryReader(cfg, client, entries.Access{Dial: cluster.Dial}, metrics, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		topic := cfg.Topics[0]
		if err := r.subscribe(t.Context(), subscription{topic: topic, earliest: true, queue: 1000}); err != nil {
			t.Fatal(err)
		}
		test(&rig{t, r, cluster, broker, topic})
	})
}

// TestFetchesLessAhead: a topic partition that shares its queue with added ones gets no more than its part.
func TestFetchesLessAhead(t *testing.T) {
	inMemory(t, func(*Config) {}, func(r *rig) {
		r.fetchAhead("another topic", 1)
		r.fetchAhead(r.topic, 100)
		for range 1000 {
			r.cluster.Publish(r.topic, r.batch(1), 1)
		}
		r.take(1000)
		synctest.Wait()
		time.Sleep(time.Second) // permits go with acks, or a moment later
		synctest.Wait()
		if p := r.cluster.Permits(r.topic); !slices.Equal(p, []int{100}) {
			t.Errorf("the broker has permits %v, want 100", p)
		}
	})
}

// TestReadingStopsAboveTheAlert: when unacked events end the reading, their share of the allowance is above the threshold of the alert about it.
func TestReadingStopsAboveTheAlert(t *testing.T) {
	alerts, err := os.ReadFile("../../deploy/mixin/rendered/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	threshold := regexp.MustCompile(`ringfence_source_allowance_used_ratio > ([0-9.]+)`).FindSubmatch(alerts)
	if threshold == nil {
		t.Fatal("no alert compares ringfence_source_allowance_used_ratio")
	}
	above, err := strconv.ParseFloat(string(threshold[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	inMemory(t, func(c *Config) { c.UnackedConsumerMax = 1000 }, func(r *rig) {
		r.bound(r.cfg.unackedMax(1, rampSteps))
		const topic = "persistent://public/default/bounded"
		if err := r.subscribe(r.Context(), subscription{topic: topic, earliest: true, queue: 400}); err != nil {
			r.Fatal(err)
		}
		for range 2000 {
			r.cluster.Publish(topic, r.batch(1), 1)
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
		defer cancel()
		unacked := 0
		for ctx.Err() == nil {
			got, err := r.receive(ctx, nil)
			if err != nil && ctx.Err() == nil {
				r.Fatal(err)
			}
			unacked += len(got)
		}
		if used := float64(unacked) / float64(r.cfg.allowance(1)); used <= above || used > 0.9 {
			r.Errorf("reading stops at %.2f of the allowance, and the alert is about more than %g", used, above)
		}
	})
}

// TestATopicMovesToAnotherCluster: an entry of the new cluster with the id of an open one of the former cluster is another entry.
func TestATopicMovesToAnotherCluster(t *testing.T) {
	for _, counting := range []Counting{CountEntries, CountEvents} {
		inMemory(t, func(c *Config) { c.Counting = counting }, func(r *rig) {
			var link *fakebroker.Link
			var consumer uint64
			r.entryReader.close()
			synctest.Wait() // nothing asks the broker now
			r.broker.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
				if c.GetType() == pulsarpb.BaseCommand_SUBSCRIBE {
					link, consumer = l, c.GetSubscribe().GetConsumerId()
				}
				return false
			}
			other := fakebroker.New()
			defer other.Close()
			other.Broker("green:6650")
			access := entries.Access{Dial: func(ctx context.Context, address string) (net.Conn, error) {
				if address == "green:6650" {
					return other.Dial(ctx, address)
				}
				return r.cluster.Dial(ctx, address)
			}}
			client := entriesConfig(r.cfg, &pulsar.ClientOptions{URL: "pulsar://a:6650"})
			reader, err := newEntryReader(r.cfg, client, access, entries.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
			if err != nil {
				r.Fatal(err)
			}
			r.entryReader = reader
			defer reader.close()
			if err := r.subscribe(r.Context(), subscription{topic: r.topic, earliest: true, queue: 1000}); err != nil {
				r.Fatal(err)
			}
			ledger := NewLedger(counting)
			receive := func(from *fakebroker.Cluster) Receipt {
				from.Publish(r.topic, fakebroker.Batch("x", "y"), 2)
				receipt := r.take(2)[0].of
				if c, _ := ledger.Received(1, &receipt, nil); c != (Reception{Fresh: 2}) {
					r.Errorf("counting %v: the entry is received as %+v, want 2 fresh events", counting, c)
				}
				return receipt
			}
			settle := func(receipt Receipt, index int) (err error) {
				acks, _, _ := ledger.Settle([]event.Verdict{{Handle: receipt.Entry.Handle(index), Kind: event.Done}}, nil)
				for _, a := range acks {
					err = errors.Join(err, r.ack(a))
				}
				return err
			}
			old := receive(r.cluster)
			synctest.Wait()
			link.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_TOPIC_MIGRATED.Enum(), TopicMigrated: &pulsarpb.CommandTopicMigrated{
				ResourceId: &consumer, ResourceType: pulsarpb.CommandTopicMigrated_CONSUMER.Enum(), BrokerServiceUrl: new("pulsar://green"),
			}})
			synctest.Wait()
			moved := receive(other)
			if moved.ID != old.ID {
				r.Fatalf("the new cluster names its entry %v, want %v", moved.ID, old.ID)
			}
			if was, is := old.Entry.Message(0).Event.ID, moved.Entry.Message(0).Event.ID; is == was || is.TopicPartition != moved.Ref.(*entries.Delivered).Mark()<<event.ClusterShift-1 || is.PartitionNumber() != -1 {
				r.Errorf("an event of the new cluster is %v, that of the old one %v: a mailbox would take it for that one", is, was)
			}
			if ends, err := r.ends(r.Context()); err != nil || len(ends) != 1 || ends[0].Partition != moved.Entry.TopicPartition {
				r.Errorf("the topic partition ends at %+v, %v, want it named as in the ids of events", ends, err)
			}
			if err := errors.Join(settle(old, 0), settle(old, 1)); err == nil {
				r.Errorf("counting %v: an entry of the former cluster is acked in the new one", counting)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if left := other.Backlog(r.topic); len(left) != 1 {
				r.Errorf("counting %v: the new cluster keeps %v before its entry is done, want one entry", counting, left)
			}
			if err := errors.Join(settle(moved, 0), settle(moved, 1)); err != nil {
				r.Error(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if left := other.Backlog(r.topic); len(left) != 0 {
				r.Errorf("counting %v: the new cluster keeps %v after its entry is done", counting, left)
			}
		})
	}
}

// taken is one event of an entry that came.
type taken struct {
	event.Message
	of    Receipt
	index int
}

// take receives until there are n events.
func (r *rig) take(n int) (all []taken) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
	defer cancel()
	for len(all) < n {
		receipts, err := r.receive(ctx, nil)
		if err != nil {
			r.Fatalf("%d of %d events came: %v", len(all), n, err)
		}
		before := 0 // the last entry
		for i, one := range receipts {
			if i < len(receipts)-1 {
				before += one.Entry.Len()
			}
			for index := range one.Has.All() {
				all = append(all, taken{one.Entry.Message(index), one, index})
			}
		}
		if before >= r.cfg.BatchMax {
			r.Errorf("an entry came at once with %d events before it, want fewer than %d", before, r.cfg.BatchMax)
		}
	}
	return all
}

// nothing checks that no event comes.
func (r *rig) nothing() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	if got, err := r.receive(ctx, nil); len(got) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		r.Fatalf("received %d events and %v, want nothing", len(got), err)
	}
}

// kept checks that the broker keeps so many entries once acks had time.
func (r *rig) kept(want int) {
	r.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
	if got := r.cluster.Backlog(r.topic); len(got) != want {
		r.Errorf("the broker keeps %v, want %d entries", got, want)
	}
}

// ackAll acks events under CountEvents, those of an entry that follow each other together; otherwise their entries.
func (r *rig) ackAll(events ...taken) {
	r.Helper()
	for len(events) > 0 {
		of := events[0].of
		a := Ack{Entry: of.ID, Total: of.Entry.Len(), Ref: of.Ref}
		if r.cfg.Counting == CountEvents {
			a.Events = event.NewBits(a.Total)
		}
		for len(events) > 0 && events[0].of.Entry == of.Entry {
			if a.Events != nil {
				a.Events.Add(events[0].index)
			}
			events = events[1:]
		}
		if err := r.ack(a); err != nil {
			r.Error(err)
		}
	}
}

func (r *rig) entry(m *pulsarpb.MessageMetadata, payload []byte) []byte {
	r.Helper()
	entry, err := wiretest.Entry(m, payload)
	if err != nil {
		r.Fatal(err)
	}
	return entry
}

// batch returns an entry of events, of which some were removed by compaction.
func (r *rig) batch(events int, compactedOut ...int) []byte {
	r.Helper()
	var batch []byte
	var err error
	for i := range events {
		m := &pulsarpb.SingleMessageMetadata{PartitionKey: new(fmt.Sprint("k", i)), CompactedOut: new(slices.Contains(compactedOut, i))}
		if batch, err = wiretest.AppendSingle(batch, m, fmt.Append(nil, "event ", i)); err != nil {
			r.Fatal(err)
		}
	}
	m := fakebroker.Metadata()
	m.NumMessagesInBatch = new(int32(events))
	return r.entry(m, batch)
}

// A broken entry, of kinds that brokers would not take from a producer or not deliver, comes as its bytes. It is acked like an event.
func TestEntriesThatAreBroken(t *testing.T) {
	checksum := fakebroker.Message("payload")
	checksum[2]++
	for name, c := range map[string]struct {
		entry  []byte
		reason string
	}{
		"checksum":                   {checksum, "checksum"},
		"cut off":                    {fakebroker.Message("payload")[:8], "checksum"},
		"no metadata":                {nil, "metadata"},
		"no producer":                {wiretest.Checked(wiretest.Sized(nil, []byte{2 << 3, 1, 3 << 3, 1})), "metadata"},
		"bad metadata of the broker": {append([]byte{0x0e, 0x02, 0, 0, 0, 1, 0xff}, fakebroker.Message("payload")...), "metadata"},
		"a chunk without a message":  {fakebroker.Chunk("", 0, 2, 100, "part"), "chunk"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, nil, func(r *rig) {
				id := r.cluster.Publish(r.topic, c.entry, 1)
				got := r.take(1)[0]
				broken, _ := got.Event.Property(PropertyBroken)
				if string(got.Event.Payload) != string(c.entry) || broken != c.reason || !strings.Contains(got.of.Unreadable, c.reason) {
					t.Errorf("came as %q, broken by %q, because %q", got.Event.Payload, broken, got.of.Unreadable)
				}
				if got.of.ID != EntryID(id) || got.of.Entry.Len() != 1 || got.index != 0 || got.Event.ID.Batch != -1 || got.Event.Topic != r.topic {
					t.Errorf("came as %+v, event %v of %s", got.of.ID, got.Event.ID, got.Event.Topic)
				}
				r.kept(1)
				r.ackAll(got)
				r.kept(0)
			})
		})
	}
}

// Of a message whose chunks are dead letters one by one, the first is acked last.
func TestEntriesAckTheFirstChunkLast(t *testing.T) {
	inMemory(t, func(c *Config) { c.ChunkedBytesMax = 2000 }, func(r *rig) {
		for i := range 3 {
			r.cluster.Publish(r.topic, fakebroker.Chunk("u", i, 3, 2000, "part"), 1)
		}
		got := r.take(3)
		r.ackAll(got[0], got[1])
		r.kept(2)
		r.ackAll(got[2])
		r.kept(0)
	})
}

// Topic partitions use as many connections to their broker as the setting allows.
func TestEntriesOverSeveralConnections(t *testing.T) {
	inMemory(t, func(c *Config) { c.BrokerConnectionsMax = 2 }, func(r *rig) {
		for _, topic := range []string{"u", "v"} {
			if err := r.subscribe(r.Context(), subscription{topic: FullTopicName(topic), earliest: true, queue: 1000}); err != nil {
				r.Fatal(err)
			}
		}
		if n := r.broker.Links(); n != 2 {
			r.Errorf("three topics use %d connections, want 2", n)
		}
	})
}

// What exceeds a bound of the settings comes as broken bytes.
func TestEntriesBeyondTheBounds(t *testing.T) {
	metadata := fakebroker.Metadata()
	compressed, err := wiretest.Compress(metadata, pulsarpb.CompressionType_ZLIB, make([]byte, 2000))
	if err != nil {
		t.Fatal(err)
	}
	long := fakebroker.Chunk("u", 0, 2, 2000, "a chunk")
	for name, c := range map[string]struct {
		change func(*Config)
		entry  func(r *rig) []byte
		broken string
	}{
		"a payload within them": {func(c *Config) { c.PayloadBytesMax = 2000 }, func(r *rig) []byte { return r.entry(metadata, compressed) }, ""},
		"a payload beyond them": {func(c *Config) { c.PayloadBytesMax = 1999 }, func(r *rig) []byte { return r.entry(metadata, compressed) }, "size"},
		"a message beyond them": {func(c *Config) { c.ChunkedBytesMax = 2000 }, func(*rig) []byte { return long }, "size"},
		"a payload in chunks":   {func(c *Config) { c.PayloadBytesMax = 1999 }, func(*rig) []byte { return long }, "size"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, c.change, func(r *rig) {
				r.cluster.Publish(r.topic, c.entry(r), 1)
				if broken, _ := r.take(1)[0].Event.Property(PropertyBroken); broken != c.broken {
					t.Errorf("it is broken by %q, want %q", broken, c.broken)
				}
			})
		})
	}
	inMemory(t, nil, func(r *rig) { // whose first chunk is held
		r.cluster.Publish(r.topic, long, 1)
		r.nothing()
	})
}

// A batch of millions of properties, which is small on the wire, comes as broken bytes, whose dead letter has none of them.
func TestEntriesOfTooManyProperties(t *testing.T) {
	const tag, size, name, value, payloadSize = 1<<3 | 2, 4, 1<<3 | 2, 2<<3 | 2, 3 << 3
	event := append(bytes.Repeat([]byte{tag, size, name, 0, value, 0}, 2<<20), payloadSize, 0)
	metadata := fakebroker.Metadata()
	metadata.NumMessagesInBatch = new(int32(1))
	compressed, err := wiretest.Compress(metadata, pulsarpb.CompressionType_ZSTD, wiretest.Sized(nil, event))
	if err != nil {
		t.Fatal(err)
	}
	inMemory(t, nil, func(r *rig) {
		entry := r.entry(metadata, compressed)
		r.cluster.Publish(r.topic, entry, 1)
		got := r.take(1)[0]
		broken, _ := got.Event.Property(PropertyBroken)
		if string(got.Event.Payload) != string(entry) || broken != "batch" || len(got.Event.Properties) != 1 || !strings.Contains(got.of.Unreadable, "too many properties") {
			t.Errorf("came as %d bytes with %d properties, broken by %q, because %q", len(got.Event.Payload), len(got.Event.Properties), broken, got.of.Unreadable)
		}
		r.kept(1)
		r.ackAll(got)
		r.kept(0)
	})
}

// Nobody handles what a broker has written for itself, or what compaction has removed: it is acked.
func TestEntriesWithoutEvents(t *testing.T) {
	for _, counting := range []Counting{CountEntries, CountEvents} {
		inMemory(t, func(c *Config) { c.Counting = counting }, func(r *rig) {
			marker := fakebroker.Metadata()
			marker.MarkerType = new(int32(1))
			r.cluster.Publish(r.topic, r.entry(marker, nil), 1)
			r.cluster.Publish(r.topic, r.batch(3, 0, 1, 2), 3)
			r.nothing()
			r.kept(0)

			r.cluster.Publish(r.topic, r.batch(5, 0, 3), 5)
			got := r.take(3)
			var ids []int32
			for _, e := range got {
				ids = append(ids, e.Event.ID.Batch)
				if e.of.Entry.Len() != 5 || e.of.Has.Len() != 3 || e.index != int(e.Event.ID.Batch) {
					t.Errorf("event %v is number %d of %d, of which %d came; want 3 of 5", e.Event.ID, e.index, e.of.Entry.Len(), e.of.Has.Len())
				}
			}
			if !slices.Equal(ids, []int32{1, 2, 4}) {
				t.Errorf("events %v came, want 1, 2 and 4", ids)
			}
			r.kept(1)
			if counting == CountEntries {
				r.ackAll(got[0])
			} else {
				r.ackAll(got...)
			}
			r.kept(0)
		})
	}
}

// Under CountEvents single events are acked, and only the others come again. Under CountEntries all of an entry come, because it is
// complete with all of them only.
func TestEntriesOfWhichEventsAreAcked(t *testing.T) {
	const events = 130 // more than two words of an ack set
	for _, counting := range []Counting{CountEntries, CountEvents} {
		inMemory(t, func(c *Config) { c.Counting = CountEvents }, func(r *rig) {
			r.cluster.Publish(r.topic, r.batch(events), events)
			got := r.take(events)
			r.ackAll(got[0], got[129])
			r.ackAll(got[64])
			r.kept(1)
			r.cfg.Counting = counting
			r.broker.Cut()
			want := events
			if counting == CountEvents {
				want -= 3
			}
			again := r.take(want)
			for _, e := range again {
				if counting == CountEvents && slices.Contains([]int{0, 64, 129}, e.index) || int(e.Event.ID.Batch) != e.index || e.of.Entry.Len() != events {
					t.Errorf("%v came again as number %d of %d", e.Event.ID, e.index, e.of.Entry.Len())
				}
			}
			if counting == CountEvents {
				r.ackAll(again...)
			} else {
				r.ackAll(again[0])
			}
			r.kept(0)
			r.nothing()
		})
	}
}

// An entry with more events than what is handed on at once comes whole; shorter ones come together.
func TestEntriesLongerThanABatch(t *testing.T) {
	inMemory(t, func(c *Config) { c.BatchMax = 7 }, func(r *rig) {
		for range 3 {
			r.cluster.Publish(r.topic, r.batch(20), 20)
			r.cluster.Publish(r.topic, fakebroker.Message("alone"), 1)
		}
		got := r.take(63)
		at := 0
		for range 3 {
			for i := range 20 {
				e := got[at]
				if string(e.Event.Payload) != fmt.Sprint("event ", i) || e.Key != fmt.Sprint("k", i) ||
					e.index != i || e.of.Entry.Len() != 20 || e.of.Entry != got[at-i].of.Entry {
					t.Fatalf("event %d is %q of key %q, number %d of %d", at, e.Event.Payload, e.Key, e.index, e.of.Entry.Len())
				}
				at++
			}
			if string(got[at].Event.Payload) != "alone" || got[at].of.Entry.Len() != 1 {
				t.Fatalf("event %d is %q", at, got[at].Event.Payload)
			}
			r.ackAll(got[at-1], got[at])
			at++
		}
		r.kept(0)
		r.cluster.Publish(r.topic, r.batch(1), 1)
		if one := r.take(1)[0]; one.Event.ID.Batch != -1 || one.of.Entry.Len() != 1 {
			t.Errorf("the event of a batch of one is %v of %d events, want no index", one.Event.ID, one.of.Entry.Len())
		}
		for range 6 {
			r.cluster.Publish(r.topic, r.batch(3), 3)
		}
		synctest.Wait()
		receipts, err := r.receive(r.Context(), nil)
		if err != nil || len(receipts) != 3 {
			t.Errorf("%d entries of 3 events came at once, %v, want the 3 with which it is 7 or more", len(receipts), err)
		}
	})
}

// All attributes of events arrive. Of properties with one name the last value counts, however many there are.
func TestEntriesHaveTheAttributesOfTheirEvents(t *testing.T) {
	for _, more := range []int{0, searchedMax} {
		inMemory(t, nil, func(r *rig) {
			m := fakebroker.Metadata()
			m.PartitionKey, m.OrderingKey, m.SchemaVersion = new("k"), []byte("o"), []byte{0, 7}
			m.EventTime, m.PublishTime = new(uint64(5)), new(uint64(6))
			add := func(name, value string) {
				m.Properties = append(m.Properties, &pulsarpb.KeyValue{Key: &name, Value: &value})
			}
			add("a", "1")
			add("b", "2")
			for i := range more {
				add(fmt.Sprint("x", i), "x")
			}
			add("a", "3")
			r.cluster.Publish(r.topic, r.entry(m, []byte("payload")), 1)
			null := fakebroker.Metadata()
			null.NullValue = new(true)
			r.cluster.Publish(r.topic, r.entry(null, nil), 1)
			r.cluster.Publish(r.topic, r.entry(fakebroker.Metadata(), nil), 1)
			got := r.take(3)
			ev := got[0].Event
			if got[0].Key != "k" || got[0].OrderingKey != "o" || ev.EventTime != 5 || ev.PublishTime != 6 ||
				ev.SchemaVersion != "\x00\a" || string(ev.Payload) != "payload" {
				t.Errorf("came as %+v of key %q, ordering key %q", ev, got[0].Key, got[0].OrderingKey)
			}
			if len(ev.Properties) != 2+more || !slices.Equal(ev.Properties[:2], []event.Property{{Name: "a", Value: "3"}, {Name: "b", Value: "2"}}) {
				t.Errorf("came with the properties %v", ev.Properties)
			}
			if got[1].Event.Payload != nil || got[2].Event.Payload == nil || len(got[2].Event.Payload) > 0 {
				t.Errorf("a null value came as %v, an empty one as %v", got[1].Event.Payload, got[2].Event.Payload)
			}
		})
	}
}

// A consumer that cannot come back ends reading, as with the client.
func TestEntriesOfALostTopic(t *testing.T) {
	inMemory(t, nil, func(r *rig) {
		gone := r.cluster.Broker("gone:6650")
		gone.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() != pulsarpb.BaseCommand_SUBSCRIBE {
				return false
			}
			l.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ERROR.Enum(), Error: &pulsarpb.CommandError{
				RequestId: c.GetSubscribe().RequestId, Error: pulsarpb.ServerError_TOPIC_NOT_FOUND.Enum(), Message: new("no topic"),
			}})
			return true
		}
		r.cluster.Move(r.topic, gone, false)
		ended, end := context.WithCancel(r.Context()) // as that of a reader which is to look at a held timer
		end()
		var err error
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if _, err = r.receive(ended, nil); !errors.Is(err, context.Canceled) {
				break
			}
		}
		if !errors.Is(err, errLost) || !strings.Contains(err.Error(), "TopicNotFound") {
			t.Errorf("receive = %v, want %v and the broker's words", err, errLost)
		}
	})
}

// The scratch of a batch with very many events or properties is not kept: all of it would be cleared after each later batch.
func TestScratchOfAnOddBatchIsNotKept(t *testing.T) {
	b := batches{singles: make([]wire.Single, scratchMax), properties: make([]event.Property, 2*scratchMax)}
	b.clear()
	if cap(b.singles) != scratchMax || b.properties != nil {
		t.Errorf("kept %d events and %d properties, want %d and none", cap(b.singles), cap(b.properties), scratchMax)
	}
}

// singles are events of a batch with all that producers can say of one, and those that a source makes of them.
func singles() (sent []*pulsarpb.SingleMessageMetadata, payloads [][]byte, want []event.Message) {
	const many = searchedMax + 1 // properties are searched in another way then
	property := func(name, value string) *pulsarpb.KeyValue { return &pulsarpb.KeyValue{Key: &name, Value: &value} }
	add := func(payload string, m *pulsarpb.SingleMessageMetadata, ev event.Event) {
		sent, payloads = append(sent, m), append(payloads, []byte(payload))
		ev.Key = event.Key(m.GetPartitionKey())
		want = append(want, event.Message{Event: &ev, Key: m.GetPartitionKey(), OrderingKey: string(m.OrderingKey)})
	}
	text := func(s string) event.Event { return event.Event{Payload: []byte(s)} }

	add("plain", &pulsarpb.SingleMessageMetadata{PartitionKey: new("k1")}, text("plain"))
	add("keys", &pulsarpb.SingleMessageMetadata{PartitionKey: new("k2"), OrderingKey: []byte("\xffo")}, text("keys"))
	add("", &pulsarpb.SingleMessageMetadata{PartitionKey: new("deleted"), NullValue: new(true)}, event.Event{})
	add("", &pulsarpb.SingleMessageMetadata{OrderingKey: []byte("only")}, text(""))
	add("", &pulsarpb.SingleMessageMetadata{PartitionKey: new("compacted"), CompactedOut: new(true)}, text(""))
	repeated := text("repeated names")
	repeated.Properties = []event.Property{{Name: "a", Value: "3"}, {Name: "b", Value: ""}}
	add("repeated names", &pulsarpb.SingleMessageMetadata{
		Properties: []*pulsarpb.KeyValue{property("a", "1"), property("b", ""), property("a", "2"), property("a", "3")},
	}, repeated)
	timed := text("timed")
	timed.EventTime = 1_700_000_000_123
	add("timed", &pulsarpb.SingleMessageMetadata{EventTime: new(uint64(1_700_000_000_123))}, timed)
	crowded, m := text("many properties"), &pulsarpb.SingleMessageMetadata{}
	for i := range many {
		m.Properties = append(m.Properties, property(fmt.Sprint("p", i), "first"))
		crowded.Properties = append(crowded.Properties, event.Property{Name: fmt.Sprint("p", i), Value: "first"})
	}
	m.Properties = append(m.Properties, property("p3", "last"))
	crowded.Properties[3].Value = "last"
	add("many properties", m, crowded)
	add("last", &pulsarpb.SingleMessageMetadata{PartitionKey: new("k1")}, text("last"))
	return sent, payloads, want
}

// The bytes of a batch are the events that its producer has sent, however they are read, and reading the next batch does not change them.
func TestABatchAsBytesIsItsEvents(t *testing.T) {
	sent, payloads, want := singles()
	var batch []byte
	for i := range sent {
		var err error
		if batch, err = wiretest.AppendSingle(batch, sent[i], payloads[i]); err != nil {
			t.Fatal(err)
		}
	}
	for name, compression := range map[string]pulsarpb.CompressionType{"as it is": pulsarpb.CompressionType_NONE, "compressed": pulsarpb.CompressionType_ZSTD} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, nil, func(r *rig) {
				m := fakebroker.Metadata()
				m.NumMessagesInBatch, m.SchemaVersion, m.PublishTime = new(int32(len(sent))), []byte{0, 7}, new(uint64(6))
				m.Properties = []*pulsarpb.KeyValue{{Key: new("of"), Value: new("nobody")}} // a batch's events have their own
				payload, err := wiretest.Compress(m, compression, batch)
				if err != nil {
					t.Fatal(err)
				}
				id := r.cluster.Publish(r.topic, r.entry(m, payload), len(sent))
				r.cluster.Publish(r.topic, r.batch(20), 20)
				got := r.take(len(sent) - 1 + 20)
				e := got[0].of.Entry
				bytes := len(batch) + 256*len(want)
				for i := range want {
					bytes += 32 * len(e.Properties(i))
				}
				if e.Objects() || e.Len() != len(want) || e.Bytes != bytes {
					t.Errorf("it has %d events of %d bytes, objects %v; want %d of %d bytes", e.Len(), e.Bytes, e.Objects(), len(want), bytes)
				}
				first := event.NewHandle(77, 0)
				e.SetFirst(first)
				for i, w := range want {
					if has := got[0].of.Has.Has(i); has == sent[i].GetCompactedOut() {
						t.Errorf("event %d is handed on: %v", i, has)
					}
					w.Event.ID = event.MessageID{Ledger: int64(id.Ledger), Entry: int64(id.Entry), Batch: int32(i), TopicPartition: -1}
					w.Event.Handle, w.Event.Topic, w.Event.PublishTime, w.Event.SchemaVersion = event.NewHandle(77, i), r.topic, 6, "\x00\a"
					checkEvent(t, e, i, w)
				}
				e.MakeObjects()
				for i, w := range want {
					if !e.Objects() || !reflect.DeepEqual(e.Message(i), w) {
						t.Errorf("event %d as an object is %+v, want %+v", i, e.Message(i).Event, w.Event)
					}
				}
			})
		})
	}
}

// checkEvent compares an event that is bytes, read in each way, with an object.
func checkEvent(t *testing.T, e *event.Entry, i int, want event.Message) {
	t.Helper()
	if got := e.Message(i); !reflect.DeepEqual(got, want) {
		t.Errorf("event %d is %+v of keys %q and %q, want %+v of %q and %q", i, got.Event, got.Key, got.OrderingKey, want.Event, want.Key, want.OrderingKey)
	}
	if got := e.Event(i); !reflect.DeepEqual(got, want.Event) {
		t.Errorf("event %d is %+v, want %+v", i, got, want.Event)
	}
	key, ordering := e.Keys(i)
	if e.ID(i) != want.Event.ID || e.Handle(i) != want.Event.Handle || e.Key(i) != want.Event.Key || key != want.Key || ordering != want.OrderingKey {
		t.Errorf("event %d is %v with handle %d of keys %q, %q and %q", i, e.ID(i), e.Handle(i), e.Key(i), key, ordering)
	}
	if !reflect.DeepEqual(e.Payload(i), want.Event.Payload) || !reflect.DeepEqual(e.Properties(i), want.Event.Properties) {
		t.Errorf("event %d has the payload %q and the properties %v", i, e.Payload(i), e.Properties(i))
	}
	if e.Weight(i) != want.Event.Bytes() {
		t.Errorf("event %d weighs %d, want %d", i, e.Weight(i), want.Event.Bytes())
	}
}

// The properties of an event outside a batch are not in its payload, and take memory as long as the event.
func TestAnEventWithLargePropertiesCountsWithThem(t *testing.T) {
	inMemory(t, nil, func(r *rig) {
		m := fakebroker.Metadata()
		m.Properties = []*pulsarpb.KeyValue{{Key: new("large"), Value: new(strings.Repeat("x", 100_000))}}
		r.cluster.Publish(r.topic, r.entry(m, []byte("small")), 1)
		if e := r.take(1)[0].of.Entry; e.Bytes < e.Weight(0) {
			t.Errorf("the entry counts %d bytes, and its event weighs %d", e.Bytes, e.Weight(0))
		}
	})
}

// A batch keeps its whole frame in memory: the properties of the batch, which no event has, count as well.
func TestABatchCountsWithItsFrame(t *testing.T) {
	inMemory(t, nil, func(r *rig) {
		m := fakebroker.Metadata()
		m.NumMessagesInBatch = new(int32(1))
		m.Properties = []*pulsarpb.KeyValue{{Key: new("large"), Value: new(strings.Repeat("x", 100_000))}}
		batch, err := wiretest.AppendSingle(nil, new(pulsarpb.SingleMessageMetadata), []byte("small"))
		if err != nil {
			t.Fatal(err)
		}
		r.cluster.Publish(r.topic, r.entry(m, batch), 1)
		if e := r.take(1)[0].of.Entry; e.Bytes < 100_000 {
			t.Errorf("the entry counts %d bytes, and its frame has 100,000", e.Bytes)
		}
	})
}

// Large events are received a few at a time, so that the bound of all that is open is checked in between.
func TestABatchOfReceiptsHasFewBytes(t *testing.T) {
	inMemory(t, nil, func(r *rig) {
		const count, size = 60, 1 << 20
		for range count {
			m := fakebroker.Metadata()
			payload, err := wiretest.Compress(m, pulsarpb.CompressionType_LZ4, make([]byte, size))
			if err != nil {
				t.Fatal(err)
			}
			r.cluster.Publish(r.topic, r.entry(m, payload), 1)
		}
		synctest.Wait()
		for got := 0; got < count; {
			receipts, err := r.receive(r.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got += len(receipts); len(receipts) > batchBytesMax/size {
				t.Fatalf("%d events of a MiB came at once, want at most %d bytes", len(receipts), batchBytesMax)
			}
			for _, one := range receipts {
				if n := len(one.Entry.Payload(0)); n != size || one.Unreadable != "" {
					t.Fatalf("an event has %d bytes (%s)", n, one.Unreadable)
				}
			}
		}
	})
}
