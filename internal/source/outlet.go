package source

import (
	"context"
	"errors"
	"fmt"
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
	alone   [loneMax]map[string]*outlet // by number and topic: each sends one copy at a time, which was not answered before
}

func newOutlets(cfg Config, sdk *sdk) *outlets {
	p := &outlets{cfg: cfg, sdk: sdk, byTopic: make(map[string]*outlet)}
	for i := range p.alone {
		p.alone[i] = make(map[string]*outlet)
	}
	newTries := func() *tries {
		return &tries{pauses: backoff.Backoff{Min: cfg.CopyBackoffMin, Max: cfg.CopyBackoffMax}}
	}
	for topic, isRead := range map[string]bool{cfg.RetryTopic: true, cfg.TimerTopic(): true, cfg.DeadLetterTopic: false, cfg.ParkingTopic(): false} {
		var k *keeper
		if !isRead {
			k = &keeper{sdk: sdk, topic: topic, subscription: cfg.DeadLetterSubscription, ledgers: make(map[int32]int64)}
		}
		p.byTopic[topic] = &outlet{topic: topic, keeper: k, tries: newTries()}
		common := newTries()
		for i := range p.alone {
			p.alone[i][topic] = &outlet{topic: topic, keeper: k, tries: common}
		}
	}
	return p
}

// outlet sends copies for one topic. One goroutine at a time uses it; the client
// answers from its own goroutines.
type outlet struct {
	topic  string
	keeper *keeper // nil: the routers read the topic, so it has their subscription
	*tries         // of the goroutine that sends

	producer atomic.Pointer[pulsarsend.Sender] // nil: none at present
	bytes    atomic.Int64                      // of copies without a receipt, including those that have timed out
}

// tries are the attempts to get a producer. The outlets of one topic that send alone share theirs, since each may take long to fail.
type tries struct {
	failed  error           // why there was no producer at the last attempt, nil if there was one
	further bool            // that attempt was one for a further producer: outlets that have one need none
	again   clock.Instant   // the earliest time of the next attempt
	pauses  backoff.Backoff // between attempts
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
		if o.keeper != nil && err == nil && id != nil {
			o.keeper.kept(receipt{id, end})
			return
		}
		end(err)
	})
}

// release implements connection.
func (p *outlets) release(topic string, from int) {
	for _, numbered := range p.alone[from:] {
		o := numbered[topic]
		if unused := o.producer.Load(); unused != nil {
			p.replace(o, unused)
		}
	}
}

// replace makes the next copy create another producer, and closes this one.
func (p *outlets) replace(o *outlet, given *pulsarsend.Sender) {
	if o.producer.CompareAndSwap(given, nil) {
		_ = p.sdk.aside(given.Close) // the goroutine that answers may itself be closing the client's producer; a closed sdk closes it anyway
	}
}

// tryProducer returns the producer of an outlet. An attempt may take long to fail, so
// copies that come soon after a failure fail with the same error, unless a further producer failed, and this outlet has one.
func (p *outlets) tryProducer(ctx context.Context, o *outlet) (*pulsarsend.Sender, error) {
	present := o.producer.Load()
	if o.failed != nil && clock.Now().Before(o.again) && !(o.further && present != nil) {
		return nil, o.failed
	}
	producer, err := p.producer(ctx, o, present)
	switch {
	case err != nil:
		o.failed, o.further, o.again = err, present == nil, clock.Now().Add(o.pauses.Next())
		return nil, err
	case present == nil || !o.further: // one that was there does not show that there can be a further one
		o.failed, o.further = nil, false
		o.pauses.Reset()
	}
	return producer, nil
}

// producer returns the present producer of an outlet, and a new one if there is none: at first use, and when the client has given up on the last one.
func (p *outlets) producer(ctx context.Context, o *outlet, present *pulsarsend.Sender) (*pulsarsend.Sender, error) {
	if o.keeper != nil {
		if err := o.keeper.ensure(ctx, present == nil); err != nil { // without a producer: the topic may have been created again
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
	producer := pulsarsend.NewSender(made)
	o.producer.Store(producer)
	return producer, nil
}
