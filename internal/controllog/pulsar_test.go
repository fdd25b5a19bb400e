package controllog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/event"
)

// admin keeps no connections: they would look like leaks.
var admin = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// topics makes the names of topics unique in this process; the time does it between processes.
var topics atomic.Int64

func newTopic() string {
	return fmt.Sprintf("persistent://public/default/__ring-test-%d-%d", time.Now().UnixNano(), topics.Add(1))
}

func pulsarSite(t *testing.T) site {
	broker := requireBroker(t)
	topic := newTopic()
	return site{
		connect: func(t *testing.T) Transport { return connectPulsar(t, broker, topic) },
		roll:    func(t *testing.T) { broker.unload(t, topic) },
	}
}

// connectPulsar returns a transport that is ready to append.
func connectPulsar(t *testing.T, b broker, topic string) *Pulsar {
	t.Helper()
	p := b.transport(t, topic)
	runTransport(t, p)
	if err := p.connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// A topic with partitions has no total order: Run refuses it and says why.
func TestPulsarRefusesPartitionedTopic(t *testing.T) {
	broker := requireBroker(t)
	topic := newTopic()
	broker.admin(t, http.MethodPut, topic, "/partitions", "3")
	err := broker.transport(t, topic).Run(t.Context())
	if !errors.Is(err, ErrPartitioned) {
		t.Fatalf("Run = %v, want ErrPartitioned", err)
	}
	if !strings.Contains(err.Error(), topic) || !strings.Contains(err.Error(), "3 partitions") {
		t.Errorf("error does not name the topic and what is wrong with it: %v", err)
	}
}

// Without the anchor a broker trims closed ledgers behind the back of a reader that
// opens later; with it, nothing goes before MoveAnchor says so.
func TestPulsarAnchorKeepsTheLog(t *testing.T) {
	broker := requireBroker(t)
	topic := newTopic()
	tr := connectPulsar(t, broker, topic)
	tail := openTail(t, tr, event.Position{})
	var all []Entry
	for i := range 3 {
		appendOne(t, tr, fmt.Sprint(i))
		all = append(all, tail.take(t, 1)...)
		broker.unload(t, topic)
	}
	appendOne(t, tr, "3")
	all = append(all, tail.take(t, 1)...)

	broker.trim(t, topic)
	if got := openTail(t, tr, all[0].At).take(t, 4); !slices.EqualFunc(got, all, sameEntry) {
		t.Errorf("after trimming the log began at %v, want %v", got[0].At, all[0].At)
	}

	if err := tr.MoveAnchor(t.Context(), all[2].At); err != nil {
		t.Fatalf("MoveAnchor: %v", err)
	}
	broker.trim(t, topic)
	waitUntil(t, "the broker to trim up to the anchor", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
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

// A member survives the deletion of its topic: appends work again, in a higher ledger.
// (The old records are gone; the machine finds that out by itself.)
func TestPulsarComesBackAfterDeletion(t *testing.T) {
	skipUnderRace(t)
	broker := requireBroker(t)
	topic := newTopic()
	tr := connectPulsar(t, broker, topic)
	tail := openTail(t, tr, event.Position{})
	appendOne(t, tr, "old")
	old := tail.take(t, 1)[0]
	broker.admin(t, http.MethodDelete, topic, "?force=true", "")
	waitUntil(t, "an append to work", func() bool {
		done := make(chan error, 1)
		tr.Append([]byte("new"), func(err error) { done <- err })
		return receiveWithin(t, done) == nil
	})
	again := openTail(t, tr, event.Position{})
	appendOne(t, tr, "newest")
	if got := again.take(t, 1)[0]; got.At.Ledger <= old.At.Ledger {
		t.Errorf("ledger went from %d to %d; tokens would go back", old.At.Ledger, got.At.Ledger)
	}
}

// Where no broker answers, Run waits for one, appends fail at once, and all ends
// when it is told to.
func TestPulsarWithoutBroker(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	cfg := DefaultPulsarConfig()
	cfg.Topic, cfg.OperationTimeout = newTopic(), time.Second
	options := pulsar.ClientOptions{URL: "pulsar://" + listener.Addr().String(), MetricsRegisterer: prometheus.NewRegistry()}
	p, err := NewPulsar(cfg, options, quiet())
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
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("ended after %v with an operation timeout of %v", took, cfg.OperationTimeout)
	}
}

// How long an append takes to come back on the appender's own tail: what a lease
// renewal costs.
func TestPulsarAppendToTailLatency(t *testing.T) {
	broker := requireBroker(t)
	tr := connectPulsar(t, broker, newTopic())
	tail := openTail(t, tr, event.Position{})
	var took []time.Duration
	for i := range 200 {
		began := time.Now()
		tr.Append([]byte(fmt.Sprint(i)), func(err error) {
			if err != nil {
				t.Errorf("append: %v", err)
			}
		})
		tail.take(t, 1)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	t.Logf("append to own tail: p50 %v, p99 %v", p50, p99)
	if p50 > 500*time.Millisecond { // a quarter of a lease: something is wrong, not merely slow
		t.Errorf("p50 = %v", p50)
	}
}

// broker is a real one, and its admin interface.
type broker struct{ url, adminURL string }

func requireBroker(t *testing.T) broker {
	t.Helper()
	b := broker{url: os.Getenv("PULSAR_URL"), adminURL: os.Getenv("PULSAR_ADMIN_URL")}
	if b.url == "" || b.adminURL == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("PULSAR_URL or PULSAR_ADMIN_URL is not set")
		}
		t.Skip("no broker: PULSAR_URL or PULSAR_ADMIN_URL is not set")
	}
	return b
}

func (b broker) transport(t *testing.T, topic string) *Pulsar {
	t.Helper()
	cfg := DefaultPulsarConfig()
	cfg.Topic = topic
	p, err := NewPulsar(cfg, pulsar.ClientOptions{URL: b.url, MetricsRegisterer: prometheus.NewRegistry()}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (b broker) unload(t *testing.T, topic string) {
	t.Helper()
	skipUnderRace(t)
	b.admin(t, http.MethodPut, topic, "/unload", "")
}

// skipUnderRace skips what makes the client reconnect: it has data races of its own
// then (the reader's last message, the producer's name), which are not ours to fix.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("pulsar-client-go v0.19.0 races with itself when it reconnects; run without -race")
	}
}

// trim asks the broker to drop the ledgers that nobody needs any more.
func (b broker) trim(t *testing.T, topic string) {
	t.Helper()
	b.admin(t, http.MethodPost, topic, "/trim", "")
}

func (b broker) admin(t *testing.T, method, topic, path, body string) {
	t.Helper()
	url := b.adminURL + "/admin/v2/" + strings.Replace(topic, "://", "/", 1) + path
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := admin.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s", method, url, resp.Status)
	}
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited 20 s for %s", what)
}
