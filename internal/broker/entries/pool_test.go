package entries

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// Topic partitions are spread evenly over the connections to their broker. A broken connection interrupts only its own topic partitions, which
// are then on one connection again.
func TestTopicPartitionsAreSpreadOverConnections(t *testing.T) {
	for name, atOnce := range map[string]bool{"one after the other": false, "at once": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) { testSpread(r, atOnce) })
		})
	}
}

func testSpread(r *rig, atOnce bool) {
	const connections, topics = 4, 12
	r.cfg.URL, r.cfg.ConnectionsPerBrokerMax = "pulsar://a", connections
	broker := r.cluster.Broker("a:6650")
	var mu sync.Mutex
	links, sessions := make(map[string]*fakebroker.Link), make(map[string]int)
	broker.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
		if c.GetType() == pulsarpb.BaseCommand_SUBSCRIBE {
			mu.Lock()
			defer mu.Unlock()
			links[c.GetSubscribe().GetTopic()] = l
			sessions[c.GetSubscribe().GetTopic()]++
		}
		return false
	}
	even := func() {
		r.Helper()
		mu.Lock()
		defer mu.Unlock()
		topicsOf := make(map[*fakebroker.Link]int)
		for _, l := range links {
			topicsOf[l]++
		}
		for _, n := range topicsOf {
			if n != topics/connections {
				r.Errorf("a connection serves %d topic partitions, want %d", n, topics/connections)
			}
		}
		if shown := testutil.ToFloat64(r.metrics.connections); len(topicsOf) != connections || broker.Links() != connections || shown != connections {
			r.Errorf("%d connections are used, %d are open and %v are in the metric, want %d", len(topicsOf), broker.Links(), shown, connections)
		}
	}

	client := r.open()
	names := make([]string, topics)
	var work sync.WaitGroup
	for i := range names {
		names[i] = fmt.Sprint(topicName, "-partition-", i)
		s := r.subscription()
		s.Topic = names[i]
		work.Go(func() {
			if _, err := client.Subscribe(r.Context(), s); err != nil {
				r.Error(err)
			}
		})
		if !atOnce {
			work.Wait()
		}
	}
	work.Wait()
	even()

	cut := links[names[0]]
	cut.Cut()
	interrupted := make(map[string]bool)
	for name, l := range links {
		interrupted[name] = l == cut
	}
	for _, name := range names {
		r.cluster.Publish(name, fakebroker.Message("x"), 1)
	}
	r.receive(topics)
	synctest.Wait()
	even()
	for _, name := range names {
		if again := sessions[name] > 1; again != interrupted[name] {
			r.Errorf("%s subscribed again: %v, want %v", name, again, interrupted[name])
		}
	}
	if n := testutil.ToFloat64(r.metrics.reconnects.WithLabelValues(reasonConnection)); n != topics/connections {
		r.Errorf("the metric counts %v reconnects, want %d", n, topics/connections)
	}
	client.Close()
	if len(client.shares) != 0 {
		r.Errorf("closed consumers still count: %v", client.shares)
	}
}
