package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/internal/pulsaradmin"
	"github.com/ringfence/router/internal/pulsarsend"
)

// NewPulsar returns a source that reads from a Pulsar cluster. Options say where it
// is and how to get in; the source has a client of its own, which Run opens and closes.
//
// What the client (v0.19.0) settles by itself is never seen here, but counted
// (ringfence_source_discarded_total): it acks an entry whose checksum, batch or
// compression is broken, and so it does with a message that was sent without a batch
// and has neither payload nor properties, whatever its key. It also acks the chunks
// that it has of a message whose others do not come within ChunkedTimeout.
//
// A message that was sent without a batch, compressed and with an empty payload comes
// with what the compression makes of nothing, a byte or some.
//
// An entry that is encrypted comes as one event, whose payload is the whole entry as
// it is; it goes to the dead letter topic, see PropertyEncryption.
//
// admin makes the calls to the admin API, if cfg names one; nil is http.DefaultClient.
func NewPulsar(cfg Config, options pulsar.ClientOptions, admin *http.Client, metrics *Metrics, logger *slog.Logger) *Source {
	return newSource(cfg, metrics, logger, func(ctx context.Context, cfg Config, logger *slog.Logger) (link, error) {
		if options.Logger == nil {
			options.Logger = log.NewLoggerWithSlog(logger)
		}
		p := newPulsarLink(cfg, admin)
		options.Logger = watched{options.Logger, p.ears(metrics.discarded.Inc)}
		return p, p.open(ctx, options)
	})
}

// pulsarLink has one consumer for each topic instead of one for all: the client's
// consumer of several topics cannot ack a chunked message (v0.19.0 loses track of
// the topic).
type pulsarLink struct {
	cfg      Config
	client   pulsar.Client // nil until open has made it
	admin    *http.Client
	messages chan pulsar.ConsumerMessage
	lost     chan struct{} // capacity 1: the client has given up on a consumer

	// What the reader knows of the topic partitions, and the one that it saw last.
	byTopic  map[string]*lane
	last     *lane
	starving *subscription // nil, or one of which a lane runs out of permits

	mu            sync.Mutex // guards these against the acker and close
	subscriptions []*subscription
	lanes         []*lane // with their consumers; only the reader appends
	calls         int     // that are under way beside whoever made them, see aside
	closed        bool

	outlets map[string]*outlet // for copies, by topic
}

// subscription is a topic and who consumes it.
type subscription struct {
	topic    string
	consumer pulsar.Consumer
	queue    int // messages of each topic partition that the client fetches ahead
	since    clock.Instant
}

// lane is a topic partition.
type lane struct {
	number    int32
	topic     string // as the client names it, with the partition
	base      string // without it
	partition int32  // -1 when the topic is not partitioned
	retry     bool
	lost      int // permits that the client has not given back, see notePermits
	of        *subscription
}

func newPulsarLink(cfg Config, admin *http.Client) *pulsarLink {
	return &pulsarLink{
		cfg: cfg, admin: admin,
		messages: make(chan pulsar.ConsumerMessage, cfg.BatchMax),
		lost:     make(chan struct{}, 1),
		byTopic:  make(map[string]*lane),
		outlets: map[string]*outlet{
			cfg.RetryTopic:      {topic: cfg.RetryTopic},
			cfg.DeadLetterTopic: {topic: cfg.DeadLetterTopic},
		},
	}
}

// ears are for the log of p's client.
func (p *pulsarLink) ears(discarded func()) ears {
	return ears{discardWords: discarded, lostWords: func() { wake(p.lost) }}
}

// open connects and subscribes. When it returns an error, p is closed.
//
// The client has no limit of bytes: it would be one for all topics together, and at
// that limit the client (v0.19.0) forgets to give back the room in its queue of a
// message in chunks. What it holds is bounded by copyBytesMax.
func (p *pulsarLink) open(ctx context.Context, options pulsar.ClientOptions) error {
	options.MemoryLimitBytes = -1
	client, err := await(ctx, p, func() (pulsar.Client, error) { return pulsar.NewClient(options) }, pulsar.Client.Close)
	if err != nil {
		p.close()
		return fmt.Errorf("source: %w", err)
	}
	p.client = client
	return p.subscribeAll(ctx)
}

func (p *pulsarLink) subscribeAll(ctx context.Context) error {
	for _, topic := range append([]string{p.cfg.RetryTopic}, p.cfg.Topics...) {
		sub := &subscription{topic: topic}
		if err := p.subscribe(ctx, sub); err != nil {
			p.close()
			return err
		}
		p.subscriptions = append(p.subscriptions, sub)
	}
	return nil
}

var errClosed = errors.New("source: closed")

// await is [pulsarsend.Await], beside whoever waits.
func await[T any](ctx context.Context, p *pulsarLink, call func() (T, error), undo func(T)) (T, error) {
	return pulsarsend.Await(ctx, p.aside, call, undo)
}

// aside makes a call of the client beside whoever cannot wait for it, unless p is closed:
// then it returns errClosed. The last of these calls closes the client if p is closed
// meanwhile: a client that is closed under a call connects anew for it, and never
// lets go of that connection.
func (p *pulsarLink) aside(call func()) error {
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

// hint says what an answer of the broker may mean, of which the client has left one word.
func hint(err error) string {
	if strings.Contains(err.Error(), "TopicNotFound") { // of a namespace that does not exist, too
		return "; is there such a tenant and namespace, and may topics be created in it?"
	}
	return ""
}

// subscribe attaches to a topic. The receiver queue has a fixed size:
// the client's EnableAutoScaledReceiverQueueSize (v0.19.0) reserves memory for a
// batch quadratically in its length and releases it linearly, until its queues
// stay at one message and its producers block.
func (p *pulsarLink) subscribe(ctx context.Context, sub *subscription) error {
	partitions, err := await(ctx, p, func() ([]string, error) { return p.client.TopicPartitions(sub.topic) }, func([]string) {})
	if err != nil {
		return fmt.Errorf("source: look up %s: %w%s", sub.topic, err, hint(err))
	}
	position := pulsar.SubscriptionPositionLatest
	if p.cfg.FromEarliest || sub.topic == p.cfg.RetryTopic { // copies are never skipped
		position = pulsar.SubscriptionPositionEarliest
	}
	queue := max(1, p.cfg.ReceiverQueueMax/max(1, len(partitions)))
	options := pulsar.ConsumerOptions{
		Topic:                          sub.topic,
		SubscriptionName:               p.cfg.Subscription,
		Type:                           pulsar.Shared,
		Name:                           p.cfg.ConsumerName,
		SubscriptionInitialPosition:    position,
		MessageChannel:                 p.messages,
		ReceiverQueueSize:              queue,
		MaxPendingChunkedMessage:       p.cfg.ChunkedMax,
		ExpireTimeOfIncompleteChunk:    p.cfg.ChunkedTimeout,
		EnableBatchIndexAcknowledgment: p.cfg.Counting == CountEvents,
		// Or it would nack what is encrypted, for ever.
		Decryption: &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume},
	}
	consumer, err := await(ctx, p, func() (pulsar.Consumer, error) { return p.client.Subscribe(options) }, pulsar.Consumer.Close)
	if err != nil {
		return subscribeError(sub.topic, p.cfg.Subscription, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sub.consumer, sub.queue, sub.since = consumer, queue, clock.Now()
	return nil
}

// notePermits counts the permits that the client (v0.19.0) forgets: the broker takes one
// for each event of an encrypted batch, and the client gives one back for all.
func (p *pulsarLink) notePermits(l *lane, batchSize int) {
	l.lost += max(0, batchSize-1)
	if l.lost >= max(1, l.of.queue/2) {
		p.starving = l.of
	}
}

// reopenAfter is how old a consumer gets at least, so that its acks get through.
const reopenAfter = time.Second

// reopen consumes a topic anew, because the broker would soon send nothing more: a
// new consumer has all permits. What is unacked comes again and joins what is open.
func (p *pulsarLink) reopen(ctx context.Context) error {
	sub := p.starving
	p.starving = nil
	p.mu.Lock()
	old := sub.consumer
	p.mu.Unlock()
	old.Close()
	for _, l := range p.byTopic {
		if l.of == sub {
			l.lost = 0
		}
	}
	return p.subscribe(ctx, sub)
}

// subscribeError names what the broker says in passing. Its code for it, ConsumerBusy,
// does not get through the client as a value.
func subscribeError(topic, subscription string, err error) error {
	if strings.Contains(err.Error(), "different type") || strings.Contains(err.Error(), "ConsumerBusy") {
		return fmt.Errorf("source: subscription %q on %s: %w; give the router a subscription of its own, or stop those consumers first (%w)",
			subscription, topic, ErrSubscriptionType, err)
	}
	return fmt.Errorf("source: subscribe %q on %s: %w", subscription, topic, err)
}

// errLost says that a topic would bring nothing any more. Nobody else would: to the broker
// this is no consumer, and to us a topic on which nothing is published looks like it.
var errLost = errors.New("the client has given up on a consumer, because its topic was gone")

func (p *pulsarLink) receive(ctx context.Context, batch []Receipt) ([]Receipt, error) {
	var due <-chan time.Time
	if p.starving != nil {
		age := clock.Now().Sub(p.starving.since)
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
	case <-p.lost:
		return batch, errLost
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

// receipt appends the receipt of a message to batch. What is new is written field by field,
// to where it stays: as one value each it would be written twice.
func (p *pulsarLink) receipt(cm pulsar.ConsumerMessage, batch []Receipt) []Receipt {
	m := cm.Message
	from := p.laneOf(cm)
	batch = append(batch, Receipt{})
	r, a := &batch[len(batch)-1], new(arrival)
	r.Message, r.Lane = &a.message, from.number

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
	if from.retry {
		restore(ev)
	}
	if c := m.GetEncryptionContext(); c != nil {
		r.Unreadable = reasonEncrypted
		ev.Properties = append(ev.Properties, encryptionProperty(c))
		p.notePermits(from, c.BatchSize)
	}
	a.message.Event, a.message.Key, a.message.OrderingKey = ev, m.Key(), m.OrderingKey()
	return batch
}

// arrival is a message with its event: one piece of memory instead of two.
type arrival struct {
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

// laneOf finds the topic partition that a message came from.
func (p *pulsarLink) laneOf(cm pulsar.ConsumerMessage) *lane {
	topic := cm.Topic()
	if p.last != nil && p.last.topic == topic {
		return p.last
	}
	l, ok := p.byTopic[topic]
	if !ok {
		base, partition := splitPartition(topic)
		l = &lane{
			number: int32(len(p.byTopic)), topic: topic, base: base, partition: partition,
			retry: base == p.cfg.RetryTopic || topic == p.cfg.RetryTopic, of: p.subscriptionOf(topic, base),
		}
		p.byTopic[topic] = l
		p.mu.Lock()
		p.lanes = append(p.lanes, l)
		p.mu.Unlock()
	}
	p.last = l
	return l
}

func (p *pulsarLink) consumerOf(a Ack) pulsar.Consumer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes[a.Lane].of.consumer
}

// subscriptionOf finds the subscription that a topic partition belongs to: of the whole
// topic, or of this partition alone.
func (p *pulsarLink) subscriptionOf(topic, base string) *subscription {
	for _, sub := range p.subscriptions {
		if sub.topic == topic || sub.topic == base {
			return sub
		}
	}
	return nil
}

// ack acknowledges a whole batch at once by its entry: the client's own count of a
// batch starts anew with every delivery and does not know what was settled before.
func (p *pulsarLink) ack(a Ack) error {
	id, ok := a.Ref.(pulsar.MessageID)
	if !ok {
		return fmt.Errorf("source: %T is not a message id", a.Ref)
	}
	if p.cfg.Counting == CountEntries && a.Total > 1 {
		id = pulsar.NewMessageID(a.Entry.Ledger, a.Entry.Entry, -1, id.PartitionIdx())
	}
	return p.consumerOf(a).AckID(id)
}

func (p *pulsarLink) limits(ctx context.Context) (limits, bool, error) {
	if p.cfg.AdminURL == "" {
		return limits{}, false, nil
	}
	l, err := probe(ctx, pulsaradmin.Client{URL: p.cfg.AdminURL, HTTP: p.admin}, append([]string{p.cfg.RetryTopic}, p.cfg.Topics...))
	return l, true, err
}

// close does not wait for calls that nobody waits for any more.
func (p *pulsarLink) close() {
	p.mu.Lock()
	p.closed = true
	last := p.calls == 0
	consumers := make([]pulsar.Consumer, 0, len(p.subscriptions))
	for _, sub := range p.subscriptions {
		consumers = append(consumers, sub.consumer)
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
func (p *pulsarLink) closeClient() {
	if p.client != nil {
		p.client.Close()
	}
}
