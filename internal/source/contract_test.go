package source_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/source/sourcetest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// memBroker is a broker in memory, reached directly or over gRPC.
type memBroker struct {
	broker *membroker.Broker
	reach  func(t testing.TB) source.MemBroker
}

func (b memBroker) Topic(t testing.TB, partitions int) string {
	topic := source.FullTopicName(pulsartest.Name(t))
	if partitions > 0 {
		if err := b.broker.CreatePartitionedTopic(topic, partitions); err != nil {
			t.Fatal(err)
		}
	}
	return topic
}

func (b memBroker) Publish(t testing.TB, topic string, messages ...sourcetest.Message) {
	entry := make([]membroker.Message, len(messages))
	for i, m := range messages {
		entry[i] = membroker.Message{
			Key: m.Key, OrderingKey: m.OrderingKey, Payload: []byte(m.Payload), Properties: m.Properties, EventTime: m.EventTime,
		}
	}
	if _, err := b.reach(t).Publish(t.Context(), topic, entry); err != nil {
		t.Fatal(err)
	}
}

func (b memBroker) Source(t testing.TB, cfg source.Config) *source.Source {
	return source.NewMem(cfg, b.reach(t), sourcetest.NewMetrics(), sourcetest.Quiet())
}

func (b memBroker) Unload(_ testing.TB, topic string) { b.broker.Unload(topic) }

func (b memBroker) Occupy(t testing.TB, topic, subscription string) {
	c, err := b.broker.Subscribe(t.Context(), membroker.SubscribeOptions{
		Subscription: subscription, Type: membroker.Exclusive, Topics: []string{topic},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
}

func (b memBroker) Unacked(_ testing.TB, topic, subscription string) int {
	stats := b.broker.TopicStats(topic, subscription)
	return stats.Backlog + stats.Unacked
}

func newMemBroker() memBroker {
	broker := membroker.New(membroker.DefaultConfig())
	return memBroker{broker, func(testing.TB) source.MemBroker { return broker }}
}

func TestMemKeepsTheContract(t *testing.T) { sourcetest.Run(t, newMemBroker()) }

func TestMemOverGRPCKeepsTheContract(t *testing.T) {
	broker := membroker.New(membroker.DefaultConfig())
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	membroker.Register(server, broker)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // ends with Stop
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	conn, err := grpc.NewClient("passthrough:///broker",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := membroker.NewClient(conn)
	sourcetest.Run(t, memBroker{broker, func(testing.TB) source.MemBroker { return client }})
}

// pulsarBroker is a real one.
type pulsarBroker struct{ client pulsar.Client }

func newPulsarBroker(t testing.TB) pulsarBroker { return pulsarBroker{pulsartest.Client(t)} }

func (pulsarBroker) Topic(t testing.TB, partitions int) string {
	return pulsartest.Topic(t, partitions)
}

// Publish makes exactly one entry: the batch is as large as its limit, and the
// producer knows nothing of keys when it forms it.
func (b pulsarBroker) Publish(t testing.TB, topic string, messages ...sourcetest.Message) {
	t.Helper()
	producer, err := b.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: len(messages) == 1,
		BatchingMaxMessages: uint(len(messages)) + 1, BatchingMaxPublishDelay: time.Minute, BatchingMaxSize: 4 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	errs := make(chan error, len(messages))
	for _, m := range messages {
		out := &pulsar.ProducerMessage{Payload: []byte(m.Payload), Key: m.Key, OrderingKey: m.OrderingKey, Properties: m.Properties}
		if m.EventTime != 0 {
			out.EventTime = time.UnixMilli(m.EventTime)
		}
		producer.SendAsync(t.Context(), out, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { errs <- err })
	}
	if err := producer.FlushWithCtx(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range messages {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

func (b pulsarBroker) Source(t testing.TB, cfg source.Config) *source.Source {
	return b.source(t, cfg, sourcetest.NewMetrics())
}

func (pulsarBroker) source(t testing.TB, cfg source.Config, metrics *source.Metrics) *source.Source {
	return source.NewPulsar(cfg, source.Access{Client: pulsartest.Options(t)}, metrics, sourcetest.Quiet())
}

func (pulsarBroker) Unload(t testing.TB, topic string) { pulsartest.Unload(t, topic) }

func (b pulsarBroker) Occupy(t testing.TB, topic, subscription string) {
	c, err := b.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: subscription, Type: pulsar.Exclusive})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
}

func (pulsarBroker) Unacked(t testing.TB, topic, subscription string) int {
	stats := pulsartest.Stats(t, topic, subscription)
	return stats.Backlog + max(0, stats.Unacked) // Pulsar 5.0.1 counts those of a consumer that has gone twice, and is below 0 then
}

func TestPulsarKeepsTheContract(t *testing.T) { sourcetest.Run(t, newPulsarBroker(t)) }

// A chunked message is several entries, and all of them have to be acked.
func TestPulsarChunkedMessage(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	producer, err := b.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 100 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	want := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB
	if _, err := producer.Send(t.Context(), &pulsar.ProducerMessage{Payload: []byte(want), Key: "k"}); err != nil {
		t.Fatal(err)
	}
	m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
	got := m.Take(1)
	if string(got[0].Event.Payload) != want || got[0].Key != "k" {
		t.Errorf("%d bytes came with key %q, want %d as they were sent", len(got[0].Event.Payload), got[0].Key, len(want))
	}
	if kept := b.Unacked(t, topic, sourcetest.Subscription); kept < 10 {
		t.Errorf("the broker keeps %d entries; a message of fewer than 10 chunks proves nothing", kept)
	}
	m.Done(got...)
	m.AwaitIdle()
	eventually.True(t, "all chunks acked", func() bool { return b.Unacked(t, topic, sourcetest.Subscription) == 0 })
}

// With acknowledgmentAtBatchIndexLevelEnabled, CountEvents acks single events, and only
// the open ones come back.
func TestPulsarBatchIndexAcks(t *testing.T) {
	b := newPulsarBroker(t)
	if !pulsartest.BatchIndexAcks(t) {
		t.Skip("this broker acks entries only: start one with tools/pulsar.sh run --set acknowledgmentAtBatchIndexLevelEnabled=true")
	}
	topic := b.Topic(t, 0)
	b.Publish(t, topic, make([]sourcetest.Message, 10)...)
	cfg := sourcetest.Config(topic)
	cfg.Counting = source.CountEvents
	first := sourcetest.Start(t, b.Source(t, cfg))
	got := first.Take(10)
	first.Done(got[:3]...)
	first.Done(got[4:]...)
	eventually.True(t, "the broker counts one event", func() bool {
		return pulsartest.Stats(t, topic, sourcetest.Subscription).Unacked == 1
	})
	if s := first.Stats(); s.Allowance != 1 || s.Pinned != 0 {
		t.Errorf("stats = %+v; want an allowance of 1 and nothing pinned", s)
	}
	first.Stop()
	second := sourcetest.Start(t, b.Source(t, cfg))
	again := second.Take(1)
	if again[0].Event.ID != got[3].Event.ID {
		t.Errorf("%v came again, want %v", again[0].Event.ID, got[3].Event.ID)
	}
	second.Done(again...)
	second.AwaitIdle()
	eventually.True(t, "the broker keeps nothing", func() bool { return b.Unacked(t, topic, sourcetest.Subscription) == 0 })
	if s := second.Stats(); second.Left() != 0 || s.Entries != 0 {
		t.Errorf("%d more events came, stats = %+v", second.Left(), s)
	}
}

// A null value, which deletes its key from a compacted topic, reaches the application with
// an empty payload. Its copies are null values again, and those of an empty payload are none.
func TestPulsarTombstones(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
	send(t, b.client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true}, &pulsar.ProducerMessage{Key: "alone"})
	send(t, b.client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true},
		&pulsar.ProducerMessage{Key: "with a property", Properties: map[string]string{"a": "b"}})
	send(t, b.client, pulsar.ProducerOptions{Topic: topic},
		&pulsar.ProducerMessage{Key: "in a batch"}, &pulsar.ProducerMessage{Key: "empty", Payload: []byte{}})
	send(t, b.client, pulsar.ProducerOptions{Topic: topic, CompressionType: pulsar.LZ4}, &pulsar.ProducerMessage{Key: "compressed"}, &pulsar.ProducerMessage{Key: "compressed"})
	const events = 6
	nulls := map[string]bool{"alone": true, "with a property": true, "in a batch": true, "compressed": true}
	check := func(got []event.Message) (handles []event.Handle) {
		t.Helper()
		for _, e := range got {
			if isNull := e.Event.Payload == nil; len(e.Event.Payload) != 0 || isNull != nulls[e.Key] {
				t.Errorf("%q came with %d bytes, null %v, want 0 bytes and %v", e.Key, len(e.Event.Payload), isNull, nulls[e.Key])
			}
			handles = append(handles, e.Event.Handle)
		}
		return handles
	}
	settle := func(kind event.VerdictKind, handles []event.Handle) {
		var verdicts []event.Verdict
		for _, h := range handles {
			verdicts = append(verdicts, event.Verdict{Handle: h, Kind: kind, Detail: &event.Detail{Attempts: 1, Reason: "again"}})
		}
		m.Settle(nil, verdicts)
	}
	settle(event.Failed, check(m.Take(events)))
	settle(event.Rejected, check(m.Take(events))) // by way of the retry topic
	m.AwaitIdle()
	letters, err := b.client.Subscribe(pulsar.ConsumerOptions{
		Topic: source.DeadLetterTopicName([]string{topic}, sourcetest.Subscription), SubscriptionName: sourcetest.Config(topic).DeadLetterSubscription,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer letters.Close()
	for range events {
		letter, err := letters.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if letter.IsNullValue() != nulls[letter.Key()] || len(letter.Payload()) != 0 {
			t.Errorf("the dead letter of %q is null: %v, with %d bytes", letter.Key(), letter.IsNullValue(), len(letter.Payload()))
		}
	}
}

// The broker reports how many ranges of acked entries lie between unacked ones.
func TestPulsarAckHoles(t *testing.T) {
	b := newPulsarBroker(t)
	for _, partitions := range []int{0, 2} {
		topic := b.Topic(t, partitions)
		to := topic
		if partitions > 0 {
			to += "-partition-1"
		}
		m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
		<-m.Ready()
		for range 10 {
			b.Publish(t, to, sourcetest.Message{Payload: "x"})
		}
		got := m.Take(10)
		slices.SortFunc(got, func(a, b event.Message) int { return int(a.Event.ID.Entry - b.Event.ID.Entry) })
		for i := 1; i < 10; i += 2 {
			m.Done(got[i])
		}
		admin := pulsaradmin.Client{URL: pulsartest.AdminURL(t)}
		eventually.True(t, "five holes", func() bool {
			n, _, err := source.Backlog(t.Context(), admin, topic, partitions > 0, sourcetest.Subscription)
			if err != nil {
				t.Fatal(err)
			}
			return n == 5
		})
		for i := 0; i < 10; i += 2 {
			m.Done(got[i])
		}
		m.AwaitIdle()
	}
}

// Topic partitions that are added are read, and their events acked. One that cannot be subscribed, since another
// consumer reads it with our subscription, does not affect the partitions that are read already.
func TestPulsarTopicPartitionsAreAdded(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 2)
	cfg := sourcetest.Config(topic)
	cfg.DiscoverEvery = time.Second
	reg := prometheus.NewRegistry()
	var gate sync.RWMutex // closed to the source, for a while
	access := source.Access{Client: pulsartest.Options(t), Entries: entries.Access{Dial: func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return gatedConn{conn, &gate}, nil
	}}}
	m := sourcetest.Start(t, source.NewPulsar(cfg, access, source.NewMetrics(reg), sourcetest.Quiet()))
	<-m.Ready()
	partition := func(i int) string { return fmt.Sprintf("%s-partition-%d", topic, i) }
	publish := func(partitions ...int) {
		for _, i := range partitions {
			b.Publish(t, partition(i), sourcetest.Message{Payload: "x"}, sourcetest.Message{Payload: "x"})
		}
		m.Done(m.Take(2 * len(partitions))...)
		m.AwaitIdle()
	}
	publish(0, 1)
	// Somebody else takes the newest topic partition, before the source can.
	const taken = 2
	var occupant pulsar.Consumer
	func() {
		gate.Lock()
		defer gate.Unlock()
		pulsartest.Grow(t, topic, taken+1)
		eventually.NoError(t, eventually.Most, "it is taken", func() (err error) {
			occupant, err = b.client.Subscribe(pulsar.ConsumerOptions{Topic: partition(taken), SubscriptionName: cfg.Subscription, Type: pulsar.Exclusive})
			return err
		})
	}()
	defer occupant.Close()
	pulsartest.Grow(t, topic, taken+2)
	read := []int{0, 1, taken + 1}
	failures := metric(t, reg, "ringfence_source_discovery_failures_total")
	eventually.True(t, "all others are read", func() bool {
		return metric(t, reg, "ringfence_source_topic_partitions") == float64(len(read)+2) && // and the retry and timer topics
			metric(t, reg, "ringfence_source_discovery_failures_total") >= failures+2
	})
	publish(read...)
	occupant.Close()
	eventually.True(t, "the last one is read", func() bool {
		return metric(t, reg, "ringfence_source_topic_partitions") == float64(len(read)+3)
	})
	publish(append(read, taken)...)
	eventually.True(t, "the broker keeps nothing", func() bool { return b.Unacked(t, topic, cfg.Subscription) == 0 })
}

// gatedConn writes nothing while its gate is closed.
type gatedConn struct {
	net.Conn
	gate *sync.RWMutex
}

func (c gatedConn) Write(p []byte) (int, error) {
	c.gate.RLock()
	defer c.gate.RUnlock()
	return c.Conn.Write(p)
}

// A source that begins with the next event misses none of a topic that was deleted under an earlier source of the
// process: nobody told their producers to wait.
func TestPulsarDeletedTopicComesBack(t *testing.T) {
	b := newPulsarBroker(t)
	cfg := withoutAutoTopics(t)
	cfg.FromEarliest = false
	access := source.Access{Client: pulsartest.Options(t), Begun: new(source.Begun)}
	run := func(ctx context.Context, got func(batch []event.Message)) (*source.Source, <-chan error) {
		src, ended := source.NewPulsar(cfg, access, sourcetest.NewMetrics(), sourcetest.Quiet()), make(chan error, 1)
		go func() {
			ended <- src.Run(ctx, sourcetest.Sink(func(_ context.Context, batch []event.Message) { got(batch) }))
		}()
		select {
		case <-src.Ready():
		case <-time.After(eventually.Most):
			t.Fatal("the source did not get ready")
		}
		return src, ended
	}
	first, end := context.WithCancel(t.Context())
	defer end()
	src, ended := run(first, func([]event.Message) {})
	deleteTopic(t, cfg.Topics[0])
	eventually.True(t, "the deleted topic counts as unread", func() bool { return len(src.Unread()) > 0 })
	end()
	t.Logf("the first source ended: %v", <-ended)
	createTopic(t, cfg.Topics[0])
	b.Publish(t, cfg.Topics[0], sourcetest.Message{Payload: "meanwhile"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	came := make(chan struct{}, 1)
	_, ended = run(ctx, func([]event.Message) { came <- struct{}{} })
	select {
	case <-came:
	case <-time.After(eventually.Most):
		t.Error("the event was skipped")
	}
	cancel()
	t.Logf("the second source ended: %v", <-ended)
}

// A dead letter topic that is deleted takes dead letters again when it is back, and has
// a subscription that keeps them.
func TestPulsarDeadLetterTopicComesBack(t *testing.T) {
	b := newPulsarBroker(t)
	cfg := withoutAutoTopics(t)
	cfg.CopyBackoffMax = 500 * time.Millisecond
	reg := prometheus.NewRegistry()
	m := sourcetest.Start(t, b.source(t, cfg, source.NewMetrics(reg)))
	reject := func() {
		b.Publish(t, cfg.Topics[0], sourcetest.Message{Payload: "no use"})
		m.Settle(nil, []event.Verdict{{Handle: m.Take(1)[0].Event.Handle, Kind: event.Rejected}})
	}
	reject()
	m.AwaitIdle()
	letters := source.DeadLetterTopicName(cfg.Topics, cfg.Subscription)
	deleteTopic(t, letters)
	reject()
	eventually.True(t, "copies fail", func() bool { return metric(t, reg, "ringfence_source_copy_failures_total") > 0 })
	createTopic(t, letters)
	m.AwaitIdle()
	if kept := pulsartest.Stats(t, letters, cfg.DeadLetterSubscription).Backlog; kept != 1 {
		t.Errorf("%d dead letters are kept, want 1", kept)
	}
}

// A dead letter topic that is deleted, and made again by the client as it reconnects, keeps the letters that come before the subscription is looked
// after the next time: without one they are lost as soon as the topic is unused.
func TestPulsarDeadLetterTopicIsDeletedAndMadeAgain(t *testing.T) {
	pulsartest.SkipUnderRace(t)
	b := newPulsarBroker(t)
	for _, partitions := range []int{0, 2} {
		cfg := sourcetest.Config(b.Topic(t, 0))
		letters := source.DeadLetterTopicName(cfg.Topics, cfg.Subscription)
		path := pulsaradmin.TopicPath(letters)
		if partitions > 0 {
			path += "/partitions"
			pulsartest.Admin(t, http.MethodPut, path, partitions, nil)
		}
		m := sourcetest.Start(t, b.Source(t, cfg))
		reject := func() {
			for range 2 * max(1, partitions) {
				b.Publish(t, cfg.Topics[0], sourcetest.Message{Payload: "no use"})
				m.Settle(nil, []event.Verdict{{Handle: m.Take(1)[0].Event.Handle, Kind: event.Rejected}})
			}
			m.AwaitIdle()
		}
		reject()
		pulsartest.Admin(t, http.MethodDelete, path+"?force=true", nil, nil)
		if partitions > 0 {
			makeAgain(t, letters, partitions)
		}
		reject()
		if kept, want := pulsartest.Stats(t, letters, cfg.DeadLetterSubscription).Backlog, 2*max(1, partitions); kept < want {
			t.Errorf("of %d dead letters %d are kept, with %d partitions", want, kept, partitions)
		}
	}
}

// makeAgain makes a topic with partitions that was deleted under a producer. As this reconnects, it may be faster, and make one of the topic partitions: beside
// that the broker makes no such topic (409, "This topic already exists").
func makeAgain(t *testing.T, topic string, partitions int) {
	t.Helper()
	admin := pulsaradmin.Client{URL: pulsartest.AdminURL(t)}
	eventually.NoError(t, eventually.Most, "the topic is made again", func() error {
		err := admin.Call(t.Context(), http.MethodPut, pulsaradmin.TopicPath(topic)+"/partitions", partitions, nil)
		if err == nil {
			return nil
		}
		for i := range partitions {
			one := fmt.Sprintf("%s-partition-%d?force=true", pulsaradmin.TopicPath(topic), i)
			if gone := admin.Call(t.Context(), http.MethodDelete, one, nil, nil); gone != nil && !pulsaradmin.IsNotFound(gone) {
				err = errors.Join(err, gone)
			}
		}
		return err
	})
}

// A broker that permits no more consumers does not have consumers of another type: the error says what to raise, and
// passes when another member stops.
func TestPulsarPermitsNoMoreConsumers(t *testing.T) {
	b := newPulsarBroker(t)
	cfg := withoutAutoTopics(t)
	namespace := strings.TrimSuffix(strings.TrimPrefix(cfg.Topics[0], "persistent://"), "/orders")
	pulsartest.Admin(t, http.MethodPost, "namespaces/"+namespace+"/maxConsumersPerSubscription", 1, nil)
	sourcetest.Start(t, b.Source(t, cfg))
	eventually.NoError(t, eventually.Most, "no consumer beyond the permitted one", func() error {
		// A topic learns its namespace's policy some time after it was set, and until then permits this one: then it ends, and asks again.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := b.Source(t, cfg).Run(ctx, sourcetest.Sink(func(context.Context, []event.Message) {}))
		if err == nil || errors.Is(err, source.ErrSubscriptionType) || !strings.Contains(err.Error(), "raise maxConsumersPerSubscription") {
			return fmt.Errorf("Run = %w, want that more consumers are to be permitted", err)
		}
		return nil
	})
}

// withoutAutoTopics returns a configuration for topics that are there, where the broker
// makes no others.
func withoutAutoTopics(t *testing.T) source.Config {
	t.Helper()
	namespace := "public/" + pulsartest.Name(t)
	pulsartest.Admin(t, http.MethodPut, "namespaces/"+namespace, map[string]any{}, nil)
	pulsartest.Admin(t, http.MethodPost, "namespaces/"+namespace+"/autoTopicCreation", map[string]any{"allowAutoTopicCreation": false}, nil)
	cfg := sourcetest.Config("persistent://" + namespace + "/orders")
	for _, topic := range []string{
		cfg.Topics[0], source.RetryTopicName(cfg.Topics, cfg.Subscription), source.DeadLetterTopicName(cfg.Topics, cfg.Subscription),
	} {
		createTopic(t, topic)
	}
	return cfg
}

func createTopic(t *testing.T, topic string) {
	t.Helper()
	pulsartest.Admin(t, http.MethodPut, pulsaradmin.TopicPath(topic), nil, nil)
}

func deleteTopic(t *testing.T, topic string) {
	t.Helper()
	pulsartest.Admin(t, http.MethodDelete, pulsaradmin.TopicPath(topic)+"?force=true", nil, nil)
}

// The broker lets a consumer have 200 events unacked. Of each batch of 50 one event is
// stuck: without spilling, the fifth batch would not come before one of them is done.
// The source gets the allowance from its settings or from the broker.
func TestPulsarAllowanceIsNotUsedUpByStuckEvents(t *testing.T) {
	b := newPulsarBroker(t)
	t.Run("configured", func(t *testing.T) {
		useUpAllowance(t, b, func(cfg *source.Config, allowance int) { cfg.UnackedConsumerMax = allowance })
	})
	t.Run("probed", func(t *testing.T) {
		useUpAllowance(t, b, func(cfg *source.Config, _ int) { cfg.AdminURL = pulsartest.AdminURL(t) })
	})
}

func useUpAllowance(t *testing.T, b pulsarBroker, tell func(cfg *source.Config, allowance int)) {
	topic := b.Topic(t, 0)
	const allowance, entries, size = 200, 20, 50
	b.Publish(t, topic, sourcetest.Message{Payload: "it makes the topic"})
	limitUnacked(t, topic, allowance)
	for i := range entries {
		messages := make([]sourcetest.Message, size)
		for j := range messages {
			messages[j] = sourcetest.Message{Key: fmt.Sprint(i, "-", j), Payload: "x"}
		}
		b.Publish(t, topic, messages...)
	}
	cfg := sourcetest.Config(topic)
	cfg.ReceiverQueueMax = 50
	tell(&cfg, allowance)
	cfg.Spill.After = 100 * time.Millisecond
	reg := prometheus.NewRegistry()
	m := sourcetest.Start(t, b.source(t, cfg, source.NewMetrics(reg)))
	m.Done(m.Take(1)...)

	stuck := map[event.MessageID]event.Message{}
	copies := map[event.MessageID]event.Message{}
	for fresh := 0; fresh < entries*size; {
		var done []event.Message
		for _, e := range m.Take(max(1, m.Left())) { // whole entries
			switch {
			case e.Event.Round > 0:
				copies[e.Event.ID] = e
			case strings.HasSuffix(e.Key, "-7"):
				stuck[e.Event.ID] = e
				fresh++
			default:
				done = append(done, e)
				fresh++
			}
		}
		m.Done(done...) // at once: of the last events of an entry those that a busy machine is late with would count as stuck
	}
	// Two open entries have half of the allowance. A broker of Pulsar 3.0 that has stopped at all of it would start again only with one more ack.
	eventually.True(t, "all stuck events but one are spilled", func() bool { return metric(t, reg, "ringfence_source_spilled_total") == entries-1 })
	for _, e := range stuck {
		m.Done(e) // ignores events that were spilled
	}
	for _, e := range copies {
		m.Done(e)
	}
	retry := source.RetryTopicName([]string{topic}, sourcetest.Subscription)
	eventually.True(t, "all copies have come, and the broker keeps nothing", func() bool {
		for range m.Left() {
			e := m.Take(1)[0]
			copies[e.Event.ID] = e
			m.Done(e)
		}
		return m.Stats().Unsettled == 0 && b.Unacked(t, topic, sourcetest.Subscription) == 0 && b.Unacked(t, retry, sourcetest.Subscription) == 0
	})
	for id, e := range copies {
		original, known := stuck[id]
		if !known || e.Event.Round != 1 || e.Event.Attempts != 0 || e.Key != original.Key || e.Event.Topic != topic {
			t.Errorf("copy %v came as key %q of %s, round %d, attempts %d", id, e.Key, e.Event.Topic, e.Event.Round, e.Event.Attempts)
		}
	}
	if spilled := int(metric(t, reg, "ringfence_source_spilled_total")); len(copies) != spilled {
		t.Errorf("%d copies came back of %d", len(copies), spilled)
	}
}

// limitUnacked sets the policy of a topic, and waits until it is in force.
func limitUnacked(t *testing.T, topic string, unacked int) {
	t.Helper()
	path := pulsaradmin.TopicPath(topic) + "/maxUnackedMessagesOnConsumer"
	pulsartest.Admin(t, http.MethodPost, path, unacked, nil)
	eventually.True(t, "the broker limits unacked events", func() bool {
		applied := 0
		pulsartest.Admin(t, http.MethodGet, path+"?applied=true", nil, &applied)
		return applied == unacked
	})
}

// A broker that acks whole entries would never forget an entry whose events are acked singly: the
// source must report that, not wait for it.
func TestPulsarCountingOfAnotherBrokerIsRefused(t *testing.T) {
	b := newPulsarBroker(t)
	if pulsartest.BatchIndexAcks(t) {
		t.Log("this broker acks single events: nothing to refuse")
		return
	}
	cfg := sourcetest.Config(b.Topic(t, 0))
	cfg.AdminURL, cfg.Counting = pulsartest.AdminURL(t), source.CountEvents
	err := b.Source(t, cfg).Run(t.Context(), sourcetest.Sink(func(context.Context, []event.Message) {}))
	if err == nil || !strings.Contains(err.Error(), "acknowledgmentAtBatchIndexLevelEnabled") {
		t.Errorf("Run = %v, want an error with advice", err)
	}
}

// Keys come out of events whose producer knows nothing of keys.
func TestKeysOfAProducerThatKnowsNone(t *testing.T) {
	brokers := map[string]func(*testing.T) sourcetest.Broker{
		"mem":    func(*testing.T) sourcetest.Broker { return newMemBroker() },
		"pulsar": func(t *testing.T) sourcetest.Broker { return newPulsarBroker(t) },
	}
	for name, open := range brokers {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			topic := b.Topic(t, 0)
			var sent []sourcetest.Message
			for _, user := range []string{"u1", "u2", "u1", "u3"} {
				sent = append(sent, sourcetest.Message{
					Payload: `{"seq":1,"user":{"id":"` + user + `"}}`, Properties: map[string]string{"user": user},
				})
			}
			b.Publish(t, topic, sent...)
			m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
			got := m.Take(len(sent))
			for _, spec := range []string{"property:user", "json:user.id"} {
				x, err := key.Parse(spec, key.Reject)
				if err != nil {
					t.Fatal(err)
				}
				var keys []string
				for _, e := range got {
					k, err := x.Extract(&key.Message{
						MessageKey: e.Key, OrderingKey: e.OrderingKey,
						Properties: e.Event.Properties, Payload: e.Event.Payload, ID: e.Event.ID,
					})
					if err != nil {
						t.Fatal(err)
					}
					keys = append(keys, string(k))
				}
				if want := []string{"u1", "u2", "u1", "u3"}; !slices.Equal(keys, want) {
					t.Errorf("%s gave %q, want %q", spec, keys, want)
				}
			}
			m.Done(got...)
			m.AwaitIdle()
		})
	}
}

// BenchmarkPulsarSource measures the whole of it on a real broker: entries of a
// producer's default batching, received, settled as done at once, and acked.
func BenchmarkPulsarSource(b *testing.B) {
	client := pulsartest.Client(b)
	topic := pulsartest.Topic(b, 0)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, MaxPendingMessages: 5000})
	if err != nil {
		b.Fatal(err)
	}
	defer producer.Close()
	payload := make([]byte, 200)
	for range b.N {
		producer.SendAsync(b.Context(), &pulsar.ProducerMessage{Payload: payload, Key: "k"}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	if err := producer.FlushWithCtx(b.Context()); err != nil {
		b.Fatal(err)
	}
	src := pulsarBroker{client}.Source(b, sourcetest.Config(topic))
	ctx, stop := context.WithCancel(b.Context())
	b.ReportAllocs()
	b.ResetTimer()
	settled := 0
	verdicts := make([]event.Verdict, 0, 256)
	err = src.Run(ctx, sourcetest.Sink(func(_ context.Context, events []event.Message) {
		verdicts = verdicts[:0]
		for _, e := range events {
			verdicts = append(verdicts, event.Verdict{Handle: e.Event.Handle, Kind: event.Done})
		}
		src.Settle(nil, verdicts)
		if settled += len(events); settled == b.N {
			b.StopTimer()
			stop()
		}
	}))
	stop()
	if err != nil {
		b.Fatal(err)
	}
}

// A cursor that is reset brings events again as if for the first time: nothing in them distinguishes
// a replay from redeliveries after a broker restart. So a replay has to be announced.
func TestPulsarReplayLooksLikeAFirstDelivery(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
	const n = 3
	for i := range n {
		b.Publish(t, topic, sourcetest.Message{Key: "k", Payload: fmt.Sprint(i)})
	}
	first := m.Take(n)
	m.Done(first...)
	eventually.True(t, "all is acked", func() bool { return b.Unacked(t, topic, sourcetest.Subscription) == 0 })
	path := fmt.Sprintf("%s/subscription/%s/resetcursor/%d", pulsaradmin.TopicPath(topic), sourcetest.Subscription, time.Now().Add(-time.Hour).UnixMilli())
	pulsartest.Admin(t, http.MethodPost, path, nil, nil)
	again := m.Take(n)
	for i, e := range again {
		if e.Event.ID != first[i].Event.ID || e.Event.Redelivery != 0 {
			t.Errorf("replayed %v as redelivery %d, want %v as the first", e.Event.ID, e.Event.Redelivery, first[i].Event.ID)
		}
	}
	m.Done(again...)
}

// A copy that the broker refuses for a while, here because of a policy, arrives when it is permitted, and is not sent over and over: the client
// (v0.21.0) forgets a producer whose message was refused, so that no receipt reaches it any more.
func TestPulsarRefusedCopyArrivesLater(t *testing.T) {
	b := newPulsarBroker(t)
	cfg := sourcetest.Config(b.Topic(t, 0))
	cfg.CopyTimeout, cfg.CopyBackoffMax = time.Second, 500*time.Millisecond
	retry := source.RetryTopicName(cfg.Topics, cfg.Subscription)
	reg := prometheus.NewRegistry()
	m := sourcetest.Start(t, b.source(t, cfg, source.NewMetrics(reg)))
	// take waits for an event or its copy. Others are copies whose receipts a busy machine brought too late, so that they were sent again.
	take := func(payload string, round uint32) event.Message {
		for {
			e := m.Take(1)[0]
			if string(e.Event.Payload) == payload && e.Event.Round == round {
				return e
			}
			m.Done(e)
		}
	}
	fail := func(payload string) {
		b.Publish(t, cfg.Topics[0], sourcetest.Message{Key: "k", Payload: payload})
		m.Settle(nil, []event.Verdict{{Handle: take(payload, 0).Event.Handle, Kind: event.Failed, Detail: &event.Detail{Delay: 3 * time.Second, Attempts: 1}}})
	}
	fail("permitted")
	m.Done(take("permitted", 1))
	limitDelays(t, retry, 1000)
	failures := metric(t, reg, "ringfence_source_copy_failures_total")
	fail("refused")
	eventually.True(t, "copies fail", func() bool { return metric(t, reg, "ringfence_source_copy_failures_total") > failures })
	limitDelays(t, retry, 0)
	m.Done(take("refused", 1))
	eventually.True(t, "nothing is open", func() bool {
		m.Done(m.Take(m.Left())...)
		return m.Stats().Unsettled == 0
	})
}

// A copy that the broker refuses, here because of its size, takes the receipts of the others with it once, and not each time that it is sent again.
func TestPulsarRefusedCopyDoesNotRepeatTheOthers(t *testing.T) {
	b := newPulsarBroker(t)
	cfg := sourcetest.Config(b.Topic(t, 0))
	cfg.CopyTimeout, cfg.CopyBackoffMax = 3*time.Second, 500*time.Millisecond
	letters := source.DeadLetterTopicName(cfg.Topics, cfg.Subscription)
	reg := prometheus.NewRegistry()
	m := sourcetest.Start(t, b.source(t, cfg, source.NewMetrics(reg)))
	reject := func(payloads ...string) {
		messages := make([]sourcetest.Message, 0, len(payloads))
		for _, p := range payloads {
			messages = append(messages, sourcetest.Message{Key: "k", Payload: p})
		}
		b.Publish(t, cfg.Topics[0], messages...)
		verdicts := make([]event.Verdict, 0, len(payloads))
		for _, e := range m.Take(len(payloads)) {
			verdicts = append(verdicts, event.Verdict{Handle: e.Event.Handle, Kind: event.Rejected})
		}
		m.Settle(nil, verdicts)
	}
	reject("first")
	m.AwaitIdle()
	limitSizes(t, letters, 2000)
	reject("second", "third", strings.Repeat("x", 4000), "fourth", "fifth")
	eventually.True(t, "only the refused copy waits", func() bool { return m.Stats().Unsettled == 1 })
	kept := func() int { return pulsartest.Stats(t, letters, cfg.DeadLetterSubscription).Backlog }
	failures := func() float64 { return metric(t, reg, "ringfence_source_copy_failures_total") }
	letters1, failures1 := kept(), failures()
	eventually.True(t, "it is sent again and again", func() bool { return failures() >= failures1+3 })
	if n := kept(); n != letters1 {
		t.Errorf("%d dead letters have become %d", letters1, n)
	}
	limitSizes(t, letters, 1<<20)
	m.AwaitIdle()
}

// A new event that the broker refuses, here because of its delay, fails alone: others whose receipts are lost with its own succeed.
func TestPulsarRefusedTimerFailsAlone(t *testing.T) {
	b := newPulsarBroker(t)
	cfg := sourcetest.Config(b.Topic(t, 0))
	cfg.CopyTimeout = 3 * time.Second
	m := sourcetest.Start(t, b.Source(t, cfg))
	<-m.Ready()
	send := func(name string, after time.Duration) chan error {
		answers := make(chan error, 1)
		sent := event.Sent{Key: "k", Due: time.Now().Add(after).UnixMilli()}
		err := m.Send(&event.Event{ID: event.SentMessageID("k", "test", name), Key: "k", Payload: []byte(name), Properties: sent.Properties(nil)}, func(err error) { answers <- err })
		if err != nil {
			t.Fatal(err)
		}
		return answers
	}
	if err := <-send("first", 0); err != nil {
		t.Fatal(err)
	}
	limitDelays(t, cfg.TimerTopic(), 60_000)
	refused := send("refused", 30*time.Minute)
	const others = 20
	var answers []chan error
	for i := range others {
		answers = append(answers, send(fmt.Sprint(i), 0))
	}
	for i, one := range answers {
		if err := <-one; err != nil {
			t.Errorf("event %d: %v", i, err)
		}
	}
	if err := <-refused; err == nil {
		t.Error("the refused event is confirmed")
	}
	if err := <-send("last", 0); err != nil {
		t.Errorf("after a refused event: %v", err)
	}
	came := make(map[event.MessageID]bool)
	eventually.True(t, "all others have come", func() bool {
		for _, e := range m.Take(m.Left()) {
			came[e.Event.ID] = true
			m.Done(e)
		}
		return len(came) == 1+others+1 && m.Stats().Unsettled == 0 && b.Unacked(t, cfg.TimerTopic(), cfg.Subscription) == 0
	})
}

// limitSizes sets the greatest size of a message of a topic.
func limitSizes(t *testing.T, topic string, most int) {
	t.Helper()
	path := pulsaradmin.TopicPath(topic) + "/maxMessageSize"
	pulsartest.Admin(t, http.MethodPost, path, most, nil)
	eventually.True(t, "the broker limits sizes", func() bool {
		var applied int
		pulsartest.Admin(t, http.MethodGet, path, nil, &applied)
		return applied == most
	})
}

// limitDelays sets the longest delay of a topic in milliseconds, 0: any.
func limitDelays(t *testing.T, topic string, most int) {
	t.Helper()
	// Of another tick than that of the broker Pulsar 5.0.1 delivers nothing until something is published.
	policy := map[string]any{"active": true, "tickTime": 1000, "maxDeliveryDelayInMillis": most}
	path := pulsaradmin.TopicPath(topic) + "/delayedDelivery"
	pulsartest.Admin(t, http.MethodPost, path, policy, nil)
	eventually.True(t, "the broker limits delays", func() bool {
		var applied struct {
			Max int `json:"maxDeliveryDelayInMillis"`
		}
		pulsartest.Admin(t, http.MethodGet, path+"?applied=true", nil, &applied)
		return applied.Max == most
	})
}

// A policy that lowers the allowance while the source reads is taken over: else the broker would stop at it before anything is spilled, and the
// other keys would wait for the stuck one.
func TestPulsarAllowanceIsLoweredLater(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	cfg := sourcetest.Config(topic)
	cfg.AdminURL, cfg.DiscoverEvery, cfg.Spill.After = pulsartest.AdminURL(t), 200*time.Millisecond, 100*time.Millisecond
	m := sourcetest.Start(t, b.source(t, cfg, source.NewMetrics(prometheus.NewRegistry())))
	limitUnacked(t, topic, 20)
	const stuck = 40
	for i := range stuck {
		b.Publish(t, topic, sourcetest.Message{Key: "stuck", Payload: fmt.Sprint(i)})
	}
	b.Publish(t, topic, sourcetest.Message{Key: "other", Payload: "x"})
	var open []event.Message
	for came := false; !came; {
		e := m.Take(1)[0]
		came = e.Key == "other"
		open = append(open, e)
	}
	m.Done(open...)
	eventually.True(t, "the copies have come, and nothing is open", func() bool {
		m.Done(m.Take(m.Left())...)
		return m.Stats().Unsettled == 0 && b.Unacked(t, topic, cfg.Subscription) == 0
	})
}

// The broker (4.0.8) counts entries as unacked for ever that an administrator has skipped, or that have expired, before
// they were acked. At its limit it would send nothing any more.
func TestPulsarGoesOnAfterSkippedEntries(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	const limit = 20
	cfg := sourcetest.Config(topic)
	cfg.UnackedConsumerMax = 2 * limit // else it would not hold so many
	m := sourcetest.Start(t, b.Source(t, cfg))
	limitUnacked(t, topic, limit)
	for i := range limit - 1 {
		b.Publish(t, topic, sourcetest.Message{Key: fmt.Sprint(i), Payload: "skipped"})
	}
	skipped := m.Take(limit - 1)
	pulsartest.Admin(t, http.MethodPost, pulsaradmin.TopicPath(topic)+"/subscription/"+sourcetest.Subscription+"/skip_all", nil, nil)
	for round := range 4 {
		b.Publish(t, topic, sourcetest.Message{Key: "k", Payload: "next"})
		m.Done(m.Take(1)...)
		eventually.True(t, "it is acked", func() bool { return m.Stats().Unsettled == 0 || round == 0 && m.Stats().Unsettled == limit-1 })
		if round == 0 {
			m.Done(skipped...) // the cursor has passed them
		}
	}
	eventually.True(t, "the broker counts nothing as unacked", func() bool { return b.Unacked(t, topic, sourcetest.Subscription) == 0 })
}
