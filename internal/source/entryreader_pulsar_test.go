package source_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/source/sourcetest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// awaitNothingKept waits until the broker has forgotten all entries of a topic.
func awaitNothingKept(t *testing.T, b sourcetest.Broker, topic string) {
	t.Helper()
	eventually.True(t, "the broker keeps nothing", func() bool { return b.Unacked(t, topic, sourcetest.Subscription) == 0 })
}

// Chunked messages without an uncompressed size arrive whole, also when the chunks of two producers alternate. All chunks are acked, none
// before its message is done.
func TestEntriesChunksOfForeignProducers(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	producers := []*rawProducer{newRawProducer(t, b, topic, "one"), newRawProducer(t, b, topic, "two")}
	const chunks, size = 5, 1000
	want := make(map[string][]byte)
	for message := range 3 {
		for i := range chunks {
			for n, p := range producers {
				key := fmt.Sprint("key-", n, "-", message)
				if want[key] == nil {
					want[key] = bytes.Repeat([]byte(key+" "), chunks*size/len(key+" ")+1)[:chunks*size]
				}
				p.publish(p.chunk(p.name+fmt.Sprint("-", message), key, i, chunks, chunks*size), want[key][i*size:(i+1)*size])
			}
		}
	}
	m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
	got := m.Take(len(want))
	for _, e := range got {
		if !bytes.Equal(e.Event.Payload, want[e.Key]) || e.Event.ID.Batch != -1 {
			t.Errorf("%v of key %q has %d bytes, want %d as they were sent", e.Event.ID, e.Key, len(e.Event.Payload), len(want[e.Key]))
		}
	}
	if kept := pulsartest.Stats(t, topic, sourcetest.Subscription).Backlog; kept != chunks*len(want) {
		t.Errorf("the broker keeps %d entries, want %d", kept, chunks*len(want))
	}
	m.Stop()

	// Another member gets them again, as the same events.
	again := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
	for _, e := range again.Take(len(want)) {
		if !slices.ContainsFunc(got, func(o event.Message) bool { return o.Event.ID == e.Event.ID && o.Key == e.Key }) {
			t.Errorf("event %v was not known by this id before", e.Event.ID)
		}
		again.Done(e)
	}
	again.AwaitIdle()
	awaitNothingKept(t, b, topic)
}

// A message of its own with a key and nothing else is an event.
func TestEntriesMessagesOfNothing(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	b.Publish(t, topic, sourcetest.Message{Key: "only a key"})
	b.Publish(t, topic, sourcetest.Message{})
	send(t, b.client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true, CompressionType: pulsar.LZ4},
		&pulsar.ProducerMessage{Key: "compressed", Payload: []byte{}})
	m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
	var keys []string
	for _, e := range m.Take(3) {
		if e.Event.Payload == nil || len(e.Event.Payload) != 0 {
			t.Errorf("the message of key %q has the payload %v, want an empty one", e.Key, e.Event.Payload)
		}
		keys = append(keys, e.Key)
		m.Done(e)
	}
	if want := []string{"only a key", "", "compressed"}; !slices.Equal(keys, want) {
		t.Errorf("messages came with the keys %q, want %q", keys, want)
	}
	m.AwaitIdle()
	awaitNothingKept(t, b, topic)
}

// broken are the ways in which producers break entries, and the reasons that the dead letters name.
var broken = map[string]struct {
	reason string // "" if the broker does not deliver such an entry
	entry  func(p *rawProducer) []byte
}{
	"unknown compression": {"compression", func(p *rawProducer) []byte {
		m := p.metadata()
		m.Compression = pulsarpb.CompressionType(9).Enum()
		return p.entry(m, []byte("whatever"))
	}},
	"garbage for lz4":    {"decompress", garbage(pulsarpb.CompressionType_LZ4)},
	"garbage for zlib":   {"decompress", garbage(pulsarpb.CompressionType_ZLIB)},
	"garbage for zstd":   {"decompress", garbage(pulsarpb.CompressionType_ZSTD)},
	"garbage for snappy": {"size", garbage(pulsarpb.CompressionType_SNAPPY)},
	"another uncompressed size": {"size", func(p *rawProducer) []byte {
		m := p.metadata()
		payload, err := wiretest.Compress(m, pulsarpb.CompressionType_ZSTD, bytes.Repeat([]byte("x"), 1000))
		if err != nil {
			p.t.Fatal(err)
		}
		m.UncompressedSize = new(uint32(999))
		return p.entry(m, payload)
	}},
	"a batch that does not split": {"batch", func(p *rawProducer) []byte {
		m := p.metadata()
		m.NumMessagesInBatch = new(int32(2))
		return p.entry(m, bytes.Repeat([]byte{0xff}, 100))
	}},
	"a batch of fewer events than it says": {"batch", func(p *rawProducer) []byte { return p.entry(counted(p, 5), twoEvents(p)) }},
	"a batch of more events than it says":  {"batch", func(p *rawProducer) []byte { return p.entry(counted(p, 1), twoEvents(p)) }},
	"a batch of no events":                 {"batch", func(p *rawProducer) []byte { return p.entry(counted(p, 0), twoEvents(p)) }},
	"a chunk without a uuid":               {"chunk", func(p *rawProducer) []byte { return p.entry(p.chunk("", "k", 0, 2, 100), []byte("p")) }},
	// The broker takes entries with bad metadata, and acks them itself instead of delivering them.
	"metadata without a producer": {"", func(p *rawProducer) []byte {
		return wiretest.Checked(append(wiretest.Sized(nil, []byte{2 << 3, 1, 3 << 3, 1}), "payload"...))
	}},
	"metadata that are no protobuf": {"", func(*rawProducer) []byte {
		return wiretest.Checked(append(wiretest.Sized(nil, bytes.Repeat([]byte{0xff}, 20)), "payload"...))
	}},
	// This one it refuses.
	"another checksum": {"", func(p *rawProducer) []byte {
		entry := p.entry(p.metadata(), []byte("payload"))
		entry[3]++
		return entry
	}},
}

func garbage(c pulsarpb.CompressionType) func(p *rawProducer) []byte {
	return func(p *rawProducer) []byte {
		m := p.metadata()
		m.Compression, m.UncompressedSize = c.Enum(), new(uint32(1000))
		return p.entry(m, bytes.Repeat([]byte{0xf7, 0x13}, 50))
	}
}

func counted(p *rawProducer, events int32) *pulsarpb.MessageMetadata {
	m := p.metadata()
	m.NumMessagesInBatch = &events
	return m
}

func twoEvents(p *rawProducer) (batch []byte) {
	for _, payload := range []string{"one", "two"} {
		var err error
		if batch, err = wiretest.AppendSingle(batch, new(pulsarpb.SingleMessageMetadata), []byte(payload)); err != nil {
			p.t.Fatal(err)
		}
	}
	return batch
}

// Broken entries reach the dead letter topic as bytes, with the reason, and do not disturb others. Each is acked when its copy is
// safe: without a dead letter topic, the broker keeps all of them.
func TestEntriesBrokenEntriesAreDeadLettered(t *testing.T) {
	b := newPulsarBroker(t)
	cfg := withoutAutoTopics(t)
	cfg.CopyBackoffMax = 100 * time.Millisecond
	topic, letters := cfg.Topics[0], source.DeadLetterTopicName(cfg.Topics, cfg.Subscription)
	deleteTopic(t, letters)
	sent := make(map[string]string) // bytes, by name
	for name, c := range broken {
		p := newRawProducer(t, b, topic, strings.ReplaceAll(name, " ", "-"))
		entry := c.entry(p)
		err := p.send(entry)
		switch {
		case c.reason == "":
		case err != nil:
			t.Errorf("the broker refuses %s: %v", name, err)
		default:
			sent[name] = string(entry)
		}
	}
	b.Publish(t, topic, sourcetest.Message{Key: "k", Payload: "whole"})
	reg := prometheus.NewRegistry()
	m := sourcetest.Start(t, b.source(t, cfg, source.NewMetrics(reg)))
	got := m.Take(1)
	if string(got[0].Event.Payload) != "whole" {
		t.Fatalf("%q was handed on", got[0].Event.Payload)
	}
	m.Done(got...)
	eventually.True(t, "all broken entries are copied, in vain", func() bool {
		return m.Stats().Unsettled == len(sent) && metric(t, reg, "ringfence_source_copy_failures_total") >= float64(len(sent))
	})
	if kept := pulsartest.Stats(t, topic, cfg.Subscription).Backlog; kept < len(sent) {
		t.Errorf("the broker keeps %d entries, want at least %d", kept, len(sent))
	}
	createTopic(t, letters)
	m.AwaitIdle()
	awaitNothingKept(t, b, topic)

	reader, err := b.client.Subscribe(pulsar.ConsumerOptions{Topic: letters, SubscriptionName: cfg.DeadLetterSubscription})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	came := make(map[string]map[string]string) // properties, by payload
	for range sent {
		letter, err := reader.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		came[string(letter.Payload())] = letter.Properties()
	}
	for name, bytes := range sent {
		properties := came[bytes]
		word := properties[source.PropertyBroken]
		if reason := properties[source.PropertyReason]; word != broken[name].reason || !strings.Contains(reason, "cannot be read ("+word+": ") {
			t.Errorf("%s: the dead letter says %q, %q, want %q", name, word, reason, broken[name].reason)
		}
	}
}

// The parts of a chunked message that is broken as a whole are one dead letter.
func TestEntriesBrokenChunkedMessage(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	p := newRawProducer(t, b, topic, "p")
	for i, part := range []string{"no ", "zstd ", "at all"} {
		m := p.chunk("u", "k", i, 3, len("no zstd at all"))
		m.Compression, m.UncompressedSize = pulsarpb.CompressionType_ZSTD.Enum(), new(uint32(1000))
		p.publish(m, []byte(part))
	}
	m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
	awaitNothingKept(t, b, topic)
	m.AwaitIdle()
	letter := readDeadLetters(t, b, topic, 1)[0]
	word, _ := letter.Event.Property(source.PropertyBroken)
	if string(letter.Event.Payload) != "no zstd at all" || word != "decompress" || letter.Key != "k" {
		t.Errorf("the dead letter is %q with key %q, broken by %q", letter.Event.Payload, letter.Key, word)
	}
}

// The chunks of a message that never gets complete are one dead letter, after they have come twice, and leave nothing behind at the broker.
func TestEntriesIncompleteChunkedMessage(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	p := newRawProducer(t, b, topic, "p")
	p.publish(p.chunk("u", "k", 0, 3, len("one two three")), []byte("one "))
	p.publish(p.chunk("u", "k", 1, 3, len("one two three")), []byte("two "))
	b.Publish(t, topic, sourcetest.Message{Key: "k", Payload: "whole"})
	cfg := sourcetest.Config(topic)
	cfg.ChunkedTimeout = 300 * time.Millisecond
	options := pulsartest.Options(t)
	options.OperationTimeout = time.Second // waits for chunks are checked as often
	m := sourcetest.Start(t, source.NewPulsar(cfg, source.Access{Client: options}, sourcetest.NewMetrics(), sourcetest.Quiet()))
	m.Done(m.Take(1)...)
	awaitNothingKept(t, b, topic)
	m.AwaitIdle()
	letter := readDeadLetters(t, b, topic, 1)[0]
	word, _ := letter.Event.Property(source.PropertyBroken)
	reason, _ := letter.Event.Property(source.PropertyReason)
	if string(letter.Event.Payload) != "one two " || word != "chunk" || letter.Key != "k" || !strings.Contains(reason, "2 of its 3 chunks") {
		t.Errorf("the dead letter is %q with key %q, broken by %q: %s", letter.Event.Payload, letter.Key, word, reason)
	}
}

// Encrypted batches use up as many permits as they have events, and give back as many: the source need not subscribe again.
func TestEntriesEncryptedBatchesGiveBackTheirPermits(t *testing.T) {
	b := newPulsarBroker(t)
	reg := prometheus.NewRegistry()
	topic := b.Topic(t, 0)
	cfg := sourcetest.Config(topic)
	cfg.ReceiverQueueMax = 10
	m := sourcetest.Start(t, b.source(t, cfg, source.NewMetrics(reg)))
	encrypt := pulsartest.Encryption(t)
	const batches, size = 20, 15
	for range batches {
		messages := make([]*pulsar.ProducerMessage, size)
		for i := range messages {
			messages[i] = &pulsar.ProducerMessage{Payload: []byte("x")}
		}
		send(t, b.client, pulsar.ProducerOptions{Topic: topic, Encryption: encrypt}, messages...)
	}
	b.Publish(t, topic, sourcetest.Message{Payload: "clear"})
	m.Done(m.Take(1)...)
	m.AwaitIdle()
	awaitNothingKept(t, b, topic)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "ringfence_reader_reconnects_total" {
			t.Errorf("subscriptions were made again: %v", f.GetMetric())
		}
	}
}

// Nothing is lost when a broker unloads a topic under load.
func TestEntriesUnloadsUnderLoad(t *testing.T) {
	disturb(t, 10, func(b pulsarBroker, topic string) { b.Unload(t, topic) })
}

var restarts = flag.Int("source.restarts", 0, "how often to kill the broker, which no other test may use: "+
	"tools/pulsar.sh run --own -- go test ./internal/source -run Restarts -source.restarts=3")

// Nothing is lost when a broker is killed under load, and starts again.
func TestEntriesRestartsUnderLoad(t *testing.T) {
	if *restarts == 0 {
		t.Skip("kills the broker: needs -source.restarts")
	}
	disturb(t, *restarts, func(pulsarBroker, string) {
		if out, err := exec.CommandContext(t.Context(), "../../tools/pulsar.sh", "restart").CombinedOutput(); err != nil {
			t.Fatalf("restart: %v\n%s", err, out)
		}
	})
}

// disturb does something to a broker repeatedly, while events come and are acked.
func disturb(t *testing.T, times int, something func(b pulsarBroker, topic string)) {
	t.Helper()
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
	producer, err := b.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, BatchingMaxPublishDelay: time.Millisecond, SendTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	var sent sync.Map
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var producing sync.WaitGroup
	producing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			payload := fmt.Sprint(i)
			answered := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err == nil {
					sent.Store(payload, true)
				}
			}
			producer.SendAsync(t.Context(), &pulsar.ProducerMessage{Payload: []byte(payload)}, answered)
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		}
		if err := producer.FlushWithCtx(t.Context()); err != nil {
			t.Error(err)
		}
	})
	came := make(map[string]bool)
	take := func() {
		for range m.Left() {
			e := m.Take(1)[0]
			came[string(e.Event.Payload)] = true
			m.Done(e)
		}
	}
	for range times {
		time.Sleep(300 * time.Millisecond)
		take()
		something(b, topic)
	}
	stop()
	producing.Wait()
	eventually.True(t, "all that was sent has come", func() bool {
		take()
		missing := 0
		sent.Range(func(payload, _ any) bool {
			if !came[payload.(string)] {
				missing++
			}
			return missing == 0
		})
		return missing == 0
	})
	m.AwaitIdle()
	awaitNothingKept(t, b, topic)
	if len(came) < 100 {
		t.Errorf("%d events prove nothing", len(came))
	}
}
