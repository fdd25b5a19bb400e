package entries

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// realClient returns a client of a real broker, with short delays.
func realClient(t *testing.T) *Client {
	t.Helper()
	cfg := DefaultConfig()
	cfg.URL = pulsartest.URL(t)
	cfg.BackoffMin, cfg.BackoffMax = 10*time.Millisecond, 200*time.Millisecond
	cfg.GivenUpDelay = 50 * time.Millisecond
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	c, err := New(cfg, Access{}, NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// produce publishes events, in batches of up to batch events.
func produce(t *testing.T, o pulsar.ProducerOptions, payloads ...string) {
	t.Helper()
	producer := producerOf(t, o)
	defer producer.Close()
	publish(t, producer, payloads...)
}

func producerOf(t *testing.T, o pulsar.ProducerOptions) pulsar.Producer {
	t.Helper()
	o.SendTimeout = pulsarsend.NoTimeout
	producer, err := pulsartest.Client(t).CreateProducer(o)
	if err != nil {
		t.Fatal(err)
	}
	return producer
}

func publish(t *testing.T, producer pulsar.Producer, payloads ...string) {
	t.Helper()
	for _, p := range payloads {
		producer.SendAsync(t.Context(), &pulsar.ProducerMessage{Payload: []byte(p)}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := producer.FlushWithCtx(t.Context()); err != nil {
		t.Error(err)
	}
}

func payloads(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("event ", i))
	}
	return all
}

// events returns the payloads of the events of an entry that are not acked.
func events(t *testing.T, d *Delivered) (all []string) {
	t.Helper()
	if d.Broken != nil {
		t.Fatal(d.Broken)
	}
	if !d.Entry.Batched {
		return []string{string(d.Entry.Payload)}
	}
	list, ok := d.Split(nil)
	if !ok {
		t.Fatal(d.Broken)
	}
	for i, s := range list {
		if d.AckSet == nil || d.AckSet[i/64]>>(i%64)&1 == 1 {
			all = append(all, string(s.Payload))
		}
	}
	return all
}

// consumerStats holds the broker's statistics of the first consumer of a subscription.
type consumerStats struct {
	Permits int    `json:"availablePermits"`
	Unacked int    `json:"unackedMessages"`
	Name    string `json:"consumerName"`
}

func statsOf(t *testing.T, topic, subscription string) (backlog int, consumers []consumerStats) {
	t.Helper()
	var stats struct {
		Subscriptions map[string]struct {
			Backlog   int             `json:"msgBacklog"`
			Consumers []consumerStats `json:"consumers"`
		} `json:"subscriptions"`
	}
	pulsartest.Admin(t, http.MethodGet, pulsaradmin.TopicPath(topic)+"/stats", nil, &stats)
	s := stats.Subscriptions[subscription]
	return s.Backlog, s.Consumers
}

func receiveFor(t *testing.T, q *Queue, dst []*Delivered) []*Delivered {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Most)
	defer cancel()
	got, err := q.Receive(ctx, dst, 100)
	if err != nil {
		t.Fatal(err)
	}
	Take(got[len(dst):]...)
	return got
}

// TestPermitsOfARealBroker: oversized, partly acked and compressed batches cost the permits that the broker deducted.
func TestPermitsOfARealBroker(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	c, q := realClient(t), NewQueue()
	const permits = 100
	consumer, err := c.Subscribe(t.Context(), Subscription{Topic: topic, Name: "s", Type: Shared, FromEarliest: true, Consumer: "me", Permits: permits, Queue: q})
	if err != nil {
		t.Fatal(err)
	}
	want := payloads(2000)
	for i, batch := range []uint{400, 1, 7, 50} {
		compression := []pulsar.CompressionType{pulsar.LZ4, pulsar.NoCompression, pulsar.ZSTD, pulsar.ZLib}[i]
		produce(t, pulsar.ProducerOptions{
			Topic: topic, DisableBatching: batch == 1, BatchingMaxMessages: max(2, batch), BatchingMaxPublishDelay: time.Minute, CompressionType: compression,
			MaxPendingMessages: 5000,
		}, want[i*500:i*500+500]...)
	}
	var got []string
	for len(got) < len(want) {
		for _, d := range receiveFor(t, q, nil) {
			got = append(got, events(t, d)...)
			if err := consumer.Ack(wire.AckID{ID: d.ID}); err != nil {
				t.Fatal(err)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("received %d events, want %d", len(got), len(want))
	}
	eventually.True(t, "the broker has all permits, and nothing unacked", func() bool {
		backlog, consumers := statsOf(t, topic, "s")
		return backlog == 0 && len(consumers) == 1 && consumers[0] == consumerStats{Permits: permits, Name: "me"}
	})
}

// TestAckSetsOfARealBroker: events of a batch are acked one by one; the unacked events are redelivered, and cost only their own permits.
func TestAckSetsOfARealBroker(t *testing.T) {
	if !pulsartest.BatchIndexAcks(t) {
		t.Skip("the broker does not count acks of single events")
	}
	topic := pulsartest.Topic(t, 0)
	c, q := realClient(t), NewQueue()
	const permits = 100
	sub := Subscription{Topic: topic, Name: "s", Type: Shared, FromEarliest: true, Permits: permits, Queue: q}
	consumer, err := c.Subscribe(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	produce(t, pulsar.ProducerOptions{Topic: topic, BatchingMaxMessages: 70, BatchingMaxPublishDelay: time.Minute}, payloads(70)...)
	d := receiveFor(t, q, nil)[0]
	left := []uint64{1<<63 - 2, 0x3f} // all of 70 except 0 and 63
	if err := consumer.Ack(wire.AckID{ID: d.ID, AckSet: left, BatchSize: 70}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "two events count as acked", func() bool {
		_, consumers := statsOf(t, topic, "s")
		return len(consumers) == 1 && consumers[0].Unacked == 68
	})
	consumer.Close()
	if consumer, err = c.Subscribe(t.Context(), sub); err != nil {
		t.Fatal(err)
	}
	d = receiveFor(t, q, nil)[0]
	if got := events(t, d); len(got) != 68 || d.Permits != 68 || got[0] != "event 1" {
		t.Fatalf("%d events were redelivered, for %d permits, want 68 without the first", len(got), d.Permits)
	}
	eventually.True(t, "the broker has all permits", func() bool {
		_, consumers := statsOf(t, topic, "s")
		return len(consumers) == 1 && consumers[0].Permits == permits
	})
	if err := consumer.Ack(wire.AckID{ID: d.ID}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the entry is acked", func() bool {
		backlog, _ := statsOf(t, topic, "s")
		return backlog == 0
	})
}

// TestUnloadsUnderLoad: every event is delivered until its entry is acked, while the broker repeatedly unloads the topic. Acks are
// confirmed.
func TestUnloadsUnderLoad(t *testing.T) {
	topic := pulsartest.Topic(t, 2)
	c, q := realClient(t), NewQueue()
	names, err := c.Partitions(t.Context(), topic)
	if err != nil || len(names) != 2 || !strings.HasSuffix(names[1], "-partition-1") {
		t.Fatalf("partitions are %q: %v", names, err)
	}
	for _, name := range names {
		_, err := c.Subscribe(t.Context(), Subscription{
			Topic: name, Name: "s", Type: Shared, FromEarliest: true, Permits: 50, Queue: q, Receipt: func(ids []wire.AckID, err error) {
				if err != nil {
					t.Errorf("%d acks are refused: %v", len(ids), err)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	producer := producerOf(t, pulsar.ProducerOptions{Topic: topic, BatchingMaxMessages: 10, MaxPendingMessages: 5000})
	defer producer.Close()
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	var sent []string
	work.Go(func() {
		defer stop()
		for i := range 10 {
			batch := payloads(500)
			for j := range batch {
				batch[j] = fmt.Sprint(i, " ", batch[j])
			}
			sent = append(sent, batch...)
			publish(t, producer, batch...)
		}
	})
	unloads := 0
	var arrived atomic.Int64
	work.Go(func() {
		for ; ctx.Err() == nil; unloads++ {
			pulsartest.Unload(t, names[unloads%2])
			// Otherwise the producer, whose backoff grows, never succeeds, on a busy machine above all.
			for before := arrived.Load(); ctx.Err() == nil && arrived.Load() < before+200; {
				time.Sleep(10 * time.Millisecond)
			}
		}
	})
	got := map[string]bool{}
	again := 0
	receive := func(ctx context.Context, wait time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		list, err := q.Receive(ctx, nil, 100)
		Take(list...)
		for _, d := range list {
			for _, e := range events(t, d) {
				arrived.Add(1)
				if got[e] {
					again++
				}
				got[e] = true
			}
			if err := d.Consumer.Ack(wire.AckID{ID: d.ID}); err != nil {
				t.Fatal(err)
			}
		}
		return err
	}
	for ctx.Err() == nil { // the last events may arrive before the producer knows that they were published
		if err := receive(ctx, eventually.Most); err != nil && ctx.Err() == nil {
			t.Fatalf("%d events arrived while more are published: %v", len(got), err)
		}
	}
	work.Wait()
	for len(got) < len(sent) {
		if err := receive(t.Context(), eventually.Most); err != nil {
			t.Fatalf("%d of %d events arrived: %v", len(got), len(sent), err)
		}
	}
	publish(t, producer, sent[:10]...) // as a producer does that has lost a broker's answer
	eventually.True(t, "everything is acked, and the broker has all permits", func() bool {
		for receive(t.Context(), 10*time.Millisecond) == nil {
		}
		for _, name := range names {
			if backlog, consumers := statsOf(t, name, "s"); backlog != 0 || len(consumers) != 1 || consumers[0].Permits != 50 {
				return false
			}
		}
		return true
	})
	if again < 10 {
		t.Errorf("%d events arrived again, want at least the 10 that were published twice", again)
	}
	if unloads < 4 {
		t.Errorf("%d unloads prove nothing", unloads)
	}
	t.Logf("%d events, %d arrived again after %d unloads", len(got), again, unloads)
}

// TestChunksOfARealBroker: a message longer than a frame arrives whole, and its entries are acked together.
func TestChunksOfARealBroker(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	c, q := realClient(t), NewQueue()
	consumer, err := c.Subscribe(t.Context(), Subscription{Topic: topic, Name: "s", Type: Shared, FromEarliest: true, Permits: 2, Queue: q})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB in 11 chunks, with 2 permits
	for _, compression := range []pulsar.CompressionType{pulsar.NoCompression, pulsar.LZ4} {
		produce(t, pulsar.ProducerOptions{
			Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 100_000, CompressionType: compression,
		}, long)
		d := receiveFor(t, q, nil)[0]
		if got := events(t, d); got[0] != long || compression == pulsar.NoCompression && len(d.Chunks) < 10 {
			t.Fatalf("received %d bytes in %d chunks, want %d bytes", len(got[0]), len(d.Chunks), len(long))
		}
		if err := consumer.Ack(whole(d)...); err != nil {
			t.Fatal(err)
		}
	}
	eventually.True(t, "all chunks are acked, and the broker has all permits", func() bool {
		backlog, consumers := statsOf(t, topic, "s")
		return backlog == 0 && len(consumers) == 1 && consumers[0].Permits == 2
	})
}

// TestLossesOnARealBroker: a deleted topic partition that cannot be recreated, and a subscription of another type, end a consumer.
func TestLossesOnARealBroker(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	c, q := realClient(t), NewQueue()
	other, err := pulsartest.Client(t).Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s", Type: pulsar.Exclusive})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	sub := Subscription{Topic: topic, Name: "s", Type: Shared, Permits: 2, Queue: q}
	if _, err := c.Subscribe(t.Context(), sub); err == nil || !strings.Contains(err.Error(), "ConsumerBusy") || !strings.Contains(err.Error(), "different type") {
		t.Errorf("a subscription of another type is refused with: %v", err)
	}
	sub.Topic = "persistent://public/no-such-namespace/t"
	if _, err := c.Subscribe(t.Context(), sub); err == nil || !final(err) {
		t.Errorf("a topic without a namespace is refused with: %v", err)
	}
}

func TestLastIDOfARealBroker(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	c, q := realClient(t), NewQueue()
	consumer, err := c.Subscribe(t.Context(), Subscription{Topic: topic, Name: "s", Type: Shared, Permits: 2, Queue: q})
	if err != nil {
		t.Fatal(err)
	}
	if last, err := consumer.LastID(t.Context()); err != nil || last.Entry != -1 || last.Ledger < 0 {
		t.Errorf("the last id of an empty topic is %v: %v", last, err)
	}
	produce(t, pulsar.ProducerOptions{Topic: topic}, "x")
	d := receiveFor(t, q, nil)[0]
	if last, err := consumer.LastID(t.Context()); err != nil || last != d.ID {
		t.Errorf("the last id is %v: %v, want %v", last, err, d.ID)
	}
}

// A broker finds the place of a time for a reader, whose subscription keeps nothing.
func TestAReaderSinceATime(t *testing.T) {
	t.Parallel()
	topic := pulsartest.Topic(t, 0)
	producer := producerOf(t, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	defer producer.Close()
	if _, err := realClient(t).Subscribe(t.Context(), Subscription{Topic: topic, Name: "s", Type: Shared, Permits: 1, Queue: NewQueue()}); err != nil {
		t.Fatal(err) // it keeps the entries
	}
	publish(t, producer, "old", "old")
	time.Sleep(3 * time.Second) // real: a broker counts back in seconds
	publish(t, producer, "new")
	since := time.Now()
	read := func(s Start) string {
		t.Helper()
		queue := NewQueue()
		consumer, err := realClient(t).Subscribe(t.Context(), Subscription{Topic: topic, Type: Exclusive, Start: &s, Permits: 10, Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
		defer consumer.Close()
		publish(t, producer, "new") // a slow host may have missed the first one
		got, err := queue.Receive(t.Context(), nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		return string(got[0].Entry.Payload)
	}
	if got := read(Start{Since: since}); got != "new" {
		t.Errorf("since a time it reads %q first", got)
	}
	if got := read(Start{Since: since.Add(-time.Hour)}); got != "old" {
		t.Errorf("since long ago it reads %q first", got)
	}
	if got := read(Start{ID: Latest}); got != "new" {
		t.Errorf("from the end on it reads %q first", got)
	}
}

// TestExistsAtABroker: a real broker creates no topic for the question, and knows those that are there.
func TestExistsAtABroker(t *testing.T) {
	c := realClient(t)
	plain, parted := pulsartest.Topic(t, 0), pulsartest.Topic(t, 2)
	reader, err := pulsartest.Client(t).CreateReader(pulsar.ReaderOptions{Topic: plain, StartMessageID: pulsar.LatestMessageID()})
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	for range 2 { // the first question would have created it
		for topic, want := range map[string]bool{plain: true, parted: true, plain + "-mistyped": false} {
			if got, err := c.Exists(t.Context(), topic); got != want || err != nil {
				t.Errorf("%s exists: %v, %v, want %v", topic, got, err, want)
			}
		}
	}
}

// TestASubscriptionIsDeletedUnderItsConsumer: a consumer that began with the next entry misses nothing when its subscription, or the whole topic, is
// deleted and events are published before it is back. It tells of a subscription that begins anew, and that is set back.
func TestASubscriptionIsDeletedUnderItsConsumer(t *testing.T) {
	for name, test := range map[string]struct {
		method, what string
		body         any
		told         bool
	}{
		"the subscription is deleted":  {http.MethodDelete, "/subscription/s?force=true", nil, true},
		"the topic is deleted":         {http.MethodDelete, "?force=true", nil, false}, // its events are gone: none comes again
		"the subscription is set back": {http.MethodPost, "/subscription/s/resetcursor/1", nil, true},
		"the topic moves":              {http.MethodPut, "/unload", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			topic := pulsartest.Topic(t, 0)
			var log written.Text
			c, q := realClient(t), NewQueue()
			c.log = slog.New(slog.NewTextHandler(&log, nil))
			c.cfg.BackoffMin, c.cfg.BackoffMax = 2*time.Second, 2*time.Second // time to publish
			produce(t, pulsar.ProducerOptions{Topic: topic}, "earlier")
			sub := Subscription{Topic: topic, Name: "s", Type: Shared, Permits: 10, Queue: q}
			if _, err := c.Subscribe(t.Context(), sub); err != nil {
				t.Fatal(err)
			}
			produce(t, pulsar.ProducerOptions{Topic: topic}, "before")
			if err := receiveFor(t, q, nil)[0].Ack(); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the event is acked", func() bool { backlog, _ := statsOf(t, topic, "s"); return backlog == 0 })
			pulsartest.Admin(t, test.method, pulsaradmin.TopicPath(topic)+test.what, test.body, nil)
			produce(t, pulsar.ProducerOptions{Topic: topic}, "meanwhile")
			for got := ""; got != "meanwhile"; {
				for _, d := range receiveFor(t, q, nil) {
					got = events(t, d)[0]
				}
			}
			tells := func() bool {
				return strings.Contains(log.String(), "moved back") && strings.Contains(log.String(), topic)
			}
			if test.told {
				eventually.True(t, "it is told", func() bool { return tells() && testutil.ToFloat64(c.metrics.setBack) == 1 })
			} else if time.Sleep(time.Second); tells() {
				t.Errorf("told %s", log.String())
			}
		})
	}
}
