package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/broker/topicname"
)

// MemBroker is a broker in memory: membroker.Broker, or membroker.Client where it
// lives in another process.
type MemBroker interface {
	Publish(ctx context.Context, topic string, messages []membroker.Message) (membroker.EntryID, error)
	Subscribe(ctx context.Context, o membroker.SubscribeOptions) (membroker.Consumer, error)
}

// NewMem returns a source that reads from a broker in memory. Config has the same
// meaning as for Pulsar; chunks, names of consumers, CopyTimeout and
// CountEvents do not exist there. When the connection to the broker breaks, Run returns.
func NewMem(cfg Config, broker MemBroker, metrics *Metrics, log *slog.Logger) *Source {
	return newSource(cfg, metrics, log, func(ctx context.Context, cfg Config, _ int, _ *slog.Logger) (connection, error) {
		if cfg.Counting == CountEvents {
			return nil, errors.New("source: a broker in memory acks entries only: Counting has to be CountEntries")
		}
		return subscribeMem(ctx, cfg, broker, membroker.SubscribeOptions{
			Subscription: cfg.Subscription, Type: membroker.Shared, FromLatest: !cfg.FromEarliest, Topics: cfg.all(),
		})
	})
}

type memConnection struct {
	cfg      Config
	broker   MemBroker
	consumer membroker.Consumer

	// The reader's own.
	received []membroker.Entry // not yet handed on
	handedOn int               // since the last permits were given
	origins  origins
}

func subscribeMem(ctx context.Context, cfg Config, broker MemBroker, o membroker.SubscribeOptions) (*memConnection, error) {
	consumer, err := broker.Subscribe(ctx, o)
	if errors.Is(err, membroker.ErrSubscriptionType) {
		return nil, fmt.Errorf("source: subscription %q: %w (%w)", o.Subscription, ErrSubscriptionType, err)
	}
	if err != nil {
		return nil, fmt.Errorf("source: subscribe %q: %w", o.Subscription, err)
	}
	consumer.Permit(cfg.ReceiverQueueMax)
	return &memConnection{cfg: cfg, broker: broker, consumer: consumer, origins: make(origins)}, nil
}

func (m *memConnection) receive(ctx context.Context, batch []Receipt) ([]Receipt, error) {
	if len(m.received) == 0 {
		received, err := m.consumer.Receive(ctx)
		if err != nil {
			return batch, err
		}
		m.received = received
	}
	events := 0
	for len(m.received) > 0 && events < m.cfg.BatchMax {
		e := &m.received[0]
		batch = append(batch, m.receipt(e))
		events += len(e.Messages)
		*e = membroker.Entry{}
		m.received = m.received[1:]
	}
	m.handedOn += events
	if m.handedOn >= max(1, m.cfg.ReceiverQueueMax/2) {
		m.consumer.Permit(m.handedOn)
		m.handedOn = 0
	}
	return batch, nil
}

func (m *memConnection) receipt(e *membroker.Entry) Receipt {
	from := m.origins.of(e.Topic, &m.cfg)
	messages := make([]event.Message, len(e.Messages))
	for i := range e.Messages {
		message := &e.Messages[i]
		id := event.MessageID{Ledger: e.ID.Ledger, Entry: e.ID.Entry, Batch: -1, TopicPartition: from.partition}
		if e.Batched {
			id.Batch = int32(i)
		}
		messages[i] = event.Message{Key: message.Key, OrderingKey: message.OrderingKey, Event: &event.Event{
			ID: id, Topic: from.base, Payload: message.Payload, Properties: properties(message.Properties),
			PublishTime: message.PublishTime, EventTime: message.EventTime, Redelivery: e.Redelivery,
		}}
	}
	return Receipt{
		Entry: event.NewEntry(messages...), ID: EntryID(e.ID), Has: event.AllBits(len(messages)), Origin: from.number, Copy: from.copies,
	}
}

func properties(from map[string]string) []event.Property {
	if len(from) == 0 {
		return nil
	}
	list := make([]event.Property, 0, len(from))
	for name, value := range from {
		list = append(list, event.Property{Name: name, Value: value})
	}
	return list
}

func (m *memConnection) ack(a Ack) error {
	m.consumer.Ack(membroker.Ack{ID: membroker.EntryID(a.Entry), Index: -1})
	return nil
}

// bound implements connection. A broker in memory has no such limit.
func (m *memConnection) bound(int) {}

func (m *memConnection) limits(context.Context) (limits, bool, error) { return limits{}, false, nil }

// unreadTopics implements connection. One subscription reads all topics.
func (m *memConnection) unreadTopics() map[string]error { return nil }

// timers implements connection.
func (m *memConnection) timers() error {
	if !m.cfg.Timers {
		return errTimersOff
	}
	return nil
}

// ends implements connection. A broker in another process cannot be asked.
func (m *memConnection) ends(context.Context) ([]End, bool, error) {
	broker, ok := m.broker.(interface {
		Last(topic string) map[string]membroker.EntryID
	})
	if !ok {
		return nil, false, nil
	}
	var ends []End
	for _, topic := range m.cfg.all() {
		for name, last := range broker.Last(topic) {
			base, partition := topicname.Split(name)
			ends = append(ends, End{Topic: base, Partition: partition, Last: EntryID(last)})
		}
	}
	return ends, true, nil
}

func (m *memConnection) send(ctx context.Context, c outgoing, done func(error)) {
	message := membroker.Message{
		Key: c.key, OrderingKey: c.orderingKey, Payload: c.payload, Properties: c.properties, EventTime: c.eventTime,
	}
	if c.delay > 0 {
		message.DeliverAt = time.Now().Add(c.delay).UnixMilli() //nolint:forbidigo // the broker holds messages back by the wall clock; no lease depends on it
	}
	_, err := m.broker.Publish(ctx, c.topic, []membroker.Message{message})
	done(err)
}

// release implements connection. There are no producers.
func (m *memConnection) release(string, int) {}

func (m *memConnection) close() { m.consumer.Close() }
