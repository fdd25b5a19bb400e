package entries

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Type is the type of a subscription.
type Type int

// The types that this package supports. No type is none: Pulsar's zero keeps all other consumers out.
const (
	// Shared spreads the entries over all consumers of the subscription.
	Shared Type = iota + 1
	// Exclusive is a subscription of one consumer, which gets the entries in the order of the topic partition.
	Exclusive
	// Failover is a subscription of which one consumer gets the entries, in the order of the topic partition, while the others wait to take its place.
	Failover
)

var types = map[Type]pulsarpb.CommandSubscribe_SubType{
	Shared: pulsarpb.CommandSubscribe_SHARED, Exclusive: pulsarpb.CommandSubscribe_EXCLUSIVE, Failover: pulsarpb.CommandSubscribe_FAILOVER,
}

// Subscription holds the topic, queue and options of a consumer.
type Subscription struct {
	// Topic is the full name of a topic partition, or of a topic without partitions.
	Topic string
	// Name is the name of the subscription, which is created if it does not exist.
	Name string
	Type Type
	// FromEarliest makes a new subscription begin with the oldest entry instead of the next entry. It counts at the first time only: if the
	// subscription is deleted later, the next one begins with the oldest entry in any case, so that none is skipped.
	FromEarliest bool
	// Start makes the consumer a reader, which is Exclusive: it begins there, and its subscription has no name, is not durable, and keeps nothing from being
	// deleted. It receives each entry once, in the order of the topic partition, also across reconnects, until the topic moves to another cluster, or
	// is known to be another one ([ErrReplaced]). It acks nothing. nil: a durable subscription.
	Start *Start
	// Properties are set on a new subscription.
	Properties map[string]string
	// Consumer is the name in the broker's statistics; "": the broker chooses one.
	Consumer string
	// Priority orders consumers with permits: the consumer with the lowest number gets entries first.
	Priority int32
	// Permits is the number of events that may wait in the queue, at least 1. SetPermits changes it.
	Permits int
	// UnackedMax is the number of events that may be unacked, whole entries counted as brokers do; 0: no bound. SetUnackedMax changes it.
	// Those in the queue and those that the broker may still send count, too. A broker may exceed it by some entries.
	UnackedMax int
	// Queue receives the entries.
	Queue *Queue
	// Receipt is called with acks that the broker has confirmed, or with the error of unconfirmed acks; nil: no confirmation is requested.
	// Acks without an answer when a connection ends are sent again. Brokers before Pulsar 2.8 do not confirm: their acks count as confirmed
	// once they are sent. Receipt is called on the goroutine of the consumer, which waits for it.
	Receipt func(ids []wire.AckID, err error)
}

// Consumer reads a topic partition until it is closed or lost.
type Consumer struct {
	client *Client
	sub    Subscription
	wake   chan struct{} // signals receipts
	gone   chan struct{} // closed when its goroutine has ended
	cancel context.CancelFunc
	chunks *chunks
	read   *reading // nil: it is no reader

	mu      sync.Mutex // guards the fields below
	session *session   // nil while reconnecting
	acks    ackGroup
	delay   *time.Timer // calls flushLate
	delayed bool        // delay runs
	ackedAt time.Time   // when acks were sent last
	settled []receipt
	over    error // ErrClosed or a LostError; nil while it runs
	seeds   *seeds

	position positionAt // before which all entries were acked, when the broker was asked last

	end sync.Once // the line about a terminated topic
}

// terminated says that no entry can come any more. The broker tells it at each connection.
func (c *Consumer) terminated() {
	c.end.Do(func() {
		c.client.log.Warn("the topic is terminated and read to its end: producers cannot write to it, and no more events come", "topic", c.sub.Topic)
	})
}

// receipt is the broker's answer to acks.
type receipt struct {
	ids []wire.AckID
	err error
}

// Subscribe subscribes, and returns when entries can arrive. It retries temporary failures until the OperationTimeout. Later the consumer
// reconnects by itself.
func (c *Client) Subscribe(ctx context.Context, sub Subscription) (*Consumer, error) {
	if _, known := types[sub.Type]; sub.Permits < 1 || sub.UnackedMax < 0 || sub.Queue == nil || !known || sub.Start != nil && sub.Type != Exclusive {
		return nil, fmt.Errorf("entries: subscribe to %s: %d permits, %d unacked events and type %d, want at least 1, at least 0, type %d, %d or, as for a reader, %d and a queue",
			sub.Topic, sub.Permits, sub.UnackedMax, sub.Type, Shared, Failover, Exclusive)
	}
	consumer := &Consumer{
		client: c, sub: sub, wake: make(chan struct{}, 1), gone: make(chan struct{}), seeds: c.seedsOf(sub.Topic),
		chunks: newChunks(c.cfg, sub.Type, c.metrics, c.now),
	}
	if sub.Start != nil {
		consumer.read = &reading{start: *sub.Start}
	}
	consumer.delay = time.AfterFunc(c.cfg.AckDelayMax, consumer.flushLate)
	consumer.delay.Stop()
	var first *session
	err := c.retry(ctx, func(ctx context.Context) (err error) {
		first, err = consumer.subscribe(ctx, address{})
		return err
	})
	if err != nil {
		return nil, err
	}
	ctx, consumer.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.consumers[consumer] = struct{}{}
		c.work.Go(func() { consumer.run(ctx, first) })
	}
	c.mu.Unlock()
	if closed {
		consumer.cancel()
		consumer.leave(first)
		return nil, ErrClosed
	}
	return consumer, nil
}

// subscribe makes a subscription at the given broker, or looks the broker up. Waiting acks are sent before the first permits, so that the
// broker does not redeliver these entries.
func (c *Consumer) subscribe(ctx context.Context, at address) (*session, error) {
	if at == (address{}) {
		c.mu.Lock()
		from := c.seeds
		c.mu.Unlock()
		var err error
		if at, err = c.client.lookup(ctx, from, c.sub.Topic); err != nil {
			return nil, err
		}
	}
	share := c.client.share(at)
	s, err := c.join(ctx, share)
	if err != nil {
		c.client.unshare(share)
	}
	return s, err
}

// join makes a subscription on a connection.
func (c *Consumer) join(ctx context.Context, at slot) (*session, error) {
	k, err := c.client.connect(ctx, at)
	if err != nil {
		return nil, err
	}
	s := &session{
		consumer: c, conn: k, cluster: c.cluster(), share: at, id: c.client.ids.Add(1), ended: make(chan struct{}), receipts: make(map[uint64]awaited),
		alone: newAlone(c.client.cfg.ChunkTimeout),
	}
	if c.read != nil {
		s.resumes = c.read.resumes()
	}
	if err := k.attach(s); err != nil {
		return nil, err
	}
	id := c.client.ids.Add(1)
	answer, err := k.request(ctx, id, c.command(s.id, id))
	if err == nil && answer.GetType() != pulsarpb.BaseCommand_SUCCESS {
		err = k.refusal(fmt.Sprintf("subscribe %q to %s", c.sub.Name, c.sub.Topic), answer)
	} else if err != nil {
		_ = k.post(closeConsumer(s.id, c.client.ids.Add(1))) // the broker may still complete the subscription
	}
	if err != nil {
		k.detach(s)
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = s
	c.sub.FromEarliest = true // from now on entries could be skipped
	s.permits = newPermits(c.sub.Permits, c.sub.UnackedMax)
	if c.sub.Type != Shared {
		s.permits.costs = nil
	}
	c.chunks.begin(s)
	c.flush()
	s.flow(s.permits.first())
	return s, nil
}

// cluster names the cluster that the topic is in.
func (c *Consumer) cluster() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seeds.cluster
}

// MarkMax is the greatest mark of a cluster.
const MarkMax = 1<<14 - 1

// Mark is 0 while the topic is in the cluster of the client's URL. Otherwise it is a number from 1 to MarkMax that follows from the addresses of the cluster that
// the topic has moved to: the same at all clients. It does not block.
func (c *Consumer) Mark() int32 { return c.client.markOf(c.cluster()) }

// Mark is the [Consumer.Mark] of the cluster that the entry is in.
func (d *Delivered) Mark() int32 { return d.Consumer.client.markOf(d.Cluster) }

func (c *Client) markOf(cluster uint64) int32 {
	if cluster == c.seeds.cluster {
		return 0
	}
	return int32(1 + cluster%MarkMax)
}

// SetUnackedMax changes the UnackedMax of the subscription. It does not block.
func (c *Consumer) SetUnackedMax(events int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sub.UnackedMax = events
	if c.session != nil {
		c.session.permits.bound(events)
	}
	c.later()
}

// SetPermits changes the Permits of the subscription, at least 1. It does not block. If the number shrinks, the
// surplus permits are not returned to the broker when their entries are taken.
func (c *Consumer) SetPermits(events int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sub.Permits = events
	if c.session != nil {
		c.session.permits.resize(events)
	}
	c.later()
}

func (c *Consumer) command(consumer, request uint64) *pulsarpb.BaseCommand {
	position := pulsarpb.CommandSubscribe_LATEST
	if c.sub.FromEarliest {
		position = pulsarpb.CommandSubscribe_EARLIEST
	}
	subscribe := &pulsarpb.CommandSubscribe{
		Topic: &c.sub.Topic, Subscription: &c.sub.Name, SubType: types[c.sub.Type].Enum(),
		ConsumerId: &consumer, RequestId: &request, PriorityLevel: &c.sub.Priority, InitialPosition: &position,
		Durable: new(true),
	}
	if c.read != nil {
		c.read.ask(subscribe, time.Now()) //nolint:forbidigo // producers claim times of the wall clock
	}
	if c.sub.Consumer != "" {
		subscribe.ConsumerName = &c.sub.Consumer
	}
	for _, name := range slices.Sorted(maps.Keys(c.sub.Properties)) {
		property := &pulsarpb.KeyValue{Key: new(name), Value: new(c.sub.Properties[name])}
		subscribe.SubscriptionProperties = append(subscribe.SubscriptionProperties, property)
	}
	return &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_SUBSCRIBE.Enum(), Subscribe: subscribe}
}

func closeConsumer(consumer, request uint64) *pulsarpb.BaseCommand {
	return &pulsarpb.BaseCommand{
		Type:          pulsarpb.BaseCommand_CLOSE_CONSUMER.Enum(),
		CloseConsumer: &pulsarpb.CommandCloseConsumer{ConsumerId: &consumer, RequestId: &request},
	}
}

// Topic returns the name of the consumer's topic partition.
func (c *Consumer) Topic() string { return c.sub.Topic }

var errNotSubscribed = errors.New("entries: the consumer is reconnecting")

// LastID returns the id of the last entry of the topic partition. If there is none, it returns the position of the subscription, where
// all entries of the topic partition have been: its Entry may be -1, and so is its Ledger if the broker does not tell it.
func (c *Consumer) LastID(ctx context.Context) (wire.ID, error) {
	r, err := c.lastIDs(ctx)
	last := idOf(r.GetLastMessageId())
	if stands := r.GetConsumerMarkDeletePosition(); last.Entry < 0 && stands != nil {
		last = idOf(stands)
	}
	return last, err
}

// End returns the id of the last entry of the topic partition as the broker tells it: its Entry is -1 if there is none.
func (c *Consumer) End(ctx context.Context) (wire.ID, error) {
	r, err := c.lastIDs(ctx)
	return idOf(r.GetLastMessageId()), err
}

// lastIDs is that of a session. It retries until the OperationTimeout.
func (c *Consumer) lastIDs(ctx context.Context) (r *pulsarpb.CommandGetLastMessageIdResponse, err error) {
	err = c.ask(ctx, func(ctx context.Context, s *session) (err error) {
		r, err = s.lastIDs(ctx)
		return err
	})
	return r, err
}

// ask asks the broker of the session. It retries until the OperationTimeout.
func (c *Consumer) ask(ctx context.Context, question func(context.Context, *session) error) error {
	return c.client.retry(ctx, func(ctx context.Context) error {
		c.mu.Lock()
		s, over := c.session, c.over
		c.mu.Unlock()
		switch {
		case over != nil:
			return over
		case s == nil:
			return errNotSubscribed
		}
		return question(ctx, s)
	})
}

// lastIDs asks for the last entry of the topic partition, and for the position of the subscription.
func (s *session) lastIDs(ctx context.Context) (*pulsarpb.CommandGetLastMessageIdResponse, error) {
	id := s.consumer.client.ids.Add(1)
	answer, err := s.conn.request(ctx, id, &pulsarpb.BaseCommand{
		Type:             pulsarpb.BaseCommand_GET_LAST_MESSAGE_ID.Enum(),
		GetLastMessageId: &pulsarpb.CommandGetLastMessageId{ConsumerId: &s.id, RequestId: &id},
	})
	if err != nil {
		return nil, err
	}
	r := answer.GetGetLastMessageIdResponse()
	if r == nil {
		return nil, s.conn.refusal("last id of "+s.consumer.sub.Topic, answer)
	}
	return r, nil
}

func compare(a, b wire.ID) int {
	return cmp.Or(cmp.Compare(a.Ledger, b.Ledger), cmp.Compare(a.Entry, b.Entry))
}

func idOf(m *pulsarpb.MessageIdData) wire.ID {
	return wire.ID{Ledger: int64(m.GetLedgerId()), Entry: int64(m.GetEntryId())}
}

// Close sends the last acks and closes the consumer; unacked entries go back to the broker. It waits for the broker, at most for
// CloseTimeout. Received entries may still be processed, but not acked.
func (c *Consumer) Close() {
	c.stop()
	<-c.gone
}

// stop begins to close.
func (c *Consumer) stop() { c.cancel() }
