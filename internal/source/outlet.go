package source

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// outlets sends copies, with pulsar-client-go's producers.
type outlets struct {
	cfg     Config
	sdk     *sdk
	byTopic map[string]*outlet
}

func newOutlets(cfg Config, sdk *sdk) *outlets {
	pauses := backoff.Backoff{Min: cfg.CopyBackoffMin, Max: cfg.CopyBackoffMax}
	return &outlets{cfg: cfg, sdk: sdk, byTopic: map[string]*outlet{
		cfg.RetryTopic:      {topic: cfg.RetryTopic, pauses: pauses},
		cfg.DeadLetterTopic: {topic: cfg.DeadLetterTopic, pauses: pauses, keep: true},
		cfg.ParkingTopic():  {topic: cfg.ParkingTopic(), pauses: pauses, keep: true},
		cfg.TimerTopic():    {topic: cfg.TimerTopic(), pauses: pauses},
	}}
}

// outlet sends the copies for one topic. One goroutine at a time uses it; the client
// answers from its own goroutines.
type outlet struct {
	topic string
	keep  bool // nobody reads the topic for long, so that it needs a subscription

	// Of the goroutine that sends.
	checked clock.Instant   // when the topic last had its subscription, 0: not checked yet
	failed  error           // why there was no producer at the last attempt, nil if there was one
	again   clock.Instant   // the earliest time of the next attempt
	pauses  backoff.Backoff // between attempts

	bytes atomic.Int64 // of copies that no producer has answered, including those that have timed out

	mu       sync.Mutex
	producer *pulsarsend.Sender // nil: none at present
}

// copyBytesMax bounds the bytes of unanswered copies of one topic; the last one may exceed
// it. The client's own limit is for all topics together.
const copyBytesMax = 32 << 20

var errFull = errors.New("source: the client holds too many bytes of copies that the broker has not confirmed")

func (p *outlets) send(ctx context.Context, c outgoing, done func(error)) {
	o := p.byTopic[c.topic]
	producer, err := p.tryProducer(ctx, o)
	if err == nil && o.bytes.Load() >= copyBytesMax {
		err = errFull
	}
	if err != nil {
		done(err)
		return
	}
	message := &pulsar.ProducerMessage{
		Payload:      c.payload, // nil makes it a null value, as the original was
		Key:          c.key,
		OrderingKey:  c.orderingKey,
		Properties:   c.properties,
		DeliverAfter: c.delay,
	}
	if c.eventTime != 0 {
		message.EventTime = time.UnixMilli(c.eventTime)
	}
	answer := pulsarsend.Within(p.cfg.CopyTimeout, func(err error) {
		if errors.Is(err, pulsarsend.ErrTimeout) && producer.Silent(p.cfg.CopyTimeout) {
			p.replace(o, producer)
		}
		done(err)
	})
	weight := int64(len(c.payload))
	o.bytes.Add(weight)
	producer.SendAsync(ctx, message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		o.bytes.Add(-weight)
		if err == nil {
			producer.Received()
		}
		if pulsarsend.GaveUp(err) {
			p.replace(o, producer)
		}
		answer(err)
	})
}

// replace makes the next copy look for another producer, and closes this one.
func (p *outlets) replace(o *outlet, given *pulsarsend.Sender) {
	if o.drop(given) {
		_ = p.sdk.aside(given.Close) // the goroutine that answers may itself be closing the client's producer; a closed sdk closes it anyway
	}
}

// tryProducer returns the producer of an outlet. An attempt may take long to fail, so
// copies that come soon after a failure fail with the same error.
func (p *outlets) tryProducer(ctx context.Context, o *outlet) (*pulsarsend.Sender, error) {
	if o.failed != nil && clock.Now().Before(o.again) {
		return nil, o.failed
	}
	producer, err := p.producer(ctx, o)
	if o.failed = err; err == nil {
		o.pauses.Reset()
		return producer, nil
	}
	o.again = clock.Now().Add(o.pauses.Next())
	return nil, err
}

// producer returns the producer of an outlet, created at first use, and again when the client
// has given up on the last one.
func (p *outlets) producer(ctx context.Context, o *outlet) (*pulsarsend.Sender, error) {
	o.mu.Lock()
	present := o.producer
	o.mu.Unlock()
	if present == nil {
		o.checked = 0 // the topic may be another one
	}
	if o.keep {
		if err := p.keepLetters(ctx, o); err != nil {
			return nil, err
		}
	}
	if present != nil {
		return present, nil
	}
	options := pulsar.ProducerOptions{
		Topic:                   o.topic,
		SendTimeout:             pulsarsend.NoTimeout, // see send
		MaxPendingMessages:      4 * p.cfg.CopiesMax,  // a copy may be several, and one that has failed here is still held there
		DisableBlockIfQueueFull: true,                 // a full queue is an error: a blocked sender could not detect a stuck topic
		DisableBatching:         true,                 // delayed messages are never batched anyway, and an entry of its own pins nothing
		EnableChunking:          true,                 // a copy is larger than its original by its properties
	}
	made, err := await(ctx, p.sdk, func() (pulsar.Producer, error) { return p.sdk.client.CreateProducer(options) }, pulsar.Producer.Close)
	if err != nil {
		return nil, fmt.Errorf("source: producer for %s: %w", o.topic, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.producer = pulsarsend.NewSender(made)
	return o.producer, nil
}

// drop makes the next copy look for another producer. It reports true to the first
// that drops this one.
func (o *outlet) drop(given *pulsarsend.Sender) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.producer != given {
		return false
	}
	o.producer = nil
	return true
}

// keepEvery is the interval of checks that the dead letter and parking topics have their subscription: Pulsar does
// not tell us when it is deleted or expires.
const keepEvery = time.Minute

// keepLetters creates the subscription of the dead letter or parking topic if it is missing, at
// most once in keepEvery. The error ConsumerBusy proves that it exists.
func (p *outlets) keepLetters(ctx context.Context, o *outlet) error {
	now := clock.Now()
	if o.checked != 0 && now.Sub(o.checked) < keepEvery {
		return nil
	}
	options := pulsar.ConsumerOptions{
		Topic:                       o.topic,
		SubscriptionName:            p.cfg.DeadLetterSubscription,
		Type:                        pulsar.Exclusive,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		ReceiverQueueSize:           1,
	}
	attach := func() (struct{}, error) {
		consumer, err := p.sdk.client.Subscribe(options)
		if err == nil {
			consumer.Close()
		}
		return struct{}{}, err
	}
	if _, err := await(ctx, p.sdk, attach, func(struct{}) {}); err != nil {
		if !errors.Is(subscribeError("", "", err), ErrSubscriptionType) {
			return fmt.Errorf("source: subscription %q on %s: %w", p.cfg.DeadLetterSubscription, o.topic, err)
		}
	}
	o.checked = now
	return nil
}
