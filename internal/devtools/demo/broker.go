package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/broker/pulsarread"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/source"
)

// backend is the broker of a demo, as its parent process sees it.
type backend interface {
	// publish sends events as one entry, or in the batches that the broker's client makes.
	publish(ctx context.Context, topic string, events []message) error
	// flush returns when everything that was published is safe.
	flush(ctx context.Context) error
	// open returns how many events of a subscription are not acked, or 0 if this
	// broker cannot be asked.
	open(ctx context.Context, subscription string) (int, error)
	// arguments name the broker to a child.
	arguments() []string
	// close closes the connection, and removes the demo's topics from the broker.
	close()
}

// memory is the broker of the demo's own process.
type memory struct {
	address string
	conn    *grpc.ClientConn
	client  *membroker.Client
}

func dialMemory(address string) (*memory, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("demo: broker: %w", err)
	}
	return &memory{address: address, conn: conn, client: membroker.NewClient(conn)}, nil
}

func (m *memory) publish(ctx context.Context, topic string, events []message) error {
	entry := make([]membroker.Message, len(events))
	for i, e := range events {
		entry[i] = membroker.Message{Key: e.key, Payload: []byte(e.name), Properties: e.properties()}
	}
	_, err := m.client.Publish(ctx, topic, entry)
	return err
}

func (m *memory) flush(context.Context) error { return nil }

func (m *memory) open(ctx context.Context, subscription string) (int, error) {
	stats, err := m.client.SubscriptionStats(ctx, subscription)
	return stats.Backlog + stats.Unacked, err
}

func (m *memory) arguments() []string { return []string{"--broker", m.address} }

func (m *memory) close() { _ = m.conn.Close() } // no append is in flight

// cluster is a Pulsar.
type cluster struct {
	url       string
	client    pulsar.Client
	producers map[string]pulsar.Producer // the publisher's own
	left      []subscription

	mu     sync.Mutex
	failed error // the first publication that was not confirmed
}

// subscription keeps a topic alive.
type subscription struct {
	topic, name string
	kind        pulsar.SubscriptionType
}

// dialCluster connects to a Pulsar. A broker deletes topics, by default, when their
// last subscription is gone: left are those that a demo leaves.
func dialCluster(url string, left []subscription) (*cluster, error) {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: plog.DefaultNopLogger()})
	if err != nil {
		return nil, fmt.Errorf("demo: %s: %w", url, err)
	}
	return &cluster{url: url, client: client, producers: make(map[string]pulsar.Producer), left: left}, nil
}

func (c *cluster) publish(ctx context.Context, topic string, events []message) error {
	producer, ok := c.producers[topic]
	if !ok {
		var err error
		if producer, err = c.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: pulsarsend.NoTimeout}); err != nil {
			return fmt.Errorf("demo: publish to %s: %w", topic, err)
		}
		c.producers[topic] = producer
	}
	for _, e := range events {
		producer.SendAsync(ctx, &pulsar.ProducerMessage{Key: e.key, Payload: []byte(e.name), Properties: e.properties()}, c.sent)
	}
	return c.failure()
}

func (c *cluster) sent(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil && err != nil {
		c.failed = fmt.Errorf("demo: publish: %w", err)
	}
}

func (c *cluster) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

func (c *cluster) flush(ctx context.Context) error {
	errs := []error{}
	for _, producer := range c.producers {
		errs = append(errs, producer.FlushWithCtx(ctx))
	}
	return errors.Join(append(errs, c.failure())...)
}

// The binary protocol does not report open events: the members and the journals judge the
// drain.
func (c *cluster) open(context.Context, string) (int, error) { return 0, nil }

func (c *cluster) arguments() []string { return []string{"--pulsar", c.url} }

func (c *cluster) close() {
	for _, producer := range c.producers {
		producer.Close()
	}
	for _, s := range c.left {
		consumer, err := pulsarread.Subscribe(c.client, pulsar.ConsumerOptions{Topic: s.topic, SubscriptionName: s.name, Type: s.kind, ReceiverQueueSize: 1})
		if err != nil {
			continue // it never existed, or is used by another consumer
		}
		_ = consumer.UnsubscribeForce() // otherwise a topic without readers remains
		consumer.Close()
	}
	c.client.Close()
}

// names are those of one run: fresh ones, so that runs on one cluster do not meet.
type names struct {
	group         string
	plain, fenced subscription
	controlLog    string
}

const controlNamespace = "public/default"

func namesOf(run string) names {
	topic := func(part string) string { return source.FullTopicName("ringfence-demo-" + run + "-" + part) }
	group := "ringfence-demo-" + run
	return names{
		group:      group,
		plain:      subscription{topic("plain"), "plain", pulsar.Shared},
		fenced:     subscription{topic("fenced"), "fenced", pulsar.Shared},
		controlLog: "persistent://" + controlNamespace + "/__ring-" + group,
	}
}

// left lists the remains of a run on a cluster.
func (n names) left() []subscription {
	retry := source.RetryTopicName([]string{n.fenced.topic}, n.fenced.name)
	return []subscription{
		n.plain, n.fenced,
		{retry, n.fenced.name, pulsar.Shared},
		{n.controlLog, "__anchor", pulsar.Failover},
	}
}
