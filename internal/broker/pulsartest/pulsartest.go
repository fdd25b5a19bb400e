// Package pulsartest gives tests a real Pulsar broker: the one that PULSAR_URL and
// PULSAR_ADMIN_URL name, as `tools/pulsar.sh run -- go test …` sets them.
//
// Without them a test is skipped in one line. With CI=true it fails instead, so that a
// green run of CI has used the broker. All functions end the test when a call to the
// broker fails; they are safe for concurrent use by several tests.
package pulsartest

import (
	"crypto/rand"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"go.uber.org/goleak"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
)

// URL returns the broker's service URL.
func URL(t testing.TB) string { t.Helper(); return environment(t, "PULSAR_URL") }

// AdminURL returns the root of the broker's admin API, without a slash at the end.
func AdminURL(t testing.TB) string {
	t.Helper()
	return strings.TrimSuffix(environment(t, "PULSAR_ADMIN_URL"), "/")
}

func environment(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	switch {
	case value != "":
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is not set, and CI must not pass without a Pulsar broker: run under tools/pulsar.sh run", name)
	default:
		t.Skipf("needs a Pulsar broker: set %s, or run under tools/pulsar.sh run", name)
	}
	return value
}

// Options returns the options for a client of the broker, with a quiet log.
func Options(t testing.TB) pulsar.ClientOptions {
	t.Helper()
	return pulsar.ClientOptions{
		URL:               URL(t),
		ConnectionTimeout: 5 * time.Second,
		OperationTimeout:  15 * time.Second,
		Logger:            log.DefaultNopLogger(),
	}
}

// Client returns a client that is closed at the end of the test.
func Client(t testing.TB) pulsar.Client {
	t.Helper()
	client, err := pulsar.NewClient(Options(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// Name returns a unique name: that of the test with a random suffix.
func Name(t testing.TB) string {
	t.Helper()
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, t.Name())
	return clean + "_" + rand.Text()
}

// Topic returns the full name of a new topic with the given number of partitions; with 0
// it is not partitioned, and the broker makes it when it is first used.
func Topic(t testing.TB, partitions int) string {
	t.Helper()
	topic := "persistent://public/default/" + Name(t)
	if partitions > 0 {
		Admin(t, http.MethodPut, pulsaradmin.TopicPath(topic)+"/partitions", partitions, nil)
	}
	return topic
}

// Grow gives a topic more partitions. Pulsar also makes the subscriptions of the new ones, and fails after it has added them if a consumer does that at the
// same time (ManagedLedgerException$BadVersionException in 4.0.8).
func Grow(t testing.TB, topic string, count int) {
	t.Helper()
	err := pulsaradmin.Client{URL: AdminURL(t)}.Call(t.Context(), http.MethodPost, pulsaradmin.TopicPath(topic)+"/partitions", count, nil)
	if err != nil && partitions(t, topic) != count {
		t.Fatal(err)
	}
}

// Unload makes the broker unload and reload the topic: its connections are closed, and unacked
// events are redelivered.
func Unload(t testing.TB, topic string) {
	t.Helper()
	Admin(t, http.MethodPut, pulsaradmin.TopicPath(topic)+"/unload", nil, nil)
}

// SkipUnderRace skips tests that make Pulsar's client reconnect. It then has data races of its own (the reader's last message, the
// producer's name), which are not ours to fix. make test-reconnect runs these tests.
func SkipUnderRace(t testing.TB) {
	t.Helper()
	if raceEnabled {
		t.Skip("pulsar-client-go v0.21.0 races with itself when it reconnects; run without -race")
	}
}

// Subscription is the state of one subscription, as the broker sees it.
type Subscription struct {
	Type      string `json:"type"`
	Backlog   int    `json:"msgBacklog"`      // entries that are not acked, delivered or not
	Unacked   int    `json:"unackedMessages"` // events that consumers have
	Consumers []struct {
		Name    string `json:"consumerName"`
		Unacked int    `json:"unackedMessages"`
	} `json:"consumers"`
}

// Stats returns the state of a subscription; of a partitioned topic the sums over
// its partitions. A subscription that is not there has the zero state.
func Stats(t testing.TB, topic, subscription string) Subscription {
	t.Helper()
	var stats struct {
		Subscriptions map[string]Subscription `json:"subscriptions"`
	}
	Admin(t, http.MethodGet, pulsaradmin.StatsPath(topic, partitions(t, topic) > 0, false), nil, &stats)
	return stats.Subscriptions[subscription]
}

// BatchIndexAcks reports whether the broker counts acks of single events in a batch.
func BatchIndexAcks(t testing.TB) bool {
	t.Helper()
	settings := map[string]any{}
	Admin(t, http.MethodGet, "brokers/configuration/runtime", nil, &settings)
	return settings["acknowledgmentAtBatchIndexLevelEnabled"] == "true"
}

func partitions(t testing.TB, topic string) int {
	t.Helper()
	n, err := pulsaradmin.Client{URL: AdminURL(t)}.Partitions(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Admin calls the admin API: body is sent, and the answer read into result, as JSON
// where they are not nil. Path is below /admin/v2/. An error ends the test.
func Admin(t testing.TB, method, path string, body, result any) {
	t.Helper()
	if err := (pulsaradmin.Client{URL: AdminURL(t)}).Call(t.Context(), method, path, body, result); err != nil {
		t.Fatal(err)
	}
}

// LeftBehind returns the goroutines that a leak test must ignore: the Pulsar client (v0.21.0) may reconnect while it is closed, after
// its pool has closed all connections, and nothing closes the new one. A process that ends, or keeps its client, is not affected.
func LeftBehind() []goleak.Option {
	const client = "github.com/apache/pulsar-client-go/pulsar/internal."
	return []goleak.Option{
		goleak.IgnoreAnyFunction(client + "(*connection).run"),
		goleak.IgnoreAnyFunction(client + "(*connection).runPingCheck"),
		goleak.IgnoreAnyFunction(client + "(*connectionReader).readFromConnection"),
	}
}
