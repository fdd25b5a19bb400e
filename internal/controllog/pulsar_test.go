package controllog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

func pulsarSite(t *testing.T) site {
	topic := pulsartest.Topic(t, 0)
	return site{
		connect: func(t *testing.T) Transport { return connectPulsar(t, topic) },
		roll:    func(t *testing.T) { unload(t, topic) },
	}
}

// A topic with partitions has no total order: Run refuses it and gives the reason.
func TestPulsarRefusesPartitionedTopic(t *testing.T) {
	topic := pulsartest.Topic(t, 3)
	err := newTransport(t, topic).Run(t.Context())
	if !errors.Is(err, ErrPartitioned) {
		t.Fatalf("Run = %v, want ErrPartitioned", err)
	}
	if !strings.Contains(err.Error(), topic) || !strings.Contains(err.Error(), "3 partitions") {
		t.Errorf("the error does not name the topic and its problem: %v", err)
	}
}

// Without the anchor, a broker trims closed ledgers before a reader opens; with it, records are kept
// until MoveAnchor.
func TestPulsarAnchorKeepsTheLog(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	tr := connectPulsar(t, topic)
	tail := openTail(t, tr, event.Position{})
	var all []Entry
	for i := range 3 {
		appendOne(t, tr, fmt.Sprint(i))
		all = append(all, tail.take(t, 1)...)
		unload(t, topic)
	}
	appendOne(t, tr, "3")
	all = append(all, tail.take(t, 1)...)

	trim(t, topic)
	if got := openTail(t, tr, all[0].At).take(t, 4); !slices.EqualFunc(got, all, sameEntry) {
		t.Errorf("after trimming the log began at %v, want %v", got[0].At, all[0].At)
	}

	if err := tr.MoveAnchor(t.Context(), all[2].At); err != nil {
		t.Fatalf("MoveAnchor: %v", err)
	}
	trim(t, topic)
	eventually.True(t, "the broker to trim up to the anchor", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var first event.Position
		_ = tr.Tail(ctx, all[0].At, 2, func() {}, func(e Entry) { // ends by cancel
			first = e.At
			cancel()
		})
		if first != all[0].At {
			t.Logf("the log now begins at %v", first)
		}
		return all[0].At.Before(first)
	})
}

// An anchor of an earlier topic may lie beyond the end of the present one, whose ledgers have lower ids if Pulsar's metadata was rebuilt. The
// broker answers as if it had moved it, keeps it where it is, and trims nothing.
func TestPulsarIgnoresAnAnchorAhead(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	tr := connectPulsar(t, topic)
	tail := openTail(t, tr, event.Position{})
	appendOne(t, tr, "0")
	all := tail.take(t, 1)
	for _, ahead := range []event.Position{{Ledger: all[0].At.Ledger + 1000, Entry: 80}, {Ledger: all[0].At.Ledger, Entry: all[0].At.Entry + 5}} {
		if err := tr.MoveAnchor(t.Context(), ahead); err != nil {
			t.Logf("the log ends at %v, and the broker refuses an anchor at %v: %v", all[0].At, ahead, err)
		}
	}
	for i := range 2 {
		unload(t, topic)
		appendOne(t, tr, fmt.Sprint(1+i))
		all = append(all, tail.take(t, 1)...)
		trim(t, topic)
	}
	if got := openTail(t, tr, all[0].At).take(t, 3); !slices.EqualFunc(got, all, sameEntry) {
		t.Errorf("after trimming the log begins at %v, want %v", got[0].At, all[0].At)
	}
}

// A log that is read from First keeps every record, also one from before the anchor, though no client is connected while
// ledgers are closed and trimmed.
func TestPulsarAnchorKeepsTheFirstRecord(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	early := connectPulsar(t, topic)
	var all []Entry
	appendOne(t, early, "0") // its ledger stays, since it is not closed
	tail := openTail(t, early, First)
	all = append(all, tail.take(t, 1)...)
	for i := range 3 {
		unload(t, topic)
		appendOne(t, early, fmt.Sprint(1+i))
		all = append(all, tail.take(t, 1)...)
		trim(t, topic)
	}
	if got := openTail(t, connectPulsar(t, topic), First).take(t, 4); !slices.EqualFunc(got, all, sameEntry) {
		t.Errorf("after trimming the log is %v, want %v", got, all)
	}
}

// A member survives the deletion of its topic: appends work again, in a higher ledger, and a reader of the former one ends with the reason.
func TestPulsarComesBackAfterDeletion(t *testing.T) {
	pulsartest.SkipUnderRace(t)
	topic := pulsartest.Topic(t, 0)
	patient := connectPulsar(t, topic)
	opened, read, ended := make(chan struct{}), make(chan Entry, 10), make(chan error, 1)
	go func() {
		ended <- patient.Tail(t.Context(), event.Position{}, 10, func() { close(opened) }, func(e Entry) { read <- e })
	}()
	receiveWithin(t, opened)
	appendOne(t, patient, "old")
	old := receiveWithin(t, read)
	tr := connectImpatient(t, topic)
	pulsartest.Admin(t, http.MethodDelete, pulsaradmin.TopicPath(topic)+"?force=true", nil, nil)
	eventually.True(t, "an append to work", func() bool {
		done := make(chan error, 1)
		tr.Append([]byte("new"), func(err error) { done <- err })
		return receiveWithin(t, done) == nil
	})
	again := openTail(t, tr, event.Position{})
	appendOne(t, tr, "newest")
	if got := again.take(t, 1)[0]; got.At.Ledger <= old.At.Ledger {
		t.Errorf("ledger went from %d to %d; tokens would go back", old.At.Ledger, got.At.Ledger)
	}
	if err := receiveWithin(t, ended); !errors.Is(err, ErrReplaced) {
		t.Errorf("a reader of the former topic ended with %v, want %v", err, ErrReplaced)
	}
}

// A terminated topic is logged with its remedy, and seldom, though producer and reader are refused again and again.
func TestPulsarOfATerminatedTopic(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	said := new(written.Text)
	p := connected(t, newTransportOf(t, topic, DefaultPulsarConfig(), slog.New(slog.NewTextHandler(said, nil))))
	tail := openTail(t, p, First)
	appendOne(t, p, "record")
	tail.take(t, 1)
	pulsartest.Admin(t, http.MethodPost, pulsaradmin.TopicPath(topic)+"/terminate", nil, nil)
	remedy := "topics delete --force " + topic
	eventually.True(t, "a line has the remedy", func() bool {
		p.Append([]byte("record"), func(error) {})
		return strings.Contains(said.String(), remedy)
	})
	const seconds = 5
	time.Sleep(seconds * time.Second) // real: of attempts every half second
	if all := said.String(); strings.Count(all, "\n") > 2*seconds {
		t.Errorf("%d lines in little more than %d s: %s", strings.Count(all, "\n"), seconds, all)
	}
}

// A record that the broker refuses, here because of a policy, does not keep the receipts from those after it: the
// client (v0.21.0) forgets a producer whose message was refused.
func TestPulsarGoesOnAfterARefusedRecord(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	appendOne(t, connectPulsar(t, topic), "before")
	tr := connectImpatient(t, topic)
	policy := pulsaradmin.TopicPath(topic) + "/maxMessageSize"
	pulsartest.Admin(t, http.MethodPost, policy, 1000, nil)
	appended := func(bytes int) error {
		done := make(chan error, 1)
		tr.Append(make([]byte, bytes), func(err error) { done <- err })
		return receiveWithin(t, done)
	}
	eventually.True(t, "the broker refuses a record", func() bool { return appended(2000) != nil })
	eventually.True(t, "an append works again", func() bool { return appended(10) == nil })
}

// TestPulsarReadsOnBehindEncryptedMessages: those of a stranger are unreadable records, and do not stop the reader, even if there are more of them than it
// prefetches.
func TestPulsarReadsOnBehindEncryptedMessages(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	tr := connectPulsar(t, topic)
	tail := openTail(t, tr, First)
	producer, err := pulsartest.Client(t).CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, SendTimeout: -1, Encryption: pulsartest.Encryption(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	const foreign = 1100 // openTail prefetches 1000
	for range foreign {
		producer.SendAsync(t.Context(), &pulsar.ProducerMessage{Payload: []byte("of another program")}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := producer.FlushWithCtx(t.Context()); err != nil {
		t.Fatal(err)
	}
	appendOne(t, tr, "ours")
	if got := tail.take(t, foreign+1); string(got[foreign].Data) != "ours" {
		t.Errorf("the last of %d records is %q", len(got), got[foreign].Data)
	}
}

// TestPulsarReadsEachEntryOfStrangers: whatever another program writes, each entry is one unreadable record at its own position, since the machine counts them. One that
// would become gigabytes is not decompressed.
func TestPulsarReadsEachEntryOfStrangers(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	tr := connectPulsar(t, topic)
	tail := openTail(t, tr, First)
	write := func(o pulsar.ProducerOptions, payloads ...[]byte) {
		t.Helper()
		o.Topic, o.SendTimeout, o.BatchingMaxPublishDelay = topic, -1, time.Minute
		producer, err := pulsartest.Client(t).CreateProducer(o)
		if err != nil {
			t.Fatal(err)
		}
		defer producer.Close()
		for _, payload := range payloads {
			producer.SendAsync(t.Context(), &pulsar.ProducerMessage{Payload: payload}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}
		if err := producer.FlushWithCtx(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	appendOne(t, tr, "first")
	write(pulsar.ProducerOptions{DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 100}, make([]byte, 250))
	write(pulsar.ProducerOptions{DisableBatching: true, CompressionType: pulsar.ZSTD}, make([]byte, recordBytesMax+1))
	write(pulsar.ProducerOptions{}, []byte("one"), []byte("two")) // a batch
	write(pulsar.ProducerOptions{DisableBatching: true, CompressionType: pulsar.LZ4}, make([]byte, 1000))
	appendOne(t, tr, "last")
	got := tail.take(t, 1)
	for string(got[len(got)-1].Data) != "last" {
		got = append(got, tail.take(t, 1)...)
	}
	for i, e := range got {
		if want := (event.Position{Ledger: got[0].At.Ledger, Entry: int64(i)}); e.At != want || len(e.Data) > 10_000 {
			t.Errorf("record %d is at %v, with %d bytes, want it at %v", i, e.At, len(e.Data), want)
		}
	}
	if at := len(got) - 2; at < 6 || len(got[at].Data) != 1000 {
		t.Errorf("of %d records the last but one has %d bytes, want 1000", len(got), len(got[max(0, at)].Data))
	}
}

// Without a broker that answers, Run waits for one, appends fail at once, and everything ends with the
// context.
func TestPulsarWithoutBroker(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // it accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	cfg := DefaultPulsarConfig()
	cfg.Topic, cfg.OperationTimeout, cfg.KeepAlive = "persistent://public/default/none", time.Second, time.Second
	options := pulsar.ClientOptions{URL: "pulsar://" + listener.Addr().String(), MetricsRegisterer: prometheus.NewRegistry()}
	p, err := NewPulsar(cfg, options, entries.Access{}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- p.Run(ctx) }()
	go func() { ended <- p.Tail(ctx, event.Position{}, 10, func() {}, func(Entry) {}) }()
	failed := make(chan error, 1)
	p.Append([]byte("x"), func(err error) { failed <- err })
	if err := receiveWithin(t, failed); !errors.Is(err, errNotConnected) {
		t.Errorf("append without a broker: %v, want %v", err, errNotConnected)
	}
	time.Sleep(300 * time.Millisecond) // real: the look-up hangs in the network
	began := time.Now()
	cancel()
	for range 2 {
		if err := receiveWithin(t, ended); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	}
	if took := time.Since(began); took > 20*time.Second { // of a busy machine; by the client's defaults it would take 30
		t.Errorf("ended after %v, with an operation timeout of %v", took, cfg.OperationTimeout)
	}
}

// The time until an append comes back on the appender's own tail, which is the cost of a lease
// renewal.
func TestPulsarAppendToTailLatency(t *testing.T) {
	tr := connectPulsar(t, pulsartest.Topic(t, 0))
	tail := openTail(t, tr, event.Position{})
	there := thereAndBack(t)
	var took, bare []time.Duration
	for i := range 200 {
		began := time.Now()
		tr.Append([]byte(fmt.Sprint(i)), func(err error) {
			if err != nil {
				t.Errorf("append: %v", err)
			}
		})
		tail.take(t, 1)
		took, bare = append(took, time.Since(began)), append(bare, there())
	}
	slices.Sort(took)
	slices.Sort(bare)
	p50, p99, least := took[len(took)/2], took[len(took)*99/100], bare[len(bare)/2]
	t.Logf("append to own tail: p50 %v, p99 %v; p50 of a message by the client alone: %v", p50, p99, least)
	if p50 > 500*time.Millisecond && p50 > 3*least { // a quarter of a lease: something is wrong, and the machine is not merely slow
		t.Errorf("p50 = %v, by the client alone %v", p50, least)
	}
}

// thereAndBack returns a function that measures how long a message of Pulsar's client takes to a topic and back to a reader of it.
func thereAndBack(t *testing.T) func() time.Duration {
	t.Helper()
	topic, client := pulsartest.Topic(t, 0), pulsartest.Client(t)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, SendTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producer.Close)
	reader, err := client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Close)
	return func() time.Duration {
		t.Helper()
		began := time.Now()
		if _, err := producer.Send(t.Context(), &pulsar.ProducerMessage{Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if _, err := reader.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
}

// newTransport returns a transport over a topic of the test's broker, to which a busy machine may answer late.
func newTransport(t *testing.T, topic string) *Pulsar {
	t.Helper()
	cfg := DefaultPulsarConfig()
	cfg.SendTimeout, cfg.OperationTimeout = time.Minute, time.Minute
	return newTransportOf(t, topic, cfg, quiet())
}

func newTransportOf(t *testing.T, topic string, cfg PulsarConfig, log *slog.Logger) *Pulsar {
	t.Helper()
	t.Cleanup(http.DefaultClient.CloseIdleConnections) // of the admin calls: they would look like leaks
	cfg.Topic = topic
	p, err := NewPulsar(cfg, pulsar.ClientOptions{URL: pulsartest.URL(t), MetricsRegisterer: prometheus.NewRegistry()}, entries.Access{}, log)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// connectPulsar returns a transport that is ready to append.
func connectPulsar(t *testing.T, topic string) *Pulsar {
	t.Helper()
	return connected(t, newTransport(t, topic))
}

// connectImpatient returns one that gives up as soon as a router's does.
func connectImpatient(t *testing.T, topic string) *Pulsar {
	t.Helper()
	return connected(t, newTransportOf(t, topic, DefaultPulsarConfig(), quiet()))
}

func connected(t *testing.T, p *Pulsar) *Pulsar {
	t.Helper()
	runTransport(t, p)
	if err := p.connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

func unload(t *testing.T, topic string) {
	t.Helper()
	pulsartest.SkipUnderRace(t)
	pulsartest.Unload(t, topic)
}

// trim makes the broker drop the ledgers that are no longer needed.
func trim(t *testing.T, topic string) {
	t.Helper()
	pulsartest.Admin(t, http.MethodPost, pulsaradmin.TopicPath(topic)+"/trim", nil, nil)
}

// A reader that reconnects while it holds a record for its caller and others are queued returns each once.
func TestPulsarReadsAllAcrossReconnects(t *testing.T) {
	topic := pulsartest.Topic(t, 0)
	tr := connectPulsar(t, topic)
	read, goOn, opened := make(chan string, 10), make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		_ = tr.Tail(ctx, First, 100, func() { close(opened) }, func(e Entry) { // ends by cancel
			read <- string(e.Data)
			<-goOn
		})
	})
	t.Cleanup(func() { cancel(); close(goOn); reading.Wait() })
	receiveWithin(t, opened)
	appendOne(t, tr, "0")
	if got := receiveWithin(t, read); got != "0" {
		t.Fatalf("the first record is %q", got)
	}
	all := openTail(t, tr, First)
	all.take(t, 1)
	n := 0
	for range 5 {
		for range 2 {
			n++
			appendOne(t, tr, fmt.Sprint(n))
		}
		all.take(t, 2)                     // so the broker has sent them to the first reader, too
		time.Sleep(300 * time.Millisecond) // real: nothing shows that the client has them
		unload(t, topic)
		n++
		appendOne(t, tr, fmt.Sprint(n)) // the topic is back
		all.take(t, 1)                  // and so are its readers
		for i := range 3 {
			goOn <- struct{}{}
			if got, want := receiveWithin(t, read), fmt.Sprint(n-2+i); got != want {
				t.Fatalf("read %q, want %q", got, want)
			}
		}
	}
}
