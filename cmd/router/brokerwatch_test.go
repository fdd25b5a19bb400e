package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/devtools/prove"
	"github.com/ringfence/router/internal/netx/mtls"
)

// An unknown host, a closed port and a network without an answer are told apart.
func TestDialFaults(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"broker is unknown: no name server has such a host":                        &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "broker", IsNotFound: true}},
		"broker cannot be looked up: the name server does not answer":              &net.OpError{Op: "dial", Err: &net.DNSError{Err: "i/o timeout", Name: "broker", IsTimeout: true}},
		"broker is unreachable: no answer within 5s; look at routes and firewalls": &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded},
	} {
		if got := explainDial("broker", err); !strings.HasPrefix(got.Error(), want) || !errors.Is(got, err) {
			t.Errorf("%v is explained as %v, want %s", err, got, want)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := dialFault(t.Context(), "broker", address); err != nil {
		t.Errorf("an open port: %v", err)
	}
	_ = l.Close()
	if err := dialFault(t.Context(), "broker", address); err == nil || !strings.HasPrefix(err.Error(), "broker refuses connections: the host is there, and no broker listens on that port") {
		t.Errorf("a closed port: %v", err)
	}
	auth := authTo(t, config.Pulsar{URL: "pulsar://" + address + ",localhost:1"})
	if err := auth.brokerFault(t.Context(), settings(t).Config); err == nil ||
		!strings.Contains(err.Error(), "pulsar.url: "+address+" refuses connections") || !strings.Contains(err.Error(), "localhost:1 refuses connections") {
		t.Errorf("two closed ports: %v", err)
	}
}

func authTo(t *testing.T, settings config.Pulsar) *pulsarAuth {
	t.Helper()
	auth, err := newPulsarAuth(settings, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return auth
}

// With an admin API, a tenant, a namespace and a topic that are not there are named.
func TestMissingPlaces(t *testing.T) {
	t.Parallel()
	says := map[string]string{
		"/admin/v2/namespaces/public":                           `["public/default"]`,
		"/admin/v2/persistent/public/default/orders/partitions": `{"partitions":0}`,
		"/admin/v2/persistent/public/default/orders/stats":      `{}`,
		"/admin/v2/persistent/public/default/parts/partitions":  `{"partitions":3}`,
		"/admin/v2/persistent/public/default/absent/partitions": `{"partitions":0}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, ok := says[r.URL.Path]; ok {
			_, _ = w.Write([]byte(text))
			return
		}
		status := http.StatusNotFound
		if strings.Contains(r.URL.Path, "forbidden") {
			status = http.StatusUnauthorized
		}
		http.Error(w, "{}", status)
	}))
	defer server.Close()
	pulsar := config.Pulsar{URL: "pulsar://127.0.0.1:1"}
	pulsar.AdminURL = server.URL
	auth := authTo(t, pulsar)
	for topic, want := range map[string]string{
		"persistent://public/default/orders": "",
		"persistent://public/other/orders":   "the namespace public/other does not exist: create it (pulsar-admin namespaces create public/other)",
		"persistent://nobody/default/orders": "the tenant nobody does not exist: create it (pulsar-admin tenants create nobody)",
		"persistent://forbidden/x/orders":    "", // nothing is known
	} {
		err := auth.placeOf(t.Context(), topic)
		if (err != nil) != (want != "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", topic, err, want)
		}
	}
	const prefix = "persistent://public/default/"
	topics := []string{prefix + "orders", prefix + "parts", prefix + "absent", "persistent://forbidden/x/orders", "persistent://nobody/default/orders"}
	if absent := auth.absentTopics(t.Context(), topics); !slices.Equal(absent, []string{prefix + "absent"}) {
		t.Errorf("absent are %v", absent)
	}
	if absent := authTo(t, config.Pulsar{URL: "pulsar://127.0.0.1:1"}).absentTopics(t.Context(), topics); absent != nil {
		t.Errorf("without an admin API absent are %v", absent)
	}
	if notice := joinNotices("", absentNotice([]string{"a", "b"})); notice !=
		"not there when this router started (a broker may create a topic by its first use): a, b; are the names in pulsar.topics right?" {
		t.Errorf("the notice is %q", notice)
	}
	if err := auth.missing("t", errors.New("server error: TopicNotFound: x")); !strings.Contains(err.Error(), "t: the topic, its namespace or its tenant does not exist") {
		t.Errorf("a topic that is not there: %v", err)
	}
}

// The broker is looked at only while it does not serve, and each reason is logged once.
func TestBrokerWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		serves, looks, why := false, 0, errors.New("refuses")
		var log strings.Builder
		w := &brokerWatch{find: func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			looks++
			return why
		}}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			w.run(ctx, func() bool { mu.Lock(); defer mu.Unlock(); return serves }, slog.New(slog.NewTextHandler(&log, nil)))
		})
		if w.fault() != nil {
			t.Error("there is a reason before the first look")
		}
		time.Sleep(brokerLookFirst + 3*brokerLookEvery + time.Millisecond)
		if err := w.fault(); err == nil || err.Error() != "refuses" {
			t.Errorf("the reason is %v", err)
		}
		mu.Lock()
		serves = true
		before := looks
		mu.Unlock()
		time.Sleep(3 * brokerLookEvery)
		mu.Lock()
		if looks != before || before != 4 {
			t.Errorf("%d looks while it does not serve, %d afterwards", before, looks-before)
		}
		mu.Unlock()
		if err := w.fault(); err != nil {
			t.Errorf("the reason of a broker that serves is %v", err)
		}
		stop()
		running.Wait()
		if n := strings.Count(log.String(), "the broker does not serve this router"); n != 1 {
			t.Errorf("the log says it %d times:\n%s", n, &log)
		}
	})
}

// TestPortOfABroker: a host without a port has that of Pulsar, an address of IPv6 too.
func TestPortOfABroker(t *testing.T) {
	for url, want := range map[string]string{
		"pulsar://b": "b:6650", "pulsar+ssl://b": "b:6651", "pulsar://b:1": "b:1", "pulsar://[::1]": "[::1]:6650", "pulsar+ssl://[::1]:1": "[::1]:1",
	} {
		if got := withPort(brokerHosts(url)[0], url); got != want {
			t.Errorf("%s is dialed at %s, want %s", url, got, want)
		}
	}
}

// TestProofNamesWhatRemains: without the admin API every topic of a proof is named, that of dead letters too.
func TestProofNamesWhatRemains(t *testing.T) {
	settings := config.Pulsar{URL: "pulsar://127.0.0.1:1"}
	topics := prove.Topics{Events: "persistent://public/default/e", Retry: "persistent://public/default/r", DeadLetters: "persistent://public/default/d", Control: "persistent://public/default/c", Subscription: "s"}
	remain := cleanPulsar(t.Context(), authTo(t, settings), topics)
	for _, topic := range topics.All() {
		if !slices.ContainsFunc(remain, func(says string) bool { return strings.HasPrefix(says, topic+" ") }) {
			t.Errorf("%s is not among %q", topic, remain)
		}
	}
}

// TestProofRemovesItsTopics: with the admin API the topics of a proof are removed, whether they have topic partitions or not. A broker
// refuses to delete the topic partitions of a topic that has none.
func TestProofRemovesItsTopics(t *testing.T) {
	t.Parallel()
	partitions := map[string]int{"e": 0, "r": 2, "c": 0} // d is not there
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		topic, ofPartitions := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/admin/v2/persistent/public/default/"), "/partitions")
		n, there := partitions[topic]
		switch {
		case !there:
			http.Error(w, "Topic not found", http.StatusNotFound)
		case r.Method == http.MethodGet:
			_, _ = fmt.Fprintf(w, `{"partitions":%d}`, n) // the caller checks it
		case ofPartitions != (n > 0):
			http.Error(w, "Instead of calling delete-partitioned-topic please call delete.", http.StatusConflict)
		default:
			delete(partitions, topic)
		}
	}))
	t.Cleanup(server.Close)
	topics := prove.Topics{Events: "persistent://public/default/e", Retry: "persistent://public/default/r", DeadLetters: "persistent://public/default/d", Control: "persistent://public/default/c", Subscription: "s"}
	settings := config.Pulsar{URL: "pulsar://127.0.0.1:1"}
	settings.AdminURL = server.URL
	remain := cleanPulsar(t.Context(), authTo(t, settings), topics)
	if len(remain) > 0 || len(partitions) > 0 {
		t.Errorf("what remains is said to be %q, and is %v", remain, partitions)
	}
}
