package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// liveAdmin is an admin API on which the subscription of the topic orders is as given; "" leaves the topic without it.
func liveAdmin(t *testing.T, subscription string, more map[string]string) string {
	t.Helper()
	const topic = "/admin/v2/persistent/public/default/orders"
	says := map[string]string{topic + "/partitions": `{"partitions":4}`, topic + "/partitioned-stats": `{"subscriptions":{` + subscription + `}}`}
	for path, text := range more {
		says[topic+path] = text
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("the plan does %s %s", r.Method, r.URL)
		}
		text, known := says[r.URL.Path]
		if !known {
			http.Error(w, `{"reason":"Topic not found"}`, http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// planned runs `router migrate plan`.
func planned(t *testing.T, from, admin string, args ...string) (out, says string, code int) {
	t.Helper()
	return cli(t, append([]string{"migrate", "plan", "--from", from, "--pulsar.admin_url", admin, "--config", settingsFile(t, least)}, args...)...)
}

const (
	anOldConsumer = `{"consumerName":"old-1","address":"/10.0.0.7:4711","clientVersion":"Pulsar-Java-v3.0.0"}`
	aRouter       = `{"consumerName":"pod-0","address":"/10.0.0.8:4712","clientVersion":"Ringfence"}`
	consumers     = `"consumers":[` + anOldConsumer + `]`
)

func TestMigratePlan(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		from, subscription string
		more               map[string]string
		code               int
		want               []string // in this order
	}{
		"redlock": {
			from: fromRedlock, subscription: `"workers":{"type":"Shared","msgBacklog":1200,"unackedMessages":30,"msgRateOut":40,"msgRateRedeliver":2.5,` + consumers + `}`,
			want: []string{
				"Move subscription workers from redlock to Ringfence.", "4 topic partitions", "Shared", "1200", "40.0/s",
				"Steps, in this order:", "still takes the lock, one by one, on the same subscription (workers)", "Remove the last old consumer: old-1 /10.0.0.7:4711.",
				"Add the fence", "Remove the lock from the handler", "What can go wrong:", "30 events sent to its consumers and not acked", "redelivers 2.5 events/s",
				"a backlog of 1200, which is 30 s of work", "every event would be handled twice", "To go back: add the lock again", "docs/migration-from-redlock.md",
			},
		},
		"redlock, with a router already": {
			from: fromRedlock, subscription: `"workers":{"type":"Shared","consumers":[` + aRouter + `,` + anOldConsumer + `]}`,
			want: []string{"Shared", "2 (1 router)", "Remove the last old consumer: old-1 /10.0.0.7:4711.", "names no consumer here"},
		},
		"redlock, with routers alone": {
			from: fromRedlock, subscription: `"workers":{"type":"Shared","consumers":[` + aRouter + `]}`,
			want: []string{"Shared", "1 (1 router)", "Remove the last old consumer: none is connected now."},
		},
		"key_shared": {
			from: fromKeyShared, subscription: `"workers":{"type":"Key_Shared","msgBacklog":7,"msgDelayed":2,` + consumers + `}`,
			want: []string{
				"1. Decide whether the handler needs the events of a key in order", "Stop all old consumers: old-1 /10.0.0.7:4711.", "Start all routers with their applications, together.",
				"7 events now", "no key-based batching", "2 events delayed by their producers", "The order of a key's events, which KEY_SHARED keeps and Ringfence does not",
				"Subscription is of different type", "docs/migration-from-key-shared.md",
			},
		},
		"key_shared without order": {
			from: fromKeyShared, subscription: `"workers":{"type":"Key_Shared","allowOutOfOrderDelivery":true,` + consumers + `}`,
			want: []string{"allowOutOfOrderDelivery: KEY_SHARED does not promise order there today, either"},
		},
		"failover": {
			from: fromFailover, subscription: `"workers":{"type":"Failover","replicated":true,` + consumers + `}`,
			want: []string{"Stop all old consumers: old-1", "beyond the number of topic partitions", "is a replicated subscription", "Cumulative acks"},
		},
		"exclusive": {from: fromFailover, subscription: `"workers":{"type":"Exclusive",` + consumers + `}`, want: []string{"Exclusive", "Steps"}},
		"idle":      {from: fromFailover, subscription: `"workers":{"type":"None"}`, want: []string{"none is connected now"}},
		"another type": {
			from: fromRedlock, subscription: `"workers":{"type":"Failover",` + consumers + `}`, code: exitFailed,
			want: []string{"IN THE WAY: workers of persistent://public/default/orders is Failover, and --from redlock expects Shared", "choose --from by what the consumers do"},
		},
		"no subscription": {
			from: fromFailover, subscription: `"others":{"type":"Failover"}`, code: exitFailed,
			want: []string{"IN THE WAY: persistent://public/default/orders has no subscription workers"},
		},
		"Shared is forbidden": {
			from: fromFailover, subscription: `"workers":{"type":"Failover"}`, more: map[string]string{"/subscriptionTypesEnabled": `["Failover","Exclusive"]`}, code: exitFailed,
			want: []string{"IN THE WAY: persistent://public/default/orders allows only subscriptions of the types Failover, Exclusive", "--types Shared,Failover,Exclusive"},
		},
		"retries are left": {
			from: fromFailover, subscription: `"workers":{"type":"Failover"}`, more: map[string]string{
				"-workers-RETRY/partitions": `{"partitions":0}`, "-workers-RETRY/stats": `{"subscriptions":{"workers":{"type":"Shared","msgBacklog":3}}}`,
			},
			want: []string{"orders-workers-RETRY", "orders-workers-RETRY, the topic for retries, holds 3 events"},
		},
		"Shared is allowed": {
			from: fromFailover, subscription: `"workers":{"type":"Failover"}`, more: map[string]string{"/subscriptionTypesEnabled": `["Shared"]`}, want: []string{"Steps"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := liveAdmin(t, test.subscription, test.more)
			out, says, code := planned(t, test.from, admin)
			if code != test.code {
				t.Errorf("exit code %d, want %d: %s", code, test.code, says)
			}
			rest := out
			for _, want := range test.want {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Fatalf("%q is missing, or not in its place, in\n%s", want, out)
				}
				rest = after
			}
			text, _, _ := planned(t, test.from, admin, "--json")
			var plan migration
			if err := json.Unmarshal([]byte(text), &plan); err != nil {
				t.Fatalf("%v in %s", err, text)
			}
			if len(plan.Steps) < 6 || len(plan.Risks) < 3 || plan.Back == "" || plan.From != test.from || (len(plan.Blockers) > 0) != (test.code == exitFailed) {
				t.Errorf("as JSON: %+v", plan)
			}
			for i, s := range plan.Steps {
				if s.Do == "" || s.Why == "" || !strings.Contains(out, fmt.Sprintf("\n%d. %s", i+1, s.Do)) {
					t.Errorf("step %d: %+v", i+1, s)
				}
			}
			for _, c := range append(plan.Risks, plan.Blockers...) {
				if c.What == "" || c.Remedy == "" {
					t.Errorf("%+v gives no remedy", c)
				}
			}
		})
	}
}

// On a real broker: the plan has what the broker says of a subscription in use, and the refusal that it warns of is real.
func TestMigratePlanOfALiveSubscription(t *testing.T) {
	admin, topic := pulsartest.AdminURL(t), pulsartest.Topic(t, 0)
	producer, err := pulsartest.Client(t).CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	subscribe := func(kind pulsar.SubscriptionType) (pulsar.Consumer, error) {
		return pulsartest.Client(t).Subscribe(pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: "workers", Name: "old-1", Type: kind, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		})
	}
	old, err := subscribe(pulsar.KeyShared)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := producer.Send(t.Context(), &pulsar.ProducerMessage{Key: "ann", Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	plan := func(from string) (string, int) {
		out, _, code := planned(t, from, admin, "--pulsar.topics", topic)
		return out, code
	}
	eventually.NoError(t, eventually.Most, "the plan has the live subscription", func() error {
		out, code := plan(fromKeyShared)
		for _, want := range []string{"Key_Shared", "Stop all old consumers: old-1", "3 events now", "3 events sent to its consumers and not acked"} {
			if code != exitOK || !strings.Contains(out, want) {
				return fmt.Errorf("exit code %d, no %q in\n%s", code, want, out)
			}
		}
		return nil
	})
	if out, code := plan(fromFailover); code != exitFailed || !strings.Contains(out, "is Key_Shared, and --from failover expects Failover or Exclusive") {
		t.Errorf("of another type: exit code %d\n%s", code, out)
	}
	if _, err := subscribe(pulsar.Shared); err == nil || !strings.Contains(err.Error(), "ConsumerBusy") {
		t.Errorf("a SHARED consumer beside one of another type: %v", err)
	}
	old.Close()
	after, err := subscribe(pulsar.Shared)
	if err != nil {
		t.Fatalf("a SHARED consumer after the old ones: %v", err)
	}
	defer after.Close()
	for i := range 3 { // the subscription keeps its position
		if m, err := after.Receive(t.Context()); err != nil || m.Key() != "ann" {
			t.Fatalf("event %d: %v", i, err)
		}
	}
}

// On a real broker: routers are told from the other consumers of a partitioned topic, and each counts once.
func TestMigratePlanOfAPartitionedTopic(t *testing.T) {
	admin, topic := pulsartest.AdminURL(t), pulsartest.Topic(t, 3)
	old, err := pulsartest.Client(t).Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "workers", Name: "old-1", Type: pulsar.Shared})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	cfg := entries.DefaultConfig()
	cfg.URL = pulsartest.URL(t)
	router, err := entries.New(cfg, entries.Access{}, entries.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	for n := range 3 {
		_, err := router.Subscribe(t.Context(), entries.Subscription{
			Topic: fmt.Sprintf("%s-partition-%d", topic, n), Name: "workers", Type: entries.Shared, Consumer: "pod-0", Permits: 1, UnackedMax: 10, Queue: entries.NewQueue(),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	out, _, code := planned(t, fromRedlock, admin, "--pulsar.topics", topic)
	rest := out
	for _, want := range []string{"2 (1 router)", "Remove the last old consumer: old-1 /", "names no consumer here"} {
		_, after, has := strings.Cut(rest, want)
		if code != exitOK || !has {
			t.Fatalf("exit code %d, and %q is missing in\n%s", code, want, out)
		}
		rest = after
	}
}

func TestMigratePlanErrors(t *testing.T) {
	t.Parallel()
	file := settingsFile(t, least)
	for want, args := range map[string][]string{
		`--from = "", want redlock, key_shared, failover`:       {"--pulsar.admin_url", "http://127.0.0.1:1", file},
		`--from = "shared", want redlock, key_shared, failover`: {"--from", "shared", "--pulsar.admin_url", "http://127.0.0.1:1", file},
		"pulsar.admin_url is not set: the plan is made from":    {"--from", "redlock", file},
		`--from = "foo", want redlock, key_shared, failover`:    {"--from", "foo"},
		"node.group is not set":                                 {"--from", "redlock"},
	} {
		if _, says, code := cli(t, append([]string{"migrate", "plan"}, args...)...); code != exitUsage || !strings.Contains(says, want) {
			t.Errorf("%v: exit code %d, %s; want %s", args, code, says, want)
		}
	}
	if _, says, code := planned(t, fromRedlock, "http://127.0.0.1:1"); code != exitFailed || !strings.Contains(says, "persistent://public/default/orders: admin API:") {
		t.Errorf("without a broker: exit code %d, %s", code, says)
	}
	// A retry topic that cannot be read may hold a backlog that the plan would leave out.
	broken := liveAdmin(t, "", map[string]string{"-workers-RETRY/partitions": "no answer"})
	if _, says, code := planned(t, fromRedlock, broken); code != exitFailed || !strings.Contains(says, "persistent://public/default/orders-workers-RETRY: admin API:") {
		t.Errorf("without an answer about the retry topic: exit code %d, %s", code, says)
	}
	// What the broker calls its consumers reaches no terminal as it is.
	out, _, _ := planned(t, fromRedlock, liveAdmin(t, `"workers":{"type":"Shared","consumers":[{"consumerName":"a\u001b[2Jb","address":"x"}]}`, nil))
	if strings.Contains(out, "\x1b") || !strings.Contains(out, `a\x1b[2Jb`) {
		t.Errorf("a name with an escape sequence is shown as it is in\n%q", out)
	}
}
