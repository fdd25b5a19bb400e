package source

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// clientReader reads with pulsar-client-go. It has one consumer for each topic partition:
// the client's consumer of several topics cannot ack a chunked message (v0.21.0 loses track of
// the topic). Its consumer of a partitioned topic silently closes its consumers of all
// partitions when it cannot subscribe to an added one.
type clientReader struct {
	cfg      Config
	sdk      *sdk
	metrics  *Metrics
	log      *slog.Logger
	messages chan pulsar.ConsumerMessage
	lost     chan error // capacity 1: why the client has closed a consumer by itself

	// The source's reader's knowledge of the topic partitions, and the one of its last message.
	byTopic   map[string]*clientOrigin
	last      *clientOrigin
	starving  *consumption  // a topic partition that runs out of permits, or nil
	cutLogged clock.Instant // see noteChunked

	mu        sync.Mutex              // guards these: they belong to the source's reader, its acker, discovery and close
	consumers map[string]*consumption // by the name of the topic partition
	origins   []*clientOrigin         // with their consumers; only the source's reader appends
}

// consumption is a topic partition with its consumer.
type consumption struct {
	subscription
	consumer pulsar.Consumer // nil until the client has made it, or the first message has brought it
	since    clock.Instant   // when it was created
}

// clientOrigin is an origin with its consumer.
type clientOrigin struct {
	origin
	topic string // as the client names it, with the partition
	lost  int    // permits that the client has not given back, see notePermits
	of    *consumption
}

func newClientReader(cfg Config, sdk *sdk, metrics *Metrics, log *slog.Logger) *clientReader {
	return &clientReader{
		cfg: cfg, sdk: sdk, metrics: metrics, log: log,
		messages:  make(chan pulsar.ConsumerMessage, cfg.BatchMax),
		lost:      make(chan error, 1),
		byTopic:   make(map[string]*clientOrigin),
		consumers: make(map[string]*consumption),
	}
}

// partitions implements reader.
func (r *clientReader) partitions(ctx context.Context, topic string) ([]string, error) {
	return await(ctx, r.sdk, func() ([]string, error) { return r.sdk.client.TopicPartitions(topic) }, func([]string) {})
}

// never disables the client's search for new topic partitions. We do it ourselves.
const never = math.MaxInt64

// subscribe implements reader.
func (r *clientReader) subscribe(ctx context.Context, s subscription) error {
	r.mu.Lock()
	c := r.consumers[s.topic]
	if c == nil { // otherwise an earlier attempt has failed
		c = &consumption{subscription: s}
		r.consumers[s.topic] = c // its messages may come before the client has returned
	}
	r.mu.Unlock()
	return r.consume(ctx, c)
}

// consume attaches to a topic partition. The receiver queue has a fixed size:
// the client's EnableAutoScaledReceiverQueueSize (v0.21.0) reserves memory for a
// batch quadratically in its length and releases it linearly, until its queues
// stay at one message and its producers block.
func (r *clientReader) consume(ctx context.Context, c *consumption) error {
	position := pulsar.SubscriptionPositionLatest
	if c.earliest {
		position = pulsar.SubscriptionPositionEarliest
	}
	options := pulsar.ConsumerOptions{
		Topic:                          c.topic,
		SubscriptionName:               r.cfg.Subscription,
		Type:                           pulsar.Shared,
		Name:                           r.cfg.ConsumerName,
		SubscriptionProperties:         r.cfg.Properties,
		SubscriptionInitialPosition:    position,
		MessageChannel:                 r.messages,
		ReceiverQueueSize:              c.queue,
		MaxPendingChunkedMessage:       r.cfg.ChunkedMax,
		ExpireTimeOfIncompleteChunk:    r.cfg.ChunkedTimeout,
		EnableBatchIndexAcknowledgment: r.cfg.Counting == CountEvents,
		AutoDiscoveryPeriod:            never,
		Interceptors:                   pulsar.ConsumerInterceptors{closeListener{r.gaveUp}},
		// Otherwise it would nack encrypted messages for ever.
		Decryption: &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume},
	}
	consumer, err := await(ctx, r.sdk, func() (pulsar.Consumer, error) { return r.sdk.client.Subscribe(options) }, pulsar.Consumer.Close)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.consumer, c.since = consumer, clock.Now()
	return nil
}

// gaveUp notes that the client has closed a consumer by itself.
func (r *clientReader) gaveUp(cause error) {
	select {
	case r.lost <- cause:
	default: // the first one is enough
	}
}

// closeListener is called when the client closes a consumer that it cannot reconnect, for
// example because its topic was deleted or access to it was revoked.
type closeListener struct{ gaveUp func(cause error) }

var _ pulsar.ConsumerCloseInterceptor = closeListener{}

// OnConsumerClose implements pulsar.ConsumerCloseInterceptor. There is no cause if this source
// closed it.
func (l closeListener) OnConsumerClose(_ pulsar.Consumer, cause error) {
	if cause != nil {
		l.gaveUp(cause)
	}
}

// BeforeConsume implements pulsar.ConsumerInterceptor.
func (closeListener) BeforeConsume(pulsar.ConsumerMessage) {}

// OnAcknowledge implements pulsar.ConsumerInterceptor.
func (closeListener) OnAcknowledge(pulsar.Consumer, pulsar.MessageID) {}

// OnNegativeAcksSend implements pulsar.ConsumerInterceptor.
func (closeListener) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

// notePermits counts the permits that the client (v0.21.0) forgets: the broker takes one
// for each event of an encrypted batch, and the client gives one back for all.
func (r *clientReader) notePermits(l *clientOrigin, batchSize int) {
	l.lost += max(0, batchSize-1)
	if l.lost >= max(1, l.of.queue/2) {
		r.starving = l.of
	}
}

// reopenAfter is the least age of a consumer, so that its acks get through.
const reopenAfter = time.Second

// reopen resubscribes to a topic partition, because the broker would soon send nothing more: a
// new consumer has all permits. Unacked events are redelivered and join open ones.
func (r *clientReader) reopen(ctx context.Context) error {
	c := r.starving
	r.starving = nil
	r.mu.Lock()
	old := c.consumer
	r.mu.Unlock()
	old.Close()
	r.byTopic[c.topic].lost = 0
	if err := r.consume(ctx, c); err != nil {
		return subscribeError(c.topic, r.cfg.Subscription, err)
	}
	return nil
}

// receive implements reader.
func (r *clientReader) receive(ctx context.Context, batch []Receipt) ([]Receipt, error) {
	var due <-chan time.Time
	if r.starving != nil {
		r.mu.Lock()
		age := clock.Now().Sub(r.starving.since)
		r.mu.Unlock()
		if age >= reopenAfter {
			return batch, r.reopen(ctx)
		}
		due = time.After(reopenAfter - age)
	}
	select {
	case m := <-r.messages:
		batch = r.receipt(m, batch)
	case <-due:
		return batch, nil
	case cause := <-r.lost:
		return batch, fmt.Errorf("%w: %w", errLost, cause)
	case <-ctx.Done():
		return batch, ctx.Err()
	}
	for len(batch) < r.cfg.BatchMax {
		select {
		case m := <-r.messages:
			batch = r.receipt(m, batch)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// receipt appends the receipt of a message to batch. It writes each field in place, since
// composite values would be written twice.
func (r *clientReader) receipt(cm pulsar.ConsumerMessage, batch []Receipt) []Receipt {
	m := cm.Message
	from := r.originOf(cm)
	batch = append(batch, Receipt{})
	to, a := &batch[len(batch)-1], new(messageEvent)
	to.Message, to.Origin, to.Copy = &a.message, from.number, from.retry

	id, ev := m.ID(), &a.event
	to.Ref = id
	to.Entry.Ledger, to.Entry.Entry = id.LedgerID(), id.EntryID()
	ev.ID.Ledger, ev.ID.Entry, ev.ID.TopicPartition, ev.ID.Batch = to.Entry.Ledger, to.Entry.Entry, from.partition, -1
	to.Total = max(1, id.BatchSize())
	if to.Total > 1 {
		to.Index = id.BatchIdx()
		ev.ID.Batch = to.Index
	}
	ev.Topic = from.base
	ev.Payload = m.Payload()
	ev.Properties = properties(m.Properties())
	ev.PublishTime, ev.EventTime = m.PublishTime().UnixMilli(), m.EventTime().UnixMilli()
	ev.Redelivery = m.RedeliveryCount()
	ev.SchemaVersion = from.version(m.SchemaVersion())
	if c := m.GetEncryptionContext(); c != nil {
		to.Unreadable = reasonEncrypted
		ev.Properties = append(ev.Properties, clientEncryption(c))
		r.notePermits(from, c.BatchSize)
	} else if id.BatchIdx() < 0 { // it came in chunks: all other messages have an index
		r.noteChunked(m)
	}
	a.message.Event, a.message.Key, a.message.OrderingKey = ev, m.Key(), m.OrderingKey()
	return batch
}

// chunkedBytesMin is Pulsar's default of maxMessageSize: longer messages are sent in chunks.
const chunkedBytesMin = 5 << 20

// cutLogEvery bounds the log lines about messages that look cut.
const cutLogEvery = 10 * time.Second

// noteChunked detects a chunked message that is probably truncated: of a message without an
// uncompressed size, as the C++ client and its derivatives send it without compression, the
// client (v0.21.0) silently delivers only the last chunk. A chunked message is larger than one
// message may be, and a chunk is not. A producer with unnecessarily small chunks causes false
// alarms.
func (r *clientReader) noteChunked(m pulsar.Message) {
	if len(m.Payload()) > chunkedBytesMin {
		return
	}
	r.metrics.suspectedCut.Inc()
	now := clock.Now()
	if r.cutLogged != 0 && now.Sub(r.cutLogged) < cutLogEvery {
		return
	}
	r.cutLogged = now
	r.log.Error("an event that was sent in chunks is probably cut to its last one: its producer should compress, or not send in chunks",
		"topic", m.Topic(), "message_id", m.ID().String(), "producer", m.ProducerName(), "bytes", len(m.Payload()))
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

// originOf finds the topic partition that a message came from.
func (r *clientReader) originOf(cm pulsar.ConsumerMessage) *clientOrigin {
	topic := cm.Topic()
	if r.last != nil && r.last.topic == topic {
		return r.last
	}
	l, ok := r.byTopic[topic]
	if !ok {
		r.mu.Lock()
		c := r.consumers[topic]
		if c.consumer == nil {
			c.consumer = cm.Consumer
		}
		l = &clientOrigin{origin: newOrigin(len(r.byTopic), topic, r.cfg), topic: topic, of: c}
		r.origins = append(r.origins, l)
		r.mu.Unlock()
		r.byTopic[topic] = l
	}
	r.last = l
	return l
}

func (r *clientReader) consumerOf(a Ack) pulsar.Consumer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.origins[a.Origin].of.consumer
}

// bound implements reader. The client has no such bound, and its receiver queue cannot be changed.
func (r *clientReader) bound(int) {}

// ack implements reader. It acknowledges a whole batch at once by its entry: the client's own count of a batch
// restarts with every delivery and ignores events settled before.
func (r *clientReader) ack(a Ack) error {
	id, ok := a.Ref.(pulsar.MessageID)
	if !ok {
		return fmt.Errorf("source: %T is not a message id", a.Ref)
	}
	if r.cfg.Counting == CountEntries && a.Total > 1 {
		id = pulsar.NewMessageID(a.Entry.Ledger, a.Entry.Entry, -1, id.PartitionIdx())
	}
	return r.consumerOf(a).AckID(id)
}

// ends implements reader. Its calls do not count as those of aside: a consumer that is
// closed meanwhile never answers (v0.19.0), and they open no connection.
func (r *clientReader) ends(ctx context.Context) ([]End, error) {
	if r.sdk.isClosed() {
		return nil, errClosed
	}
	start := func(call func()) error {
		go call()
		return nil
	}
	var ends []End
	for _, c := range r.all() {
		ids, err := pulsarsend.Await(ctx, start, c.GetLastMessageIDs, func([]pulsar.TopicMessageID) {})
		if err != nil {
			return nil, fmt.Errorf("source: last message ids: %w", err)
		}
		for _, id := range ids {
			base, partition := splitPartition(id.Topic())
			ends = append(ends, End{Topic: base, Partition: partition, Last: EntryID{Ledger: id.LedgerID(), Entry: id.EntryID()}})
		}
	}
	return ends, nil
}

// all returns the consumers there are.
func (r *clientReader) all() []pulsar.Consumer {
	r.mu.Lock()
	defer r.mu.Unlock()
	consumers := make([]pulsar.Consumer, 0, len(r.consumers))
	for _, c := range r.consumers {
		if c.consumer != nil {
			consumers = append(consumers, c.consumer)
		}
	}
	return consumers
}

// close implements reader.
func (r *clientReader) close() {
	for _, consumer := range r.all() {
		consumer.Close() // sends the grouped acks first
	}
}
