package entries

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/topicname"
)

// Exists reports whether there is a topic of this name, with or without partitions. It creates none, as any other way to open a topic does if brokers
// may, even a question about its partitions: it subscribes for a moment as a reader that takes no entries. It retries temporary failures until the
// OperationTimeout of each of two questions.
func (c *Client) Exists(ctx context.Context, topic string) (bool, error) {
	for _, name := range []string{topic, topicname.Partition(topic, 0)} {
		err := c.retry(ctx, func(ctx context.Context) error { return c.visit(ctx, name) })
		if refused := (*BrokerError)(nil); errors.As(err, &refused) && refused.Code == pulsarpb.ServerError_TOPIC_NOT_FOUND {
			continue
		}
		return err == nil, err
	}
	return false, nil
}

// visit subscribes to a topic that must exist, and leaves it.
func (c *Client) visit(ctx context.Context, topic string) error {
	at, err := c.lookup(ctx, c.seeds, topic)
	if err != nil {
		return err
	}
	k, err := c.connect(ctx, slot{to: at})
	if err != nil {
		return err
	}
	consumer, id := c.ids.Add(1), c.ids.Add(1)
	answer, err := k.request(ctx, id, &pulsarpb.BaseCommand{
		Type: pulsarpb.BaseCommand_SUBSCRIBE.Enum(),
		Subscribe: &pulsarpb.CommandSubscribe{
			Topic: &topic, Subscription: new("exists-" + rand.Text()), SubType: pulsarpb.CommandSubscribe_EXCLUSIVE.Enum(),
			ConsumerId: &consumer, RequestId: &id, InitialPosition: pulsarpb.CommandSubscribe_LATEST.Enum(),
			Durable: new(false), ForceTopicCreation: new(false),
		},
	})
	_ = k.post(closeConsumer(consumer, c.ids.Add(1))) // also without an answer: the broker may still complete the subscription
	if err == nil && answer.GetType() != pulsarpb.BaseCommand_SUCCESS {
		err = k.refusal("look for "+topic, answer)
	}
	return err
}
