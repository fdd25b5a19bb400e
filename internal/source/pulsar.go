package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsarlog"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// NewPulsar returns a source that reads from a Pulsar cluster. Options describe the connection
// and the credentials; the source has its own client, which Run opens and closes.
//
// Messages that the client (v0.21.0) settles by itself never reach the source, but are counted
// (ringfence_source_discarded_total): it acks an entry whose checksum, batch or compression is
// broken, and also a message that was sent outside a batch, has neither payload nor properties,
// and is not a null value, even with a key. It also acks the chunks of a message whose other
// chunks do not arrive within ChunkedTimeout.
//
// A null value (a tombstone) has a nil payload, and its copies are null values again.
//
// A message that was sent outside a batch, compressed and with an empty payload, arrives with
// the compressed form of an empty payload, a few bytes.
//
// An encrypted entry arrives as one event, whose payload is the unchanged entry; it goes to the
// dead letter topic, see PropertyEncryption.
//
// admin makes the calls to the admin API, if cfg names one; nil is http.DefaultClient.
func NewPulsar(cfg Config, options pulsar.ClientOptions, admin *http.Client, metrics *Metrics, logger *slog.Logger) *Source {
	return newSource(cfg, metrics, logger, func(ctx context.Context, cfg Config, logger *slog.Logger) (connection, error) {
		if options.Logger == nil {
			options.Logger = pulsarlog.New(logger)
		}
		p := newPulsarConnection(cfg, admin, metrics, logger)
		options.Logger = hookedLogger{options.Logger, logHooks{discardWords: metrics.discarded.Inc}}
		return p, p.open(ctx, options)
	})
}

// pulsarConnection has one consumer for each topic partition, and discovers new ones itself.
// The client's consumer of several topics cannot ack a chunked message (v0.21.0 loses track of
// the topic). Its consumer of a partitioned topic silently closes its consumers of all
// partitions when it cannot subscribe to an added one.
type pulsarConnection struct {
	cfg      Config
	client   pulsar.Client // nil until open has made it
	admin    *http.Client
	metrics  *Metrics
	log      *slog.Logger
	messages chan pulsar.ConsumerMessage
	lost     chan error // capacity 1: why the client has closed a consumer by itself

	// The reader's knowledge of the topic partitions, and the one of its last message.
	byTopic   map[string]*origin
	last      *origin
	starving  *subscription // a subscription that runs out of permits, or nil
	cutLogged clock.Instant // see noteChunked

	holesAsked   clock.Instant // of discovery: see noteHoles
	holesUnknown bool          // the newest question was not answered

	stopDiscovery context.CancelFunc // nil until there is something to discover
	discovery     sync.WaitGroup

	mu            sync.Mutex               // guards these: they belong to the reader, the acker, discovery and close
	subscriptions map[string]*subscription // by the name of the topic partition
	origins       []*origin                // with their consumers; only the reader appends
	calls         int                      // client calls that run on goroutines of their own, see aside
	closed        bool

	outlets map[string]*outlet // for copies, by topic
}

// subscription is the consumer of one topic partition.
type subscription struct {
	topic    string // full name with the partition
	position pulsar.SubscriptionInitialPosition
	consumer pulsar.Consumer // nil until the client has made it, or the first message has brought it
	reading  bool            // the consumer was created
	queue    int             // messages that the client fetches ahead
	since    clock.Instant   // when it was created
}

// origin is a topic partition.
type origin struct {
	number    int32
	topic     string // as the client names it, with the partition
	base      string // without it
	partition int32  // -1 when the topic is not partitioned
	retry     bool
	lost      int    // permits that the client has not given back, see notePermits
	schema    string // version of the newest event that had one
	of        *subscription
}

func newPulsarConnection(cfg Config, admin *http.Client, metrics *Metrics, logger *slog.Logger) *pulsarConnection {
	pauses := backoff.Backoff{Min: cfg.CopyBackoffMin, Max: cfg.CopyBackoffMax}
	return &pulsarConnection{
		cfg: cfg, admin: admin, metrics: metrics, log: logger,
		messages:      make(chan pulsar.ConsumerMessage, cfg.BatchMax),
		lost:          make(chan error, 1),
		byTopic:       make(map[string]*origin),
		subscriptions: make(map[string]*subscription),
		outlets: map[string]*outlet{
			cfg.RetryTopic:      {topic: cfg.RetryTopic, pauses: pauses},
			cfg.DeadLetterTopic: {topic: cfg.DeadLetterTopic, pauses: pauses},
		},
	}
}

// open connects and subscribes. When it returns an error, p is closed.
//
// The client has no limit of bytes: it would be one limit for all topics together, and at that
// limit the client (v0.21.0) fails to release the queue space of a chunked message.
// copyBytesMax bounds its memory instead.
func (p *pulsarConnection) open(ctx context.Context, options pulsar.ClientOptions) error {
	options.MemoryLimitBytes = -1
	client, err := await(ctx, p, func() (pulsar.Client, error) { return pulsar.NewClient(options) }, pulsar.Client.Close)
	if err != nil {
		p.close()
		return fmt.Errorf("source: %w", err)
	}
	p.client = client
	return p.subscribeAll(ctx)
}

// topics returns the topics that are read.
func (p *pulsarConnection) topics() []string {
	return append([]string{p.cfg.RetryTopic}, p.cfg.Topics...)
}

// subscribersMax bounds the concurrent subscriptions to topic partitions.
const subscribersMax = 16

func (p *pulsarConnection) subscribeAll(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(subscribersMax)
	var err error
	for _, topic := range p.topics() {
		var names []string
		if names, err = p.partitions(groupCtx, topic); err != nil {
			break
		}
		position := pulsar.SubscriptionPositionLatest
		if p.cfg.FromEarliest || topic == p.cfg.RetryTopic { // copies are never skipped
			position = pulsar.SubscriptionPositionEarliest
		}
		for _, name := range names {
			sub := &subscription{topic: name, position: position, queue: p.queueFor(len(names))}
			group.Go(func() error { return p.subscribe(groupCtx, sub) })
		}
	}
	if err := cmp.Or(group.Wait(), err); err != nil {
		p.close()
		return err
	}
	p.metrics.topicPartitions.Set(float64(len(p.subscriptions)))
	ctx, p.stopDiscovery = context.WithCancel(context.WithoutCancel(ctx))
	p.discovery.Go(func() { p.discover(ctx) })
	return nil
}

// partitions returns the names of a topic's partitions; that of the topic if it has none.
func (p *pulsarConnection) partitions(ctx context.Context, topic string) ([]string, error) {
	names, err := await(ctx, p, func() ([]string, error) { return p.client.TopicPartitions(topic) }, func([]string) {})
	if err != nil {
		return nil, fmt.Errorf("source: look up %s: %w%s", topic, err, hint(err))
	}
	return names, nil
}

// queueFor returns how many messages are fetched ahead of each of so many topic partitions.
func (p *pulsarConnection) queueFor(partitions int) int {
	return max(1, p.cfg.ReceiverQueueMax/max(1, partitions))
}

// discover subscribes to topic partitions that are added while the source runs. A failed
// subscription is tried again at the next interval; the other ones are read meanwhile.
func (p *pulsarConnection) discover(ctx context.Context) {
	ticker := time.NewTicker(p.cfg.DiscoverEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		p.noteHoles(ctx)
		for _, topic := range p.topics() {
			if err := p.discoverIn(ctx, topic); err != nil && ctx.Err() == nil {
				p.metrics.discoveryFailures.Inc()
				p.log.Warn("cannot look for new topic partitions, or read one; trying again", "topic", topic, "again_in", p.cfg.DiscoverEvery, "error", err)
			}
		}
	}
}

func (p *pulsarConnection) discoverIn(ctx context.Context, topic string) error {
	names, err := p.partitions(ctx, topic)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		p.mu.Lock()
		sub := p.subscriptions[name]
		known := sub != nil && sub.reading
		p.mu.Unlock()
		if known {
			continue
		}
		if sub == nil { // all that it holds came after the subscription to its topic
			sub = &subscription{topic: name, position: pulsar.SubscriptionPositionEarliest, queue: p.queueFor(len(names))}
		}
		if err := p.subscribe(ctx, sub); err != nil {
			errs = append(errs, err)
			continue
		}
		p.metrics.topicPartitions.Inc()
		p.log.Info("reading a topic partition that was added", "topic", name, "topic_partitions", len(names))
	}
	return errors.Join(errs...)
}

var errClosed = errors.New("source: closed")

// await is [pulsarsend.Await] with aside.
func await[T any](ctx context.Context, p *pulsarConnection, call func() (T, error), undo func(T)) (T, error) {
	return pulsarsend.Await(ctx, p.aside, call, undo)
}

// aside runs a call of the client on a goroutine of its own, or returns errClosed if p is
// closed. The last of these calls closes the client if p was closed meanwhile: a client
// that is closed during a call opens a new connection for it and never closes that.
func (p *pulsarConnection) aside(call func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	p.calls++
	go func() {
		call()
		p.mu.Lock()
		p.calls--
		last := p.closed && p.calls == 0
		p.mu.Unlock()
		if last {
			p.closeClient()
		}
	}()
	return nil
}

// hint explains an answer of the broker that the client has reduced to one word.
func hint(err error) string {
	if strings.Contains(err.Error(), "TopicNotFound") { // of a namespace that does not exist, too
		return "; is there such a tenant and namespace, and may topics be created in it?"
	}
	return ""
}

// never disables the client's search for new topic partitions. We do it ourselves.
const never = math.MaxInt64

// subscribe attaches to a topic partition. The receiver queue has a fixed size:
// the client's EnableAutoScaledReceiverQueueSize (v0.21.0) reserves memory for a
// batch quadratically in its length and releases it linearly, until its queues
// stay at one message and its producers block.
func (p *pulsarConnection) subscribe(ctx context.Context, sub *subscription) error {
	options := pulsar.ConsumerOptions{
		Topic:                          sub.topic,
		SubscriptionName:               p.cfg.Subscription,
		Type:                           pulsar.Shared,
		Name:                           p.cfg.ConsumerName,
		SubscriptionProperties:         p.cfg.Properties,
		SubscriptionInitialPosition:    sub.position,
		MessageChannel:                 p.messages,
		ReceiverQueueSize:              sub.queue,
		MaxPendingChunkedMessage:       p.cfg.ChunkedMax,
		ExpireTimeOfIncompleteChunk:    p.cfg.ChunkedTimeout,
		EnableBatchIndexAcknowledgment: p.cfg.Counting == CountEvents,
		AutoDiscoveryPeriod:            never,
		Interceptors:                   pulsar.ConsumerInterceptors{closeListener{p.gaveUp}},
		// Otherwise it would nack encrypted messages for ever.
		Decryption: &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume},
	}
	p.mu.Lock()
	p.subscriptions[sub.topic] = sub // its messages may come before the client has returned
	p.mu.Unlock()
	consumer, err := await(ctx, p, func() (pulsar.Consumer, error) { return p.client.Subscribe(options) }, pulsar.Consumer.Close)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		return subscribeError(sub.topic, p.cfg.Subscription, err)
	}
	sub.consumer, sub.reading, sub.since = consumer, true, clock.Now()
	return nil
}

// gaveUp notes that the client has closed a consumer by itself.
func (p *pulsarConnection) gaveUp(cause error) {
	select {
	case p.lost <- cause:
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
func (p *pulsarConnection) notePermits(l *origin, batchSize int) {
	l.lost += max(0, batchSize-1)
	if l.lost >= max(1, l.of.queue/2) {
		p.starving = l.of
	}
}

// reopenAfter is the least age of a consumer, so that its acks get through.
const reopenAfter = time.Second

// reopen resubscribes to a topic partition, because the broker would soon send nothing more: a
// new consumer has all permits. Unacked events are redelivered and join open ones.
func (p *pulsarConnection) reopen(ctx context.Context) error {
	sub := p.starving
	p.starving = nil
	p.mu.Lock()
	old := sub.consumer
	p.mu.Unlock()
	old.Close()
	p.byTopic[sub.topic].lost = 0
	return p.subscribe(ctx, sub)
}

// subscribeError identifies an error by the broker's text. The broker's code for it,
// ConsumerBusy, is not available as a value from the client.
func subscribeError(topic, subscription string, err error) error {
	if strings.Contains(err.Error(), "different type") || strings.Contains(err.Error(), "ConsumerBusy") {
		return fmt.Errorf("source: subscription %q on %s: %w; give the router a subscription of its own, or stop those consumers first (%w)",
			subscription, topic, ErrSubscriptionType, err)
	}
	return fmt.Errorf("source: subscribe %q on %s: %w", subscription, topic, err)
}

// errLost says that a topic partition is no longer read. Nothing else shows it: the broker
// has no consumer to report, and to the source the topic looks idle.
var errLost = errors.New("the client has given up on a consumer")

func (p *pulsarConnection) receive(ctx context.Context, batch []Receipt) ([]Receipt, error) {
	var due <-chan time.Time
	if p.starving != nil {
		p.mu.Lock()
		age := clock.Now().Sub(p.starving.since)
		p.mu.Unlock()
		if age >= reopenAfter {
			return batch, p.reopen(ctx)
		}
		due = time.After(reopenAfter - age)
	}
	select {
	case m := <-p.messages:
		batch = p.receipt(m, batch)
	case <-due:
		return batch, nil
	case cause := <-p.lost:
		return batch, fmt.Errorf("%w: %w", errLost, cause)
	case <-ctx.Done():
		return batch, ctx.Err()
	}
	for len(batch) < p.cfg.BatchMax {
		select {
		case m := <-p.messages:
			batch = p.receipt(m, batch)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// receipt appends the receipt of a message to batch. It writes each field in place, since
// composite values would be written twice.
func (p *pulsarConnection) receipt(cm pulsar.ConsumerMessage, batch []Receipt) []Receipt {
	m := cm.Message
	from := p.originOf(cm)
	batch = append(batch, Receipt{})
	r, a := &batch[len(batch)-1], new(messageEvent)
	r.Message, r.Origin, r.Copy = &a.message, from.number, from.retry

	id, ev := m.ID(), &a.event
	r.Ref = id
	r.Entry.Ledger, r.Entry.Entry = id.LedgerID(), id.EntryID()
	ev.ID.Ledger, ev.ID.Entry, ev.ID.TopicPartition, ev.ID.Batch = r.Entry.Ledger, r.Entry.Entry, from.partition, -1
	r.Total = max(1, id.BatchSize())
	if r.Total > 1 {
		r.Index = id.BatchIdx()
		ev.ID.Batch = r.Index
	}
	ev.Topic = from.base
	ev.Payload = m.Payload()
	ev.Properties = properties(m.Properties())
	ev.PublishTime, ev.EventTime = m.PublishTime().UnixMilli(), m.EventTime().UnixMilli()
	ev.Redelivery = m.RedeliveryCount()
	if version := m.SchemaVersion(); len(version) > 0 {
		if from.schema != string(version) {
			from.schema = string(version)
		}
		ev.SchemaVersion = from.schema
	}
	if c := m.GetEncryptionContext(); c != nil {
		r.Unreadable = reasonEncrypted
		ev.Properties = append(ev.Properties, encryptionProperty(c))
		p.notePermits(from, c.BatchSize)
	} else if id.BatchIdx() < 0 { // it came in chunks: all other messages have an index
		p.noteChunked(m)
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
func (p *pulsarConnection) noteChunked(m pulsar.Message) {
	if len(m.Payload()) > chunkedBytesMin {
		return
	}
	p.metrics.suspectedCut.Inc()
	now := clock.Now()
	if p.cutLogged != 0 && now.Sub(p.cutLogged) < cutLogEvery {
		return
	}
	p.cutLogged = now
	p.log.Error("an event that was sent in chunks is probably cut to its last one: its producer should compress, or not send in chunks",
		"topic", m.Topic(), "message_id", m.ID().String(), "producer", m.ProducerName(), "bytes", len(m.Payload()))
}

// messageEvent is a message with its event in one allocation.
type messageEvent struct {
	message Message
	event   event.Event
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
func (p *pulsarConnection) originOf(cm pulsar.ConsumerMessage) *origin {
	topic := cm.Topic()
	if p.last != nil && p.last.topic == topic {
		return p.last
	}
	l, ok := p.byTopic[topic]
	if !ok {
		base, partition := splitPartition(topic)
		p.mu.Lock()
		sub := p.subscriptions[topic]
		if sub.consumer == nil {
			sub.consumer = cm.Consumer
		}
		l = &origin{
			number: int32(len(p.byTopic)), topic: topic, base: base, partition: partition,
			retry: base == p.cfg.RetryTopic || topic == p.cfg.RetryTopic, of: sub,
		}
		p.origins = append(p.origins, l)
		p.mu.Unlock()
		p.byTopic[topic] = l
	}
	p.last = l
	return l
}

func (p *pulsarConnection) consumerOf(a Ack) pulsar.Consumer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.origins[a.Origin].of.consumer
}

// ack acknowledges a whole batch at once by its entry: the client's own count of a batch
// restarts with every delivery and ignores events settled before.
func (p *pulsarConnection) ack(a Ack) error {
	id, ok := a.Ref.(pulsar.MessageID)
	if !ok {
		return fmt.Errorf("source: %T is not a message id", a.Ref)
	}
	if p.cfg.Counting == CountEntries && a.Total > 1 {
		id = pulsar.NewMessageID(a.Entry.Ledger, a.Entry.Entry, -1, id.PartitionIdx())
	}
	return p.consumerOf(a).AckID(id)
}

func (p *pulsarConnection) limits(ctx context.Context) (limits, bool, error) {
	if p.cfg.AdminURL == "" {
		return limits{}, false, nil
	}
	l, err := probe(ctx, pulsaradmin.Client{URL: p.cfg.AdminURL, HTTP: p.admin}, p.topics())
	return l, true, err
}

// ends implements connection. Its calls do not count as those of aside: a consumer that is
// closed meanwhile never answers (v0.19.0), and they open no connection.
func (p *pulsarConnection) ends(ctx context.Context) ([]End, bool, error) {
	p.mu.Lock()
	closed := p.closed
	consumers := make([]pulsar.Consumer, 0, len(p.subscriptions))
	for _, sub := range p.subscriptions {
		consumers = append(consumers, sub.consumer)
	}
	p.mu.Unlock()
	if closed {
		return nil, true, errClosed
	}
	start := func(call func()) error {
		go call()
		return nil
	}
	var ends []End
	for _, c := range consumers {
		ids, err := pulsarsend.Await(ctx, start, c.GetLastMessageIDs, func([]pulsar.TopicMessageID) {})
		if err != nil {
			return nil, true, fmt.Errorf("source: last message ids: %w", err)
		}
		for _, id := range ids {
			base, partition := splitPartition(id.Topic())
			ends = append(ends, End{Topic: base, Partition: partition, Last: EntryID{Ledger: id.LedgerID(), Entry: id.EntryID()}})
		}
	}
	return ends, true, nil
}

// close does not wait for calls made by aside.
func (p *pulsarConnection) close() {
	if p.stopDiscovery != nil {
		p.stopDiscovery()
		p.discovery.Wait()
	}
	p.mu.Lock()
	p.closed = true
	last := p.calls == 0
	consumers := make([]pulsar.Consumer, 0, len(p.subscriptions))
	for _, sub := range p.subscriptions {
		if sub.consumer != nil {
			consumers = append(consumers, sub.consumer)
		}
	}
	p.mu.Unlock()
	for _, consumer := range consumers {
		consumer.Close() // sends the grouped acks first
	}
	if last {
		p.closeClient()
	}
}

// closeClient closes the producers, too.
func (p *pulsarConnection) closeClient() {
	if p.client != nil {
		p.client.Close()
	}
}
