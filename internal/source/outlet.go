package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsarread"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// outlets sends copies, with pulsar-client-go's producers.
type outlets struct {
	cfg     Config
	sdk     *sdk
	byTopic map[string]*outlet
	alone   [loneMax]map[string]*outlet // by number and topic: each sends one copy at a time, which was not answered before
}

func newOutlets(cfg Config, sdk *sdk) *outlets {
	p := &outlets{cfg: cfg, sdk: sdk, byTopic: outletsByTopic(cfg)}
	for i := range p.alone {
		p.alone[i] = outletsByTopic(cfg)
		for topic, o := range p.alone[i] {
			o.tries = p.alone[0][topic].tries
		}
	}
	return p
}

func outletsByTopic(cfg Config) map[string]*outlet {
	const kept, read = true, false // kept: see outlet.keep
	made := func(topic string, keep bool) *outlet {
		return &outlet{topic: topic, keep: keep, tries: &tries{pauses: backoff.Backoff{Min: cfg.CopyBackoffMin, Max: cfg.CopyBackoffMax}}}
	}
	return map[string]*outlet{
		cfg.RetryTopic:      made(cfg.RetryTopic, read),
		cfg.DeadLetterTopic: made(cfg.DeadLetterTopic, kept),
		cfg.ParkingTopic():  made(cfg.ParkingTopic(), kept),
		cfg.TimerTopic():    made(cfg.TimerTopic(), read),
	}
}

// outlet sends the copies for one topic. One goroutine at a time uses it; the client
// answers from its own goroutines.
type outlet struct {
	topic string
	keep  bool // the topic may have no reader for long, so it needs a subscription: without one the broker deletes messages at once

	// Of the goroutine that sends.
	checked clock.Instant // when the topic last had its subscription, 0: not checked yet
	*tries

	bytes atomic.Int64 // of copies without a receipt, including those that have timed out

	mu       sync.Mutex
	producer *pulsarsend.Sender // nil: none at present
	ledgers  map[int32]int64    // by topic partition: the ledger of the newest receipt after which a kept topic had its subscription
	unsure   []receipt          // receipts that wait until the topic certainly has its subscription
	looking  bool               // the goroutine of assure runs
	doubted  bool               // the subscription could not be created: nothing is sent before it exists
	later    bool               // the timer of lookLater runs
}

// tries are the attempts to get a producer. The outlets of one topic that send alone share theirs, since each may take long to fail.
type tries struct {
	failed  error           // why there was no producer at the last attempt, nil if there was one
	further bool            // that attempt was one for a further producer: outlets that have one need none
	again   clock.Instant   // the earliest time of the next attempt
	pauses  backoff.Backoff // between attempts
}

// receipt is the receipt of a copy for a kept topic.
type receipt struct {
	id     pulsar.MessageID
	answer func(error)
}

// copyBytesMax bounds the bytes of unanswered copies of one topic; the last one may exceed
// it. The client's own limit is for all topics together.
const copyBytesMax = 32 << 20

var errFull = errors.New("source: the client holds too many bytes of copies that the broker has not confirmed")

// unanswered is the end of a copy without an answer. Either the broker has refused it, or another copy of the same
// producer, whose receipts are lost then, or the topic is slow.
type unanswered struct {
	error
	by *pulsarsend.Sender
}

func (u *unanswered) Unwrap() error { return u.error }

func (p *outlets) send(ctx context.Context, c outgoing, done func(error)) {
	timeout := p.cfg.CopyTimeout
	if c.awaited {
		timeout = min(timeout, sendTimeout)
	}
	o, silence := p.byTopic[c.topic], p.cfg.CopyTimeout
	if c.after != nil {
		o, silence = p.alone[c.producer][c.topic], timeout
	}
	producer, err := p.tryProducer(ctx, o)
	if err != nil && c.after != nil { // a policy may permit no more producers
		o = p.byTopic[c.topic]
		producer, err = p.tryProducer(ctx, o)
	}
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
	answer := pulsarsend.Within(timeout, func(err error) {
		if errors.Is(err, pulsarsend.ErrTimeout) && producer.Silent(silence) {
			p.replace(o, producer)
		}
		if errors.Is(err, pulsarsend.ErrTimeout) || errors.Is(err, pulsar.ErrProducerClosed) {
			err = &unanswered{err, producer}
		}
		done(err)
	})
	end := func(err error) {
		if !answer(err) && err == nil {
			done(nil) // the copy is safe, though it counts as failed
		}
	}
	weight := int64(len(c.payload))
	o.bytes.Add(weight)
	producer.SendAsync(ctx, message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		o.bytes.Add(-weight)
		if err == nil && id != nil {
			producer.Received(id.PartitionIdx())
			if c.after != nil && c.after.SilentIn(id.PartitionIdx(), timeout) {
				p.replace(p.byTopic[c.topic], c.after)
			}
		}
		if pulsarsend.GaveUp(err) {
			p.replace(o, producer)
		}
		if o.keep && err == nil && id != nil {
			p.kept(o, receipt{id, end})
			return
		}
		end(err)
	})
}

// kept answers a receipt when the topic certainly had its subscription after it. The client silently continues with a topic that
// was deleted and created again, and with added topic partitions: a new ledger shows both. The client calls this from
// its own goroutine, so nothing here may block.
func (p *outlets) kept(o *outlet, r receipt) {
	o.mu.Lock()
	ledger, known := o.ledgers[r.id.PartitionIdx()]
	known = known && ledger == r.id.LedgerID()
	begins := !known && !o.looking
	if known {
		p.lookLater(o)
	} else {
		o.unsure, o.looking = append(o.unsure, r), true
	}
	o.mu.Unlock()
	switch {
	case known:
		r.answer(nil)
	case begins:
		if err := p.sdk.aside(func() { p.assure(o) }); err != nil {
			for batch := o.takeUnsure(); len(batch) > 0; batch = o.takeUnsure() {
				answerAll(batch, err)
			}
		}
	}
}

// lookLater creates the subscription once more after keepEvery, for the case that the subscription alone was deleted and
// no further copy comes, whose sending would check. It is called under the outlet's mutex.
func (p *outlets) lookLater(o *outlet) {
	if o.later {
		return
	}
	o.later = true
	time.AfterFunc(keepEvery, func() {
		_ = p.sdk.aside(func() {
			err := p.attachKeeper(o)
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.later = false; err != nil {
				p.lookLater(o)
			}
		})
	})
}

// assure creates the subscription for the receipts that wait for it. Until then the broker keeps their entries, since they
// are in the newest ledger of the topic.
func (p *outlets) assure(o *outlet) {
	for {
		batch := o.takeUnsure()
		if len(batch) == 0 {
			return
		}
		err := p.attachKeeper(o)
		o.mu.Lock()
		if o.doubted = err != nil; !o.doubted {
			if o.ledgers == nil {
				o.ledgers = make(map[int32]int64)
			}
			for _, r := range batch {
				o.ledgers[r.id.PartitionIdx()] = r.id.LedgerID()
			}
		}
		o.mu.Unlock()
		answerAll(batch, err)
	}
}

// takeUnsure takes the waiting receipts. If there are none, no goroutine waits for them.
func (o *outlet) takeUnsure() []receipt {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.unsure
	o.unsure, o.looking = nil, len(batch) > 0
	return batch
}

func answerAll(batch []receipt, err error) {
	for _, r := range batch {
		r.answer(err)
	}
}

// replace makes the next copy create another producer, and closes this one.
func (p *outlets) replace(o *outlet, given *pulsarsend.Sender) {
	if o.drop(given) {
		_ = p.sdk.aside(given.Close) // the goroutine that answers may itself be closing the client's producer; a closed sdk closes it anyway
	}
}

// tryProducer returns the producer of an outlet. An attempt may take long to fail, so
// copies that come soon after a failure fail with the same error, unless a further producer failed, and this outlet has one.
func (p *outlets) tryProducer(ctx context.Context, o *outlet) (*pulsarsend.Sender, error) {
	present := o.hasProducer()
	if o.failed != nil && clock.Now().Before(o.again) && !(o.further && present) {
		return nil, o.failed
	}
	producer, err := p.producer(ctx, o)
	switch {
	case err != nil:
		o.failed, o.further, o.again = err, !present, clock.Now().Add(o.pauses.Next())
		return nil, err
	case !present || !o.further: // one that was there does not show that there can be a further one
		o.failed, o.further = nil, false
		o.pauses.Reset()
	}
	return producer, nil
}

func (o *outlet) hasProducer() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.producer != nil
}

// producer returns the producer of an outlet. It creates one at first use, and when the client has given up on the last one.
func (p *outlets) producer(ctx context.Context, o *outlet) (*pulsarsend.Sender, error) {
	o.mu.Lock()
	present, doubted := o.producer, o.doubted
	o.doubted = false
	o.mu.Unlock()
	if present == nil || doubted {
		o.checked = 0 // the topic may have been created again
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
		MaxPendingMessages:      4 * p.cfg.CopiesMax,  // a copy may be several messages, and the client still holds copies that have failed here
		DisableBlockIfQueueFull: true,                 // a full queue is an error: a blocked sender could not detect a stuck topic
		DisableBatching:         true,                 // delayed messages are never batched anyway, and an entry of its own pins nothing
		EnableChunking:          true,                 // a copy is larger than its original by its properties
	}
	made, err := await(ctx, p.sdk, func() (pulsar.Producer, error) { return p.sdk.client.CreateProducer(options) }, pulsar.Producer.Close)
	if err != nil {
		return nil, fmt.Errorf("source: producer for %s: %w%s", o.topic, err, hint(err))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.producer = pulsarsend.NewSender(made)
	return o.producer, nil
}

// drop makes the next copy create another producer. It reports true to the first
// caller that drops this one.
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
	if err := p.sdk.call(ctx, func() error { return p.attachKeeper(o) }); err != nil {
		return err
	}
	o.checked = now
	return nil
}

// attachKeeper subscribes to all topic partitions, and closes the consumers. They take no message: the client decompresses what it receives without a bound.
func (p *outlets) attachKeeper(o *outlet) error {
	partitions, err := p.sdk.client.TopicPartitions(o.topic)
	if err != nil {
		return fmt.Errorf("source: %w %s: %w%s", errLookUp, o.topic, err, hint(err))
	}
	for _, one := range partitions {
		consumer, err := pulsarread.Subscribe(p.sdk.client, pulsar.ConsumerOptions{
			Topic:                       one,
			SubscriptionName:            p.cfg.DeadLetterSubscription,
			Type:                        pulsar.Exclusive,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
			EnableZeroQueueConsumer:     true,
		})
		if err == nil {
			consumer.Close()
		} else if !hasKeeper(err) {
			return fmt.Errorf("source: subscription %q on %s: %w%s", p.cfg.DeadLetterSubscription, one, err, hint(err))
		}
	}
	return nil
}

// hasKeeper reports whether an attempt to subscribe failed because another consumer has the subscription.
func hasKeeper(err error) bool {
	return strings.Contains(err.Error(), "ConsumerBusy") || errors.Is(subscribeError("", "", err), ErrSubscriptionType)
}
