package e2e

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// TestTopicPartitionsAreAddedUnderLoad: a topic grows from three partitions to six and to eight while producers continue.
// Nothing is lost, no two events of a key are handled at once, and every member reads every topic partition.
func TestTopicPartitionsAreAddedUnderLoad(t *testing.T) {
	t.Parallel()
	const every = time.Second
	topic := pulsartest.Topic(t, 3)
	c := newCluster(t, "message_key", 0, topic)
	c.more = []string{"--pulsar.discover_every", every.String()}
	for _, name := range []string{"a", "b"} {
		c.start(name)
	}
	for _, m := range c.members {
		c.ready(m)
	}
	producer, err := pulsartest.Client(t).CreateProducer(pulsar.ProducerOptions{
		Topic: topic, PartitionsAutoDiscoveryInterval: every, BatchingMaxPublishDelay: 5 * time.Millisecond,
		MessageRouter: roundRobin(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	var sent atomic.Int64
	var producing sync.WaitGroup
	stop := make(chan struct{})
	producing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			producer.SendAsync(t.Context(), &pulsar.ProducerMessage{Key: fmt.Sprint("user-", i%97), Payload: []byte("{}")},
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
					if err != nil {
						t.Errorf("send: %v", err)
						return
					}
					sent.Add(1)
				})
		}
	})
	end := sync.OnceFunc(func() { close(stop); producing.Wait() })
	defer end()
	grown := func(partitions int) {
		t.Helper()
		before := sent.Load()
		pulsartest.Grow(t, topic, partitions)
		eventually.NoError(t, eventually.Most, fmt.Sprintf("%d topic partitions are read", partitions), func() error {
			for _, m := range c.members {
				// Two more: the retry topic and the timer topic.
				if n, err := c.metric(m, "ringfence_source_topic_partitions"); err != nil || n != float64(partitions+2) {
					return fmt.Errorf("%s reads %v: %w", m.name, n, err)
				}
			}
			return nil
		})
		last := fmt.Sprintf("%s-partition-%d", topic, partitions-1)
		eventually.NoError(t, eventually.Most, "the newest topic partition has events, and they are acked", func() error {
			if n := len(ids(t, 0, last)); n < 50 {
				return fmt.Errorf("%d events", n)
			}
			if sent.Load() < before+1000 {
				return fmt.Errorf("%d events were sent meanwhile", sent.Load()-before)
			}
			return nil
		})
	}
	grown(6)
	grown(8)
	end()
	if err := producer.FlushWithCtx(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.settled()
	c.check(ids(t, int(sent.Load()), topic))
}

// roundRobin spreads events over all topic partitions that there are, whatever their keys.
func roundRobin() func(*pulsar.ProducerMessage, pulsar.TopicMetadata) int {
	var n atomic.Int64
	return func(_ *pulsar.ProducerMessage, topic pulsar.TopicMetadata) int {
		return int(n.Add(1)) % int(topic.NumPartitions())
	}
}
