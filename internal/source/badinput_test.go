package source_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/source/sourcetest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// send publishes messages with a producer of its own, as one batch if that allows.
func send(t *testing.T, client pulsar.Client, o pulsar.ProducerOptions, messages ...*pulsar.ProducerMessage) {
	t.Helper()
	o.BatchingMaxMessages, o.BatchingMaxPublishDelay = uint(len(messages))+1, time.Minute
	producer, err := client.CreateProducer(o)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for _, m := range messages {
		producer.SendAsync(t.Context(), m, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				t.Errorf("send: %v", err)
			}
		})
	}
	if err := producer.FlushWithCtx(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// readDeadLetters takes n events out of the dead letter topic.
func readDeadLetters(t *testing.T, b sourcetest.Broker, topic string, n int) []event.Message {
	t.Helper()
	cfg := sourcetest.Config(source.DeadLetterTopicName([]string{topic}, sourcetest.Subscription))
	cfg.Subscription = cfg.DeadLetterSubscription
	reader := sourcetest.Start(t, b.Source(t, cfg))
	letters := reader.Take(n)
	reader.Done(letters...)
	return letters
}

// Every kind of producer input arrives as it was sent, even through the retry topic, and is
// acked.
func TestPulsarOddMessagesComeAsTheyWereSent(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	big := bytes.Repeat([]byte("0123456789abcdef"), (5<<20-64<<10)/16) // as large as a broker takes it in one piece
	const binary = "\xff\x00\xfe\xc3"
	for name, c := range map[string]struct {
		options  pulsar.ProducerOptions
		messages []*pulsar.ProducerMessage
	}{
		"empty payload in a batch":     {pulsar.ProducerOptions{}, []*pulsar.ProducerMessage{{Key: "k", Payload: []byte{}}, {Key: "k2", Payload: []byte{}}}},
		"batch of one":                 {pulsar.ProducerOptions{}, []*pulsar.ProducerMessage{{Payload: []byte{}}}},
		"a property and nothing else":  {pulsar.ProducerOptions{DisableBatching: true}, []*pulsar.ProducerMessage{{Payload: []byte{}, Properties: map[string]string{"a": ""}}}},
		"no key":                       {pulsar.ProducerOptions{}, []*pulsar.ProducerMessage{{Payload: []byte("x")}, {Payload: []byte("y")}}},
		"longest key":                  {pulsar.ProducerOptions{}, []*pulsar.ProducerMessage{{Key: strings.Repeat("k", event.KeyMax), Payload: []byte("x")}}},
		"too long a key":               {pulsar.ProducerOptions{}, []*pulsar.ProducerMessage{{Key: strings.Repeat("k", 2*event.KeyMax), Payload: []byte("x")}}},
		"key that is not UTF-8":        {pulsar.ProducerOptions{}, []*pulsar.ProducerMessage{{Key: binary, OrderingKey: binary, Payload: []byte(binary)}}},
		"key that is not UTF-8, alone": {pulsar.ProducerOptions{DisableBatching: true}, []*pulsar.ProducerMessage{{Key: binary, Payload: []byte(binary)}}},
		"5 MiB":                        {pulsar.ProducerOptions{DisableBatching: true}, []*pulsar.ProducerMessage{{Key: "k", Payload: big}}},
		"chunks":                       {pulsar.ProducerOptions{DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 1 << 20}, []*pulsar.ProducerMessage{{Key: "k", Payload: big}}},
		"compressed chunks":            {pulsar.ProducerOptions{DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 10 << 10, CompressionType: pulsar.LZ4}, []*pulsar.ProducerMessage{{Key: "k", Payload: big}}},
		"LZ4":                          {pulsar.ProducerOptions{CompressionType: pulsar.LZ4}, []*pulsar.ProducerMessage{{Key: "k", Payload: big[:100_000]}, {Payload: []byte("x")}}},
		"ZLib":                         {pulsar.ProducerOptions{CompressionType: pulsar.ZLib}, []*pulsar.ProducerMessage{{Key: "k", Payload: big[:100_000]}, {Payload: []byte("x")}}},
		"ZSTD":                         {pulsar.ProducerOptions{CompressionType: pulsar.ZSTD}, []*pulsar.ProducerMessage{{Key: "k", Payload: big[:100_000]}, {Payload: []byte("x")}}},
		"Snappy":                       {pulsar.ProducerOptions{CompressionType: pulsar.SNAPPY}, []*pulsar.ProducerMessage{{Key: "k", Payload: big[:100_000]}, {Payload: []byte("x")}}},
	} {
		t.Run(name, func(t *testing.T) {
			topic := topic + strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", "")
			c.options.Topic = topic
			send(t, b.client, c.options, c.messages...)
			m := sourcetest.Start(t, b.Source(t, sourcetest.Config(topic)))
			check := func(got []event.Message, round uint32) {
				t.Helper()
				var sent, came []string
				for _, out := range c.messages {
					sent = append(sent, fmt.Sprintf("%q %q %v %x", out.Key, out.OrderingKey, len(out.Properties), digest(out.Payload)))
				}
				for _, in := range got {
					came = append(came, fmt.Sprintf("%q %q %v %x", in.Key, in.OrderingKey, len(in.Event.Properties), digest(in.Event.Payload)))
					if in.Event.Round != round {
						t.Errorf("round %d, want %d", in.Event.Round, round)
					}
				}
				slices.Sort(sent)
				slices.Sort(came)
				if !slices.Equal(sent, came) {
					t.Errorf("came %.300q, want %.300q", came, sent)
				}
			}
			got := m.Take(len(c.messages))
			check(got, 0)
			var verdicts []event.Verdict
			for _, e := range got {
				verdicts = append(verdicts, event.Verdict{Handle: e.Event.Handle, Kind: event.Failed, Detail: &event.Detail{Attempts: 1, Reason: "again"}})
			}
			m.Settle(nil, verdicts)
			again := m.Take(len(c.messages))
			check(again, 1)
			m.Done(again...)
			m.AwaitIdle()
			eventually.True(t, "the broker keeps nothing", func() bool {
				retry := source.RetryTopicName([]string{topic}, sourcetest.Subscription)
				return b.Unacked(t, topic, sourcetest.Subscription) == 0 && b.Unacked(t, retry, sourcetest.Subscription) == 0
			})
		})
	}
}

// digest makes a short text of a payload.
func digest(payload []byte) []byte {
	if len(payload) <= 16 {
		return payload
	}
	return fmt.Appendf(nil, "%d:%x", len(payload), payload[len(payload)-8:])
}

// Encrypted entries cannot be read here. They go to the dead letter topic unchanged, with
// everything needed to decrypt them, and do not disturb other events.
func TestPulsarEncryptedEventsAreDeadLettered(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	encrypt := pulsartest.Encryption(t)
	secret := []byte("nobody reads this")
	send(t, b.client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true, Encryption: encrypt},
		&pulsar.ProducerMessage{Key: "user-1", Payload: secret, Properties: map[string]string{"mine": "kept"}})
	send(t, b.client, pulsar.ProducerOptions{Topic: topic, Encryption: encrypt, CompressionType: pulsar.LZ4},
		&pulsar.ProducerMessage{Key: "user-2", Payload: secret}, &pulsar.ProducerMessage{Key: "user-2", Payload: secret}, &pulsar.ProducerMessage{Key: "user-2", Payload: secret})
	b.Publish(t, topic, sourcetest.Message{Key: "user-1", Payload: "clear"})

	reg := prometheus.NewRegistry()
	m := sourcetest.Start(t, b.source(t, sourcetest.Config(topic), source.NewMetrics(reg)))
	got := m.Take(1)
	if string(got[0].Event.Payload) != "clear" {
		t.Fatalf("%q was handed on", got[0].Event.Payload)
	}
	m.Done(got...)
	m.AwaitIdle()
	eventually.True(t, "the broker keeps nothing", func() bool { return b.Unacked(t, topic, sourcetest.Subscription) == 0 })

	letters := readDeadLetters(t, b, topic, 2)
	for i, wantBatch := range []int{1, 3} {
		var c struct {
			Algorithm, Param string
			Keys             map[string]struct{ Value string }
			BatchSize        int `json:"batch_size"`
		}
		letter := letters[i].Event
		reason, _ := letter.Property(source.PropertyReason)
		context, _ := letter.Property(source.PropertyEncryption)
		if err := json.Unmarshal([]byte(context), &c); err != nil || c.Param == "" || c.Keys["their-key"].Value == "" || c.BatchSize != wantBatch {
			t.Errorf("the encryption context of letter %d is %v, %s", i, err, context)
		}
		if !strings.Contains(reason, "encrypted") || bytes.Contains(letter.Payload, secret) || len(letter.Payload) < len(secret) {
			t.Errorf("letter %d has %d bytes and the reason %q", i, len(letter.Payload), reason)
		}
	}
	if mine, _ := letters[0].Event.Property("mine"); mine != "kept" || letters[0].Key != "user-1" {
		t.Errorf("letter of key %q with property %q, want both as sent", letters[0].Key, mine)
	}
}
