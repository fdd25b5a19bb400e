package source_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/source/sourcetest"
)

// parkedAs is the verdict that sends an event to the parking topic as the n-th of its key.
func parkedAs(m event.Message, n int) event.Verdict {
	mark := event.Mark{Act: [16]byte{1}, Fence: event.Fence{Token: 7, Turn: uint64(n)}}
	return event.Verdict{Handle: m.Event.Handle, Kind: event.Parked, Detail: &event.Detail{Reason: mark.String() + " newest error", Attempts: 2}}
}

// park sends the next n events of a source to the parking topic.
func park(m *sourcetest.Member, n int) {
	var verdicts []event.Verdict
	for i, e := range m.Take(n) {
		verdicts = append(verdicts, parkedAs(e, i))
	}
	m.Settle(nil, verdicts)
}

// readAll reads the parking topic once, acks every letter and returns the payloads by turn.
func readAll(t *testing.T, p *source.Parking) (payloads []string) {
	t.Helper()
	var letters []*source.ParkedLetter
	reading, err := p.Read(t.Context(), func(l *source.ParkedLetter) { letters = append(letters, l) })
	if err != nil {
		t.Fatal(err)
	}
	defer reading.Close()
	slices.SortFunc(letters, func(a, b *source.ParkedLetter) int { return a.Mark.Fence.Compare(b.Mark.Fence) })
	for _, l := range letters {
		if l.Key != "k" || l.Event.Attempts != 2 || l.Event.Round != 1 || l.Event.LastError != "newest error" || l.Mark.Act != [16]byte{1} {
			t.Fatalf("letter %v of the key %q comes back as %+v", l.Mark, l.Key, l.Event)
		}
		payloads = append(payloads, string(l.Event.Payload))
		if err := reading.Ack(l); err != nil {
			t.Fatal(err)
		}
	}
	return payloads
}

// publish makes n entries of one message of the key "k" each, and returns their payloads.
func publish(t *testing.T, broker source.MemBroker, topic string, n int) (payloads []string) {
	t.Helper()
	for i := range n {
		payloads = append(payloads, fmt.Sprintf("event %d", i))
		if _, err := broker.Publish(t.Context(), source.FullTopicName(topic), []membroker.Message{{Key: "k", Payload: []byte(payloads[i])}}); err != nil {
			t.Fatal(err)
		}
	}
	return payloads
}

// TestParkingReadsAllLetters: a reading ends with the letters that were there when it began, however many they are, and letters that were acked do
// not come again.
func TestParkingReadsAllLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 3000
		broker, cfg := membroker.New(membroker.DefaultConfig()), sourcetest.Config("t")
		want := publish(t, broker, "t", events)
		parking := cfg.Resolved().ParkingTopic()
		if _, err := broker.Publish(t.Context(), parking, []membroker.Message{{Properties: map[string]string{"ringfence-parked-end": "of a reading that has failed"}}}); err != nil {
			t.Fatal(err)
		}
		m := sourcetest.Start(t, source.NewMem(cfg, broker, sourcetest.NewMetrics(), sourcetest.Quiet()))
		for range events / 500 {
			park(m, 500)
		}
		m.AwaitIdle()
		m.Stop()
		p := source.NewMemParking(cfg, broker, sourcetest.NewMetrics(), sourcetest.Quiet())
		got := readAll(t, p)
		slices.Sort(got) // each 500 were counted from 0
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%d letters came back, want %d", len(got), len(want))
		}
		if again := readAll(t, p); len(again) != 0 {
			t.Errorf("%d letters came back twice", len(again))
		}
		if stats := broker.SubscriptionStats(cfg.Resolved().DeadLetterSubscription); stats.Backlog+stats.Unacked != 0 {
			t.Errorf("of letters and ends these remain: %+v", stats)
		}
	})
}

// TestReadingsOfTheParkingTopicExcludeEachOther: until the first is closed, or has failed.
func TestReadingsOfTheParkingTopicExcludeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, cfg := &flaky{Broker: membroker.New(membroker.DefaultConfig())}, sourcetest.Config("t")
		publish(t, broker, "t", 1)
		m := sourcetest.Start(t, source.NewMem(cfg, broker, sourcetest.NewMetrics(), sourcetest.Quiet()))
		park(m, 1)
		m.AwaitIdle()
		m.Stop()
		p := source.NewMemParking(cfg, broker, sourcetest.NewMetrics(), sourcetest.Quiet())
		nothing := func(*source.ParkedLetter) {}
		first, err := p.Read(t.Context(), nothing)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Read(t.Context(), nothing); !errors.Is(err, source.ErrParkingBusy) {
			t.Errorf("beside another reading: %v", err)
		}
		first.Close()
		broker.refuse = 1
		if _, err := p.Read(t.Context(), nothing); !errors.Is(err, errFlaky) {
			t.Errorf("without an end: %v", err)
		}
		if got := readAll(t, p); len(got) != 1 {
			t.Errorf("%q came back after a reading that has failed", got)
		}
	})
}

// TestParkingOfAPartitionedTopic: an operator may have made the parking topic with partitions. A reading ends when it has found the end of each.
func TestParkingOfAPartitionedTopic(t *testing.T) {
	t.Parallel()
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	cfg := sourcetest.Config(topic)
	pulsartest.Admin(t, http.MethodPut, pulsaradmin.TopicPath(cfg.Resolved().ParkingTopic())+"/partitions", 3, nil)
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprintf("event %02d", i))
		b.Publish(t, topic, sourcetest.Message{Key: "k", Payload: want[i]})
	}
	m := sourcetest.Start(t, b.Source(t, cfg))
	park(m, len(want))
	m.AwaitIdle()
	m.Stop()
	p := source.NewParking(cfg, access(t), sourcetest.NewMetrics(), sourcetest.Quiet())
	if got := readAll(t, p); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("letters %q came back, want %q", got, want)
	}
	if again := readAll(t, p); len(again) != 0 {
		t.Errorf("%q came back twice", again)
	}
}

// access returns what a reading of the parking topic needs.
func access(t *testing.T) func() source.Access {
	return func() source.Access { return source.Access{Client: pulsartest.Options(t)} }
}

// bombBytes is what a message of some KiB becomes. No reading may take as much.
const bombBytes = 200 << 20

// allocated returns the bytes that are allocated meanwhile.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestBombsInTheParkingTopic: an unpark refuses messages that would become gigabytes, or name billions of events, takes no such memory, names them, leaves them where
// they are, and brings back the letters around them. It runs alone, since it counts all allocations.
func TestBombsInTheParkingTopic(t *testing.T) {
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	cfg := sourcetest.Config(topic)
	parking := cfg.Resolved().ParkingTopic()
	m := sourcetest.Start(t, b.Source(t, cfg))
	letter := func(payload string) {
		b.Publish(t, topic, sourcetest.Message{Key: "k", Payload: payload})
		park(m, 1)
		m.AwaitIdle()
	}
	letter("a")
	zstd, err := wiretest.Compress(nil, pulsarpb.CompressionType_ZSTD, make([]byte, bombBytes))
	if err != nil {
		t.Fatal(err)
	}
	producer := newRawProducer(t, b, parking, "hostile")
	for _, one := range []struct {
		compression pulsarpb.CompressionType
		payload     []byte
		declared    uint32
	}{{pulsarpb.CompressionType_ZLIB, []byte("of a few bytes"), math.MaxUint32}, {pulsarpb.CompressionType_ZSTD, zstd, bombBytes}, {pulsarpb.CompressionType_ZSTD, zstd, 1000}} {
		m := producer.metadata()
		m.Compression, m.UncompressedSize = one.compression.Enum(), &one.declared
		producer.publish(m, one.payload)
	}
	letter("b")
	for range 3 { // more than a broker's number of permits can count
		many := producer.metadata()
		many.NumMessagesInBatch = proto.Int32(math.MaxInt32)
		producer.publish(many, twoEvents(producer))
	}
	large := producer.chunk("u", "k", 0, 2, math.MaxInt32)
	producer.publish(large, []byte("a message of 2 GiB begins"))
	letter("c")
	m.Stop()

	reg := prometheus.NewRegistry()
	var lines bytes.Buffer
	p := source.NewParking(cfg, access(t), source.NewMetrics(reg), slog.New(slog.NewTextHandler(&lines, nil)))
	var got, again []string
	if took := allocated(func() { got, again = readAll(t, p), readAll(t, p) }); took > bombBytes/4 {
		t.Errorf("two readings allocated %d MiB", took>>20)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"a", "b", "c"}) || len(again) > 0 {
		t.Errorf("the letters %q and again %q came back, want a, b and c once", got, again)
	}
	if refused := metric(t, reg, "ringfence_source_parked_refused_total"); refused != 2*7 {
		t.Errorf("%v messages were refused by two readings, want 7 each", refused)
	}
	if n := strings.Count(lines.String(), "cannot be read, or are too large"); n != 2 || !strings.Contains(lines.String(), "(size: ") || !strings.Contains(lines.String(), "messages=7") {
		t.Errorf("%d lines tell of them, want one for each reading that names the first:\n%s", n, &lines)
	}
}

// TestALetterOfManyChunks: an event that came in a small entry may be a letter in more chunks than pulsar.chunked_bytes_max holds.
func TestALetterOfManyChunks(t *testing.T) {
	t.Parallel()
	b := newPulsarBroker(t)
	topic := b.Topic(t, 0)
	cfg := sourcetest.Config(topic)
	payload := make([]byte, cfg.ChunkedBytesMax+1<<20)
	producer := newRawProducer(t, b, topic, "p")
	large := producer.metadata()
	large.PartitionKey = new("k")
	compressed, err := wiretest.Compress(large, pulsarpb.CompressionType_ZSTD, payload)
	if err != nil {
		t.Fatal(err)
	}
	m := sourcetest.Start(t, b.Source(t, cfg))
	producer.publish(large, compressed)
	park(m, 1)
	m.AwaitIdle()
	m.Stop()
	p := source.NewParking(cfg, access(t), sourcetest.NewMetrics(), sourcetest.Quiet())
	if got := readAll(t, p); len(got) != 1 || got[0] != string(payload) {
		t.Errorf("%d letters came back, want the one", len(got))
	}
	if again := readAll(t, p); len(again) != 0 {
		t.Errorf("%d letters came back twice", len(again))
	}
}

// TestEncryptedMessagesInTheParkingTopic: they stay, are counted, and do not keep a reading from its end, however many there are.
func TestEncryptedMessagesInTheParkingTopic(t *testing.T) {
	t.Parallel()
	cfg := sourcetest.Config(pulsartest.Topic(t, 0))
	const foreign = 150 // more than are fetched ahead
	producer, err := pulsartest.Client(t).CreateProducer(pulsar.ProducerOptions{
		Topic: cfg.Resolved().ParkingTopic(), DisableBatching: true, Encryption: pulsartest.Encryption(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	reg := prometheus.NewRegistry()
	p := source.NewParking(cfg, access(t), source.NewMetrics(reg), sourcetest.Quiet())
	readAll(t, p) // which creates the subscription
	for range foreign {
		producer.SendAsync(t.Context(), &pulsar.ProducerMessage{Key: "k", Payload: []byte("of another program")}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := producer.FlushWithCtx(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if got := readAll(t, p); len(got) != 0 {
			t.Errorf("these came back: %q", got)
		}
		if refused := metric(t, reg, "ringfence_source_parked_refused_total"); refused != float64(foreign*(n+1)) {
			t.Errorf("%v messages were refused by %d readings, want %d each", refused, n+1, foreign)
		}
	}
}

// TestParkingRefusesForeignLetters: what no router of the group has written, or what was changed, is counted, is not handled, and stays.
func TestParkingRefusesForeignLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, cfg := membroker.New(membroker.DefaultConfig()), sourcetest.Config("t")
		cfg.CopyKeysFile = filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(cfg.CopyKeysFile, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		want := publish(t, broker, "t", 1)
		m := sourcetest.Start(t, source.NewMem(cfg, broker, sourcetest.NewMetrics(), sourcetest.Quiet()))
		park(m, 1)
		m.AwaitIdle()
		m.Stop()

		parking := cfg.Resolved().ParkingTopic()
		look, err := broker.Subscribe(t.Context(), membroker.SubscribeOptions{Subscription: cfg.Resolved().DeadLetterSubscription, Type: membroker.Exclusive, Topics: []string{parking}})
		if err != nil {
			t.Fatal(err)
		}
		look.Permit(1)
		entries, err := look.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		look.Close()
		letter := entries[0].Messages[0]
		changed := func(change func(*membroker.Message)) membroker.Message {
			other := letter
			other.Properties = maps.Clone(letter.Properties)
			change(&other)
			return other
		}
		for _, foreign := range [][]membroker.Message{
			{{Key: "k", Payload: []byte("of another program")}},
			{changed(func(m *membroker.Message) { m.Payload = []byte("altered") })},
			{changed(func(m *membroker.Message) { m.Key = "other" })},
			{changed(func(m *membroker.Message) { delete(m.Properties, source.PropertySeal) })},
			{changed(func(m *membroker.Message) { delete(m.Properties, source.PropertyParked) })},
			{letter, letter}, // routers send no batches there
		} {
			if _, err := broker.Publish(t.Context(), parking, foreign); err != nil {
				t.Fatal(err)
			}
		}
		reg := prometheus.NewRegistry()
		var lines bytes.Buffer
		p := source.NewMemParking(cfg, broker, source.NewMetrics(reg), slog.New(slog.NewTextHandler(&lines, nil)))
		if got := readAll(t, p); !slices.Equal(got, want) {
			t.Errorf("letters %q came back, want %q", got, want)
		}
		if again := readAll(t, p); len(again) != 0 {
			t.Errorf("%q came back twice", again)
		}
		if refused := metric(t, reg, "ringfence_source_parked_refused_total"); refused != 2*6 {
			t.Errorf("%v messages were refused by two readings, want 6 each:\n%s", refused, &lines)
		}
		if n := strings.Count(lines.String(), "are not letters of this group"); n != 2 {
			t.Errorf("%d lines tell of them, want one for each reading:\n%s", n, &lines)
		}
	})
}

// TestALateLetterIsReported: a copy may come into the parking topic when the unpark of its key has found no more letters, or the park has expired.
func TestALateLetterIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, cfg := membroker.New(membroker.DefaultConfig()), sourcetest.Config("t")
		publish(t, broker, "t", 3)
		reg := prometheus.NewRegistry()
		var lines bytes.Buffer
		src := source.NewMem(cfg, broker, source.NewMetrics(reg), slog.New(slog.NewTextHandler(&lines, nil)))
		away := true
		src.SetParked(func(event.Key) bool { return away })
		m := sourcetest.Start(t, src)
		park(m, 1)
		synctest.Wait() // the copy has landed
		if late := metric(t, reg, "ringfence_source_parked_late_total"); late != 0 {
			t.Errorf("%v letters of a parked key are called late", late)
		}
		away = false
		park(m, 1)
		synctest.Wait()
		if late, all := metric(t, reg, "ringfence_source_parked_late_total"), metric(t, reg, "ringfence_source_parked_total"); late != 1 || all != 2 {
			t.Errorf("%v of %v letters are called late, want 1 of 2", late, all)
		}
		for _, e := range m.Take(1) {
			m.Settle(nil, []event.Verdict{{Handle: e.Event.Handle, Kind: event.Failed, Detail: &event.Detail{Reason: "no", Delay: time.Hour}}})
		}
		synctest.Wait()
		if late := metric(t, reg, "ringfence_source_parked_late_total"); late != 1 {
			t.Errorf("%v letters are called late after a copy for the retry topic, want 1", late)
		}
		m.Stop() // nothing writes to the log any more
		if text := lines.String(); strings.Count(text, "run router unpark KEY to bring it back") != 1 || strings.Contains(text, "event 1") {
			t.Errorf("the log says:\n%s", text)
		}
	})
}

// TestParkedEventThatLooksLikeAnEnd: a letter of an event with the property that ends readings is no end.
func TestParkedEventThatLooksLikeAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, cfg := membroker.New(membroker.DefaultConfig()), sourcetest.Config("t")
		one := membroker.Message{Key: "k", Payload: []byte("precious"), Properties: map[string]string{"ringfence-parked-end": "x"}}
		if _, err := broker.Publish(t.Context(), source.FullTopicName("t"), []membroker.Message{one}); err != nil {
			t.Fatal(err)
		}
		m := sourcetest.Start(t, source.NewMem(cfg, broker, sourcetest.NewMetrics(), sourcetest.Quiet()))
		park(m, 1)
		m.AwaitIdle()
		m.Stop()
		p := source.NewMemParking(cfg, broker, sourcetest.NewMetrics(), sourcetest.Quiet())
		for range 2 { // the second to see that it is not merely skipped
			var payloads []string
			reading, err := p.Read(t.Context(), func(l *source.ParkedLetter) { payloads = append(payloads, string(l.Event.Payload)) })
			if err != nil {
				t.Fatal(err)
			}
			reading.Close()
			if len(payloads) != 1 {
				t.Errorf("the reading found %q, want the parked event", payloads)
			}
		}
	})
}
