package deadletter

import (
	"context"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsarread"
)

// Client is what a [Broker] works with; see [Connect].
type Client interface {
	TopicPartitions(topic string) ([]string, error)
	CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error)

	// keep makes a subscription that begins with the oldest message.
	keep(ctx context.Context, topic, subscription string) error
	// letters reads a subscription of a topic partition, as its only consumer.
	letters(ctx context.Context, topic, subscription string, queue int) (reader, error)
	// read reads a topic partition without a durable subscription.
	read(ctx context.Context, topic string, from entries.Start, queue int) (reader, error)
}

// reader reads a topic partition, in its order.
type reader interface {
	// next waits for the next message. A void one is no message, and only tells how far the reader is.
	next(ctx context.Context) (*message, error)
	// end returns the place of the last message of the topic partition.
	end(ctx context.Context) (Place, error)
	// ack removes a message from the subscription, and waits until the broker has confirmed that. Of an entry with several messages only the
	// last ack counts.
	ack(m *message) error
	close()
}

// ReaderConfig returns the configuration of the reader of [Connect]. payloadMax bounds a message, after decompression.
func ReaderConfig(url string, payloadMax int) entries.Config {
	c := entries.DefaultConfig()
	c.URL, c.PayloadBytesMax = url, payloadMax
	c.ChunkBytesMax = payloadMax + 4*headMax // the head of a message is in each of its chunks
	c.AckGroupMax = 1                        // each is waited for
	return c
}

// Connect returns a [Client] that sends with Pulsar's client, and reads with package entries, which bounds what a message can become, and shows what
// Pulsar's client would remove. Both remain the caller's. The configuration of the reader is that of [ReaderConfig].
func Connect(client pulsar.Client, reader *entries.Client) Client {
	return connected{client, reader}
}

type connected struct {
	pulsar.Client

	reader *entries.Client
}

func (c connected) keep(ctx context.Context, topic, subscription string) error {
	consumer, err := c.reader.Subscribe(ctx, entries.Subscription{
		Topic: topic, Name: subscription, Type: entries.Exclusive, FromEarliest: true, Permits: 1, Queue: entries.NewQueue(),
	})
	switch {
	case err == nil:
		consumer.Close()
	case !pulsarread.IsTaken(err): // one that is taken exists
		return fmt.Errorf("deadletter: subscription %q on %s: %w", subscription, topic, err)
	}
	return nil
}

func (c connected) letters(ctx context.Context, topic, subscription string, queue int) (reader, error) {
	s := newStream(topic)
	err := s.open(ctx, c.reader, entries.Subscription{Name: subscription, FromEarliest: true, Permits: queue, Receipt: s.receipt})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (c connected) read(ctx context.Context, topic string, from entries.Start, queue int) (reader, error) {
	s := newStream(topic)
	if err := s.open(ctx, c.reader, entries.Subscription{Start: &from, Permits: queue}); err != nil {
		return nil, fmt.Errorf("deadletter: reader of %s: %w", topic, err)
	}
	return s, nil
}
