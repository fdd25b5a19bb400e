package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/mtls"
)

// healthy returns answers of a broker's admin API for which the doctor has no findings.
func healthy() map[string]string {
	const events, control = "/admin/v2/persistent/public/default/orders", "/admin/v2/persistent/public/default/__ring-orders"
	const claims, acts = "/admin/v2/persistent/public/default/__ringfence-claims", "/admin/v2/persistent/public/default/__acts-orders"
	const timers = "/admin/v2/persistent/public/default/orders-orders-TIMER"
	const retries, parked, letters = "/admin/v2/persistent/public/default/orders-orders-RETRY", "/admin/v2/persistent/public/default/orders-orders-PARKED", "/admin/v2/persistent/public/default/orders-orders-DLQ"
	return map[string]string{
		retries + "/partitions": `{"partitions":0}`, retries + "/messageTTL": "0", parked + "/partitions": `{"partitions":0}`, parked + "/messageTTL": "", letters + "/partitions": `{"partitions":0}`, letters + "/messageTTL": "",
		timers + "/partitions": `{"partitions":0}`, timers + "/messageTTL": "", timers + "/delayedDelivery": `{"tickTime":1000,"active":true,"maxDeliveryDelayInMillis":0}`,
		timers + "/backlogQuotaMap":  `{"destination_storage":{"limitSize":-1,"policy":"consumer_backlog_eviction"},"message_age":{"limitSize":10737418240,"limitTime":-1,"policy":"consumer_backlog_eviction"}}`,
		retries + "/backlogQuotaMap": `{}`, parked + "/backlogQuotaMap": `{}`, letters + "/backlogQuotaMap": `{}`,
		retries + "/delayedDelivery":              `{"tickTime":1000,"active":true,"maxDeliveryDelayInMillis":0}`,
		timers + "/stats":                         `{"subscriptions":{"orders":{"type":"Shared","msgBacklog":5000}}}`,
		"/admin/v2/brokers/version":               "4.0.8",
		"/admin/v2/brokers/configuration/runtime": `{"acknowledgmentAtBatchIndexLevelEnabled":"false","brokerDeleteInactiveTopicsEnabled":"false"}`,
		events + "/partitions":                    `{"partitions":4}`,
		events + "/partitioned-stats":             `{"subscriptions":{"orders":{"type":"Shared","msgBacklog":7,"consumers":[{"consumerName":"router-1"}]}}}`,
		events + "/messageTTL":                    "", events + "/backlogQuotaMap": `{}`,
		events + "/maxUnackedMessagesOnConsumer": "50000", events + "/maxUnackedMessagesOnSubscription": "200000",
		control + "/partitions": `{"partitions":0}`, control + "/retention": `{"retentionTimeInMinutes":1440,"retentionSizeInMB":-1}`,
		claims + "/partitions": `{"partitions":0}`, claims + "/messageTTL": "", "/admin/v2/namespaces/public/default/subscriptionExpirationTime": "0",
		acts + "/partitions": `{"partitions":0}`, acts + "/messageTTL": "", acts + "/backlogQuotaMap": `{}`, claims + "/backlogQuotaMap": `{}`,
		control + "/messageTTL": "", control + "/compactionThreshold": "0", control + "/backlogQuotaMap": `{}`,
	}
}

// examination returns a doctor that has looked at such an admin API.
func examination(t *testing.T, says map[string]string, args ...string) doctor {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, known := says[r.URL.Path]
		switch {
		case !known:
			http.Error(w, `{"reason":"Topic not found"}`, http.StatusNotFound)
		case text == "":
			_, _ = w.Write([]byte("null"))
		default:
			_, _ = w.Write([]byte(text))
		}
	}))
	t.Cleanup(server.Close)
	d := doctor{cfg: settings(t).Config}
	for _, arg := range args {
		if arg == "batch_index_acks" {
			d.cfg.Pulsar.BatchIndexAcks = true
		}
		if arg == "gossip" {
			d.cfg.Ownership.Mode = config.ModeGossip
		}
		if arg == "no timers" {
			d.cfg.Pulsar.Timers = false
		}
	}
	d.policies(t.Context(), pulsaradmin.Client{URL: server.URL})
	return d
}

// examined returns the findings of an [examination], except for the good ones.
func examined(t *testing.T, says map[string]string, args ...string) []finding {
	t.Helper()
	d := examination(t, says, args...)
	var unwell []finding
	for _, f := range d.findings {
		if f.Result != resultOK {
			unwell = append(unwell, f)
			if f.Advice == "" {
				t.Errorf("%+v gives no advice", f)
			}
		}
	}
	if len(d.findings) < 2 && len(unwell) == 0 {
		t.Errorf("only %+v was looked at", d.findings)
	}
	return unwell
}

// manyConsumers are those of nine routers, each on two topic partitions.
var manyConsumers = strings.TrimSuffix(strings.Repeat(`{"consumerName":"r1"},{"consumerName":"r2"},{"consumerName":"r3"},{"consumerName":"r4"},{"consumerName":"r5"},{"consumerName":"r6"},{"consumerName":"r7"},{"consumerName":"r8"},{"consumerName":"r9"},`, 2), ",")

// TestDoctorOfPolicies: every illness of the topics and their policies is found, and nothing else.
func TestDoctorOfPolicies(t *testing.T) {
	if unwell := examined(t, healthy()); len(unwell) > 0 {
		t.Fatalf("a healthy broker: %+v", unwell)
	}
	const events, control = "/admin/v2/persistent/public/default/orders", "/admin/v2/persistent/public/default/__ring-orders"
	const claims, acts = "/admin/v2/persistent/public/default/__ringfence-claims", "/admin/v2/persistent/public/default/__acts-orders"
	const timers = "/admin/v2/persistent/public/default/orders-orders-TIMER"
	const retries, parked, letters = "/admin/v2/persistent/public/default/orders-orders-RETRY", "/admin/v2/persistent/public/default/orders-orders-PARKED", "/admin/v2/persistent/public/default/orders-orders-DLQ"
	runtime := "/admin/v2/brokers/configuration/runtime"
	for name, test := range map[string]struct {
		path, says string
		args       string
		result     result
		want       string
	}{
		"acks by index unused":              {runtime, `{"acknowledgmentAtBatchIndexLevelEnabled":"true"}`, "", resultWarn, "on at the broker, and not used"},
		"acks by index missing":             {runtime, `{"acknowledgmentAtBatchIndexLevelEnabled":"false"}`, "batch_index_acks", resultFail, "nothing would be acked"},
		"other type":                        {events + "/partitioned-stats", `{"subscriptions":{"orders":{"type":"Failover","consumers":[{}]}}}`, "", resultFail, "is in use as Failover, and has to be Shared"},
		"more routers than memory counts":   {events + "/partitioned-stats", `{"subscriptions":{"orders":{"type":"Shared","consumers":[` + manyConsumers + `]}}}`, "", resultWarn, "9 other routers consume persistent://public/default/orders, and the memory bound counts 8"},
		"partitioned control":               {control + "/partitions", `{"partitions":2}`, "", resultFail, "has 2 partitions: its records would have no order"},
		"no retention":                      {control + "/retention", `{"retentionTimeInMinutes":0,"retentionSizeInMB":0}`, "", resultWarn, "only the anchor subscription keeps"},
		"short retention":                   {control + "/retention", `{"retentionTimeInMinutes":5,"retentionSizeInMB":-1}`, "", resultWarn, "5 minutes, less than ownership.anchor_behind (10m0s)"},
		"expiry":                            {control + "/messageTTL", "3600", "", resultFail, "records expire after 3600 s"},
		"partitioned claims":                {claims + "/partitions", `{"partitions":2}`, "", resultFail, "has 2 partitions: its records would have no order"},
		"expiry of claims":                  {claims + "/messageTTL", "3600", "", resultFail, "a group that is stopped for longer loses its subscription"},
		"partitioned acts":                  {acts + "/partitions", `{"partitions":2}`, "", resultFail, "has 2 partitions: its records would have no order"},
		"expiry of acts":                    {acts + "/messageTTL", "3600", "", resultWarn, "a router that starts later does not know older holds"},
		"expiry of the anchor":              {"/admin/v2/namespaces/public/default/subscriptionExpirationTime", "60", "", resultFail, "deletes subscriptions that are unused for 60 minutes"},
		"another group's":                   {events + "/partitioned-stats", `{"subscriptions":{"orders":{"type":"Shared","subscriptionProperties":{"ringfence-group":"billing","ringfence-control-topic":"persistent://public/default/__ring-orders"}}}}`, "", resultWarn, "ringfence-group=billing, and this router has orders"},
		"compaction":                        {control + "/compactionThreshold", "1000", "", resultWarn, "after 1000 bytes"},
		"eviction":                          {control + "/backlogQuotaMap", `{"destination_storage":{"limitSize":1000000,"policy":"consumer_backlog_eviction"}}`, "", resultFail, "a member that was away could not follow the log"},
		"inactive topics of a namespace":    {events + "/inactiveTopicPolicies", `{"inactiveTopicDeleteMode":"delete_when_subscriptions_caught_up","maxInactiveDurationSeconds":60,"deleteWhileInactive":true}`, "", resultWarn, "deletes topics whose consumers are gone (persistent://public/default/orders)"},
		"rate of readers":                   {control + "/dispatchRate", `{"dispatchThrottlingRateInMsg":1,"dispatchThrottlingRateInByte":-1}`, "", resultWarn, "dispatchRate limits it to 1 records"},
		"rate of writers":                   {control + "/publishRate", `{"publishThrottlingRateInMsg":-1,"publishThrottlingRateInByte":1000}`, "", resultWarn, "and 1000 bytes a second"},
		"inactive topics":                   {runtime, `{"acknowledgmentAtBatchIndexLevelEnabled":"false","brokerDeleteInactiveTopicsEnabled":"true","brokerDeleteInactiveTopicsMode":"delete_when_subscriptions_caught_up"}`, "", resultWarn, "deletes topics whose consumers are gone"},
		"holes in acks":                     {events + "/partitioned-stats", `{"subscriptions":{"orders":{"type":"Shared"}},"partitions":{"a":{"subscriptions":{"orders":{"nonContiguousDeletedMessagesRanges":3}}},"b":{"subscriptions":{"orders":{"nonContiguousDeletedMessagesRanges":8001}}}}}`, "", resultWarn, "8001 ranges of acked entries"},
		"expiry of timers":                  {timers + "/messageTTL", "3600", "", resultFail, "timers would be lost"},
		"late expiry of timers":             {timers + "/messageTTL", "7199", "", resultFail, "timers would be lost"},
		"expiry of retries":                 {retries + "/messageTTL", "1199", "", resultFail, "expire after 1199 s, unhandled: an event waits there for its next attempt, up to retry.backoff_max (10m0s)"},
		"expiry of late retries":            {retries + "/messageTTL", "1200", "", resultWarn, "expire after 1200 s, unhandled: an event waits there for its next attempt"},
		"expiry of parked events":           {parked + "/messageTTL", "8640000", "", resultWarn, "a parked key's events wait there until the unpark"},
		"expiry of dead letters":            {letters + "/messageTTL", "8640000", "", resultWarn, "dead letters wait there until somebody reads them"},
		"eviction of retries":               {retries + "/backlogQuotaMap", `{"destination_storage":{"limitSize":1000000,"policy":"consumer_backlog_eviction"}}`, "", resultFail, "their events would be lost"},
		"eviction of old parked events":     {parked + "/backlogQuotaMap", `{"message_age":{"limitTime":3600,"policy":"consumer_backlog_eviction"}}`, "", resultFail, "deletes the oldest messages"},
		"eviction of dead letters":          {letters + "/backlogQuotaMap", `{"destination_storage":{"limitSize":1000000,"policy":"consumer_backlog_eviction"}}`, "", resultFail, "their events would be lost"},
		"eviction of timers":                {timers + "/backlogQuotaMap", `{"destination_storage":{"limitSize":1000000,"policy":"consumer_backlog_eviction"}}`, "", resultFail, "their events would be lost"},
		"retries at once":                   {retries + "/delayedDelivery", `{"active":false}`, "", resultFail, "retries come back at once"},
		"short delays of retries":           {retries + "/delayedDelivery", `{"active":true,"maxDeliveryDelayInMillis":60000}`, "", resultFail, "refuses delays of more than 1m0s"},
		"no long delays of retries":         {retries + "/delayedDelivery", `{"active":true,"maxDeliveryDelayInMillis":600000}`, "", resultWarn, "a handler may ask for"},
		"no delays":                         {timers + "/delayedDelivery", `{"active":false}`, "", resultFail, "forbids delays of 1h0m0s"},
		"short delays":                      {timers + "/delayedDelivery", `{"active":true,"maxDeliveryDelayInMillis":60000}`, "", resultFail, "at most 60000 ms"},
		"many timers":                       {timers + "/stats", `{"subscriptions":{"orders":{"msgBacklog":5001}}}`, "", resultWarn, "5001 timers wait on a topic partition; beyond 10000"},
		"timers of a topic with partitions": {timers + "/partitions", `{"partitions":2}`, "", resultWarn, "Topic not found"},
		"eviction of events":                {events + "/backlogQuotaMap", `{"destination_storage":{"limitSize":1000000,"policy":"consumer_backlog_eviction"}}`, "", resultWarn, "the broker deletes the oldest events of persistent://public/default/orders"},
		"eviction of claims":                {claims + "/backlogQuotaMap", `{"destination_storage":{"limitSize":1000000,"policy":"consumer_backlog_eviction"}}`, "", resultFail, "a group would lose its subscription"},
		"eviction of acts":                  {acts + "/backlogQuotaMap", `{"message_age":{"limitTime":60,"policy":"consumer_backlog_eviction"}}`, "", resultFail, "would not know older holds"},
		"no Shared":                         {events + "/subscriptionTypesEnabled", `["Failover","Exclusive"]`, "", resultFail, "orders permits no subscriptions of the type Shared (only Failover, Exclusive)"},
		"one producer":                      {letters + "/maxProducers", "1", "", resultFail, "maxProducersPerTopic permits 1 on persistent://public/default/orders-orders-DLQ"},
		"one consumer":                      {events + "/maxConsumersPerSubscription", "1", "", resultFail, "maxConsumersPerSubscription permits 1"},
		"few subscriptions":                 {control + "/maxSubscriptionsPerTopic", "2", "", resultFail, "two routers need 4"},
		"small copies":                      {retries + "/maxMessageSize", "1000", "", resultFail, "refuses messages of more than 1000 bytes"},
		"not an administrator":              {runtime, "not JSON", "", resultWarn, "does not show its configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			says := healthy()
			says[test.path] = test.says
			unwell := examined(t, says, test.args)
			if len(unwell) != 1 || unwell[0].Result != test.result || !strings.Contains(unwell[0].Says, test.want) {
				t.Errorf("found %+v, want one %s with %q", unwell, test.result, test.want)
			}
		})
	}
	t.Run("expiry of events", func(t *testing.T) { // as the user wishes, so that it is only told
		says := healthy()
		says[events+"/messageTTL"] = "5"
		d := examination(t, says)
		if !slices.ContainsFunc(d.findings, func(f finding) bool {
			return f.Result == resultOK && f.Check == "topic" && strings.Contains(f.Says, "its events expire after 5 s")
		}) {
			t.Errorf("found %+v", d.findings)
		}
	})
	t.Run("a short tick of delayed delivery", func(t *testing.T) {
		for version, want := range map[string]int{"4.0.8": 0, "5.0.1": 1} {
			says := healthy()
			says["/admin/v2/brokers/version"] = version
			says[retries+"/delayedDelivery"] = `{"tickTime":100,"active":true}`
			unwell := examined(t, says)
			if len(unwell) != want || want > 0 && (unwell[0].Result != resultWarn || !strings.Contains(unwell[0].Says, "the tick time is 100 ms")) {
				t.Errorf("Pulsar %s: found %+v", version, unwell)
			}
			if want == 0 {
				continue
			}
			const command = "pulsar-admin topics set-delayed-delivery persistent://public/default/orders-orders-RETRY --enable --time 1s"
			if !strings.HasSuffix(unwell[0].Advice, ": "+command) {
				t.Errorf("it advises %q, want %q", unwell[0].Advice, command)
			}
		}
		limited := &delayPolicy{Max: 86_400_000}
		if says, want := limited.longerTick("namespaces/public/default"), "pulsar-admin namespaces set-delayed-delivery public/default --enable --time 1s --maxDelay 86400s"; !strings.HasSuffix(says, ": "+want) {
			t.Errorf("of a namespace that limits delays it advises %q, want %q", says, want)
		}
	})
	t.Run("limits of the namespace, and of a topic that may have more", func(t *testing.T) {
		says := healthy()
		says["/admin/v2/namespaces/public/default/maxSubscriptionsPerTopic"] = "1"
		says[claims+"/maxSubscriptionsPerTopic"], says[acts+"/maxSubscriptionsPerTopic"] = "0", "50"
		if unwell := examined(t, says); len(unwell) != 1 || !strings.Contains(unwell[0].Says, "__ring-orders") {
			t.Errorf("found %+v, want the control topic", unwell)
		}
	})
	t.Run("subscription types of the broker", func(t *testing.T) {
		says := healthy()
		says[runtime] = `{"acknowledgmentAtBatchIndexLevelEnabled":"false","subscriptionTypesEnabled":"[Shared, Failover]"}`
		says["/admin/v2/namespaces/public/default/subscriptionTypesEnabled"] = "[]"
		unwell := examined(t, says)
		for _, f := range unwell {
			if f.Result != resultFail || !strings.Contains(f.Says, "no subscriptions of the type Exclusive (only Shared, Failover)") {
				t.Errorf("found %+v", f)
			}
		}
		if len(unwell) != 5 { // dead letters, parked events, and three logs
			t.Errorf("found %+v", unwell)
		}
	})
	t.Run("enforced schemas", func(t *testing.T) {
		for topic, want := range map[string]result{events: resultWarn, retries: resultFail} {
			says := healthy()
			says[topic+"/schemaValidationEnforced"] = "true"
			if unwell := examined(t, says); len(unwell) != 0 {
				t.Errorf("%s without a schema: found %+v", topic, unwell)
			}
			says[strings.Replace(topic, "/persistent/", "/schemas/", 1)+"/schema"] = `{"type":"JSON"}`
			if unwell := examined(t, says); len(unwell) != 1 || unwell[0].Result != want || !strings.Contains(unwell[0].Says, "schema that is enforced") {
				t.Errorf("%s with a schema: found %+v", topic, unwell)
			}
		}
	})
	t.Run("expiry of acts that are not there yet", func(t *testing.T) {
		says := healthy()
		delete(says, acts+"/partitions")
		says["/admin/v2/namespaces/public/default/messageTTL"] = "3600"
		if unwell := examined(t, says); len(unwell) != 1 || !strings.Contains(unwell[0].Says, "does not know older holds") {
			t.Errorf("found %+v", unwell)
		}
	})
	t.Run("the longest retention", func(t *testing.T) {
		says := healthy()
		says[control+"/retention"] = `{"retentionTimeInMinutes":2147483647,"retentionSizeInMB":-1}`
		if unwell := examined(t, says); len(unwell) != 0 {
			t.Errorf("found %+v", unwell)
		}
	})
	t.Run("a topic that is not there", func(t *testing.T) {
		says := healthy()
		delete(says, events+"/partitions")
		unwell := examined(t, says)
		if len(unwell) == 0 || unwell[0].Result != resultWarn || !strings.HasPrefix(unwell[0].Says, "persistent://public/default/orders does not exist: ") ||
			!strings.HasPrefix(unwell[0].Advice, "check its name in pulsar.topics") {
			t.Errorf("found %+v", unwell)
		}
	})
	t.Run("a name with 404 in it, and no access", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no access", http.StatusForbidden) }))
		t.Cleanup(server.Close)
		d := doctor{cfg: settings(t).Config}
		if _, usable := d.logTopic(t.Context(), pulsaradmin.Client{URL: server.URL}, "control topic", "persistent://public/default/__ring-web404"); usable || d.findings[0].Result != resultWarn {
			t.Errorf("found %+v, want that there is no access", d.findings)
		}
	})
	t.Run("a namespace whose timers expire, before there are any", func(t *testing.T) {
		says := healthy()
		delete(says, timers+"/partitions")
		says["/admin/v2/namespaces/public/default/messageTTL"] = "3600"
		says["/admin/v2/namespaces/public/default/backlogQuotaMap"], says["/admin/v2/namespaces/public/default/delayedDelivery"] = "", ""
		if unwell := examined(t, says); len(unwell) != 1 || unwell[0].Result != resultFail || !strings.Contains(unwell[0].Says, "timers would be lost") {
			t.Errorf("found %+v", unwell)
		}
	})
	t.Run("a namespace whose events expire, before there are copies", func(t *testing.T) {
		says := healthy()
		delete(says, retries+"/partitions")
		says["/admin/v2/namespaces/public/default/messageTTL"] = "3600"
		says["/admin/v2/namespaces/public/default/backlogQuotaMap"], says["/admin/v2/namespaces/public/default/delayedDelivery"] = "", ""
		if unwell := examined(t, says); len(unwell) != 1 || unwell[0].Check != "copies" || unwell[0].Advice != "exempt it: pulsar-admin topics set-message-ttl persistent://public/default/orders-orders-RETRY -t 0" {
			t.Errorf("found %+v", unwell)
		}
	})
	t.Run("no timers", func(t *testing.T) {
		says := healthy()
		says[timers+"/messageTTL"] = "60"
		if unwell := examined(t, says, "no timers"); len(unwell) != 0 {
			t.Errorf("found %+v about timers of a router that takes none", unwell)
		}
	})
	t.Run("no acts topic, and no topic is created", func(t *testing.T) {
		says := healthy()
		delete(says, acts+"/partitions")
		says[runtime] = `{"acknowledgmentAtBatchIndexLevelEnabled":"false","allowAutoTopicCreation":"false"}`
		if unwell := examined(t, says); len(unwell) != 1 || unwell[0].Result != resultWarn || !strings.Contains(unwell[0].Advice, "pulsar-admin topics create persistent://public/default/__acts-orders") {
			t.Errorf("found %+v", unwell)
		}
	})
	t.Run("no timer topic, and no topic is created", func(t *testing.T) {
		says := healthy()
		delete(says, timers+"/partitions")
		says[runtime] = `{"acknowledgmentAtBatchIndexLevelEnabled":"false","allowAutoTopicCreation":"false"}`
		if unwell := examined(t, says); len(unwell) != 1 || unwell[0].Result != resultWarn || unwell[0].Advice != "pulsar-admin topics create persistent://public/default/orders-orders-TIMER" {
			t.Errorf("found %+v", unwell)
		}
	})
	t.Run("no topics for copies, and the namespace creates none", func(t *testing.T) {
		for topic, want := range map[string]string{
			"orders-orders-RETRY": "nothing is consumed", "orders-orders-DLQ": "dead letters stay unsettled", "orders-orders-PARKED": "parked keys stay unsettled",
			"orders-orders-TIMER": "timers, schedules and Send will not work", "__acts-orders": "router hold will not work", "__ringfence-claims": "no member starts",
		} {
			says := healthy()
			delete(says, "/admin/v2/persistent/public/default/"+topic+"/partitions")
			for _, name := range []string{"messageTTL", "backlogQuotaMap", "delayedDelivery"} {
				says["/admin/v2/namespaces/public/default/"+name] = ""
			}
			says["/admin/v2/namespaces/public/default/autoTopicCreation"] = `{"allowAutoTopicCreation":false}`
			if unwell := examined(t, says); len(unwell) != 1 || !strings.Contains(unwell[0].Says, want) || !strings.HasPrefix(unwell[0].Advice, "pulsar-admin topics create persistent://public/default/"+topic) {
				t.Errorf("without %s: found %+v", topic, unwell)
			}
			says["/admin/v2/namespaces/public/default/autoTopicCreation"] = `{"allowAutoTopicCreation":true}`
			says[runtime] = `{"acknowledgmentAtBatchIndexLevelEnabled":"false","allowAutoTopicCreation":"false"}`
			if unwell := examined(t, says); len(unwell) != 0 {
				t.Errorf("a namespace that creates %s though the broker would not: found %+v", topic, unwell)
			}
		}
	})
	t.Run("no subscriptions, and none is created", func(t *testing.T) {
		says := healthy()
		says[runtime] = `{"acknowledgmentAtBatchIndexLevelEnabled":"false","allowAutoSubscriptionCreation":"false"}`
		says[claims+"/stats"] = `{"subscriptions":{"__anchor":{}}}`
		says[retries+"/autoSubscriptionCreation"] = `{"allowAutoSubscriptionCreation":true}`
		var missing []string
		for _, f := range examined(t, says) {
			missing = append(missing, strings.TrimPrefix(f.Advice, "pulsar-admin topics create-subscription -s "))
		}
		const m = " -m earliest persistent://public/default/"
		want := []string{"__anchor" + m + "__acts-orders", "__anchor" + m + "__ring-orders", "ringfence" + m + "orders-orders-DLQ", "ringfence" + m + "orders-orders-PARKED"}
		if !slices.Equal(missing, want) {
			t.Errorf("found %q, want %q", missing, want)
		}
	})
	t.Run("no claims with ownership.mode gossip", func(t *testing.T) {
		says := healthy()
		delete(says, claims+"/partitions")
		delete(says, claims+"/stats")
		for name, want := range map[string]string{"allowAutoTopicCreation": "does not exist", "allowAutoSubscriptionCreation": "has no subscription __anchor"} {
			says[runtime] = `{"acknowledgmentAtBatchIndexLevelEnabled":"false","` + name + `":"false"}`
			for _, f := range examined(t, says, "gossip") {
				if strings.Contains(f.Says, "__ringfence-claims") && (f.Result != resultWarn || !strings.Contains(f.Says, want) || !strings.HasSuffix(f.Says, "without claims")) {
					t.Errorf("found %+v, and routers start without claims", f)
				}
			}
		}
	})
	t.Run("no topics yet", func(t *testing.T) {
		says := healthy()
		for path := range says {
			if strings.HasPrefix(path, events) || strings.HasPrefix(path, control) {
				delete(says, path)
			}
		}
		for name, text := range map[string]string{"retention": "", "messageTTL": "60", "compactionThreshold": "", "backlogQuotaMap": "", "delayedDelivery": ""} {
			says["/admin/v2/namespaces/public/default/"+name] = text
		}
		unwell := examined(t, says)
		var checks []string
		for _, f := range unwell {
			checks = append(checks, f.Check)
		}
		if !slices.Equal(checks, []string{"topic", "copies", "copies", "copies", "timers", "retention", "message TTL"}) {
			t.Errorf("found %+v, want the topic, and the policies of the namespace", unwell)
		}
	})
}

// TestDoctorOfABrokerThatDoesNotAnswer: a process that accepts connections need not be a broker. A
// router waits for it; the doctor does not report that the broker accepts the router.
func TestDoctorOfABrokerThatDoesNotAnswer(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"hangs up":     func(conn net.Conn) { _ = conn.Close() },
		"says nothing": func(net.Conn) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each takes as long as a broker may take to answer
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var serving sync.WaitGroup
			serving.Go(func() {
				var open []net.Conn
				defer func() {
					for _, conn := range open {
						_ = conn.Close()
					}
				}()
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					open = append(open, conn)
					serve(conn)
				}
			})
			defer serving.Wait()
			defer listener.Close()
			cfg := settings(t).Config
			cfg.Pulsar.URL = "pulsar://" + listener.Addr().String()
			d := doctor{cfg: cfg}
			d.broker(t.Context(), authTo(t, cfg.Pulsar))
			last := d.findings[len(d.findings)-1]
			if last.Check != "pulsar access" || last.Result != resultFail || !strings.Contains(last.Says, "did not answer the lookup") || !strings.Contains(last.Advice, "binary port") {
				t.Errorf("found %+v, want that the broker does not answer, with advice", d.findings)
			}
			if err := authTo(t, cfg.Pulsar).brokerFault(t.Context(), cfg); err == nil || !strings.HasPrefix(err.Error(), "pulsar.url: "+listener.Addr().String()+" accepts connections") ||
				!strings.Contains(err.Error(), "binary port") || strings.Contains(err.Error(), "\n") {
				t.Errorf("a router tells %q, want one line with the setting and a remedy", err)
			}
			b := throughPulsar(cfg)
			if err := b.open(t.Context(), mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)); err != nil {
				t.Errorf("a router does not wait for it: %v", err)
			}
		})
	}
}

// On a real broker, which says of a topic without a tenant or a namespace only that it is not found.
func TestDoctorNamesAMissingTenant(t *testing.T) {
	settings := settingsFile(t, least)
	for topic, want := range map[string]string{
		"persistent://nobody/default/orders": "persistent://nobody/default/orders: the tenant nobody does not exist\n                         → create it (pulsar-admin tenants create nobody), or correct the name\n",
		"persistent://public/none/orders":    "persistent://public/none/orders: the namespace public/none does not exist\n                         → create it (pulsar-admin namespaces create public/none), or correct the name\n",
	} {
		args := []string{"doctor", "--config", settings, "--pulsar.url", pulsartest.URL(t), "--pulsar.admin_url", pulsartest.AdminURL(t), "--control_log.namespace", "public/default", "--pulsar.topics", topic}
		if out, _, code := cli(t, args...); code != exitFailed || !strings.Contains(out, want) {
			t.Errorf("exit code %d, and %q is missing in\n%s", code, want, out)
		}
	}
}

func TestAccessAdvice(t *testing.T) {
	for err, want := range map[error]string{
		errors.New("TopicNotFound"):       "create the topic",
		errors.New("request timed out"):   "binary port",
		errors.New("connection error: X"): "binary port",
	} {
		if got := accessAdvice(true, err); !strings.Contains(got, want) {
			t.Errorf("%v: advice %q, want %q in it", err, got, want)
		}
	}
}

// TestDoctorOfNothing: without a broker the doctor reports the missing parts with advice.
func TestDoctorOfNothing(t *testing.T) {
	t.Setenv("RINGFENCE_PULSAR_ADMIN_URL", "http://elsewhere:8080")
	out, says, code := cli(t, "doctor", "--node.group", "orders", "--pulsar.topics", "orders", "--pulsar.subscription", "orders",
		"--pulsar.url", "pulsar://127.0.0.1:1", "--gossip.seeds", "127.0.0.1:16652,dns+nobody.invalid:16652",
		"--app.listen", freeAddress(t), "--peer.listen", freeAddress(t), "--gossip.listen", freeAddress(t),
		"--admin.listen", freeAddress(t), "--debug.listen", freeAddress(t))
	if code != exitFailed || says != "some checks failed: see above" {
		t.Errorf("exit code %d: %s", code, says)
	}
	for _, want := range []string{"ok    settings", "warn  settings           RINGFENCE_PULSAR_ADMIN_URL is ignored", "set RINGFENCE__PULSAR__ADMIN_URL\n", "  clock              ", "ok    gossip.seeds       127.0.0.1:16652 stands for 127.0.0.1", "fail  gossip.seeds", "publishNotReadyAddresses", "fail  pulsar.url", "start the broker, or set pulsar.url"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	for _, line := range []string{
		`ok    app protection     127\.0\.0\.1:\d+: loopback`, `ok    gossip protection  127\.0\.0\.1:\d+: loopback`, `ok    debug protection   127\.0\.0\.1:\d+: loopback`,
	} {
		if !regexp.MustCompile(line).MatchString(out) {
			t.Errorf("%q is missing in\n%s", line, out)
		}
	}
	if _, says, code := cli(t, "doctor"); code != exitUsage || !strings.Contains(says, "node.group is not set") {
		t.Errorf("without settings: exit code %d: %s", code, says)
	}
}

// TestDoctorFindsATakenGossipPort: gossip needs its port for UDP, too.
func TestDoctorFindsATakenGossipPort(t *testing.T) {
	taken, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	d := doctor{cfg: settings(t).Config}
	d.cfg.Gossip.Listen = taken.LocalAddr().String()
	d.ports(t.Context())
	for _, f := range d.findings {
		if f.Check == "gossip.listen" && f.Result != "fail" {
			t.Errorf("%s: %s, though another process has the port for UDP", f.Result, f.Says)
		}
	}
}

// TestDoctorFindsAnAddressOfAnotherMachine: no process has such an address in use, nor does this member, if it runs.
func TestDoctorFindsAnAddressOfAnotherMachine(t *testing.T) {
	for name, answer := range map[string]string{"it runs": `{"member":"router-0","group":"orders"}`, "it does not run": `{}`} {
		t.Run(name, func(t *testing.T) {
			member := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) }))
			defer member.Close()
			d := doctor{cfg: settings(t).Config}
			d.cfg.Admin.Listen = member.Listener.Addr().String()
			d.cfg.Peer.Listen = "192.0.2.1:16651" // for documents: no machine has it
			if d.runsHere(t.Context()) != (name == "it runs") {
				t.Fatal("the member that answers is not taken for what it is")
			}
			d.ports(t.Context())
			for _, f := range d.findings {
				if f.Check == "peer.listen" && (f.Result != resultFail || !strings.Contains(f.Advice, "an address that this machine has")) {
					t.Errorf("%s: %s; advice: %s", f.Result, f.Says, f.Advice)
				}
			}
		})
	}
}

// TestDoctorOfListeners: the doctor names the protection of each listener, and warns of unprotected ones.
func TestDoctorOfListeners(t *testing.T) {
	d := doctor{cfg: settings(t).Config} // with peer.insecure and gossip.insecure
	d.cfg.App.TLS.CertFile, d.cfg.App.TLS.Name = "/cert", "orders-app"
	d.listeners()
	var said []string
	for _, f := range d.findings {
		said = append(said, fmt.Sprintf("%s %s: %s", f.Result, f.Check, f.Says))
	}
	want := []string{
		"ok app protection: 127.0.0.1:16650: loopback; TLS, name orders-app",
		"warn peer protection: 0.0.0.0:16651: nothing (insecure)",
		"warn gossip protection: 0.0.0.0:16652: nothing (insecure)",
		"ok admin protection: 127.0.0.1:16653: loopback",
	}
	if !slices.Equal(said, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
}

// TestDoctorOfClaims: the doctor names the holder of the subscription, and the differing
// settings.
func TestDoctorOfClaims(t *testing.T) {
	ours := settings(t).Config
	other := ours
	other.Key.From = "property:user"
	places, err := claimedBy(ours)
	if err != nil {
		t.Fatal(err)
	}
	m := newMemGroupLogs()
	examine := func(cfg config.Config) string {
		d := doctor{cfg: cfg, claims: places}
		d.claim(t.Context(), m.groupLogs)
		return fmt.Sprint(d.findings)
	}
	if says := examine(ours); strings.Count(says, "is unclaimed; the first router claims it") != 3 {
		t.Errorf("at first: %s", says)
	}
	m.claim(t, ours)
	if says := examine(ours); strings.Count(says, "belongs to this group") != 3 || strings.Contains(says, string(resultFail)) {
		t.Errorf("its own: %s", says)
	}
	if says := examine(other); !strings.Contains(says, `key.from is "property:user" here and "message_key" there`) ||
		!strings.Contains(says, string(resultFail)) {
		t.Errorf("with another key: %s", says)
	}
	if err := m.release(t.Context(), ours, releaseOptions{}, io.Discard); err != nil {
		t.Fatal(err)
	}
	if says := examine(ours); !strings.Contains(says, "fencing tokens of generation 2 were given out") {
		t.Errorf("after a release: %s", says)
	}
}
