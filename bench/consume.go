package main

import (
	"context"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/ringfence/router/internal/base/event"
)

// nackDelay is the time after which an event that could not be handled is redelivered; the
// client's default is a minute.
const nackDelay = time.Second

// deliveriesMax is the number of deliveries of a failing event, as with a router's defaults. With
// FAILOVER the broker does not count.
const deliveriesMax = 10

// topicConsumer consumes the topic itself, without a router.
type topicConsumer struct {
	*worker
	consumer pulsar.Consumer
	messages chan pulsar.ConsumerMessage
	locks    *locks // nil: none
}

// consumeTopic is every way of consuming but Ringfence.
func (w *worker) consumeTopic(ctx context.Context) error {
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: w.pulsar, Logger: plog.DefaultNopLogger()})
	if err != nil {
		return err
	}
	defer c.Close()
	t := &topicConsumer{worker: w, messages: make(chan pulsar.ConsumerMessage, 1000)}
	opts := pulsar.ConsumerOptions{
		Topic: w.topic, SubscriptionName: subscription, Type: w.mode.subscription, Name: w.name,
		ReceiverQueueSize: receiverQueue, MessageChannel: t.messages, NackRedeliveryDelay: nackDelay,
		EnableBatchIndexAcknowledgment: w.singleAcks,
	}
	if w.disturbance.fails > 0 {
		opts.DLQ = &pulsar.DLQPolicy{MaxDeliveries: deliveriesMax, DeadLetterTopic: w.topic + "-DLQ"}
	}
	t.consumer, err = c.Subscribe(opts)
	if err != nil {
		return err
	}
	defer t.consumer.Close()
	if w.mode.name == modeRedlock {
		t.locks = newLocks(w.redis, w.handlers())
		defer t.locks.close()
	}
	var running sync.WaitGroup
	running.Go(func() { w.reportProgress(ctx) })
	switch {
	case !w.mode.striped:
		for range w.handlers() {
			running.Go(func() { t.each(ctx, t.handleMessage) })
		}
	case w.waits():
		l := newLanes(t.handleMessage)
		running.Go(func() {
			t.each(ctx, l.put)
			l.all.Wait()
		})
	default:
		// There are more processes than cores, and a hop to another goroutine would
		// cost more than the handler does.
		running.Go(func() { t.each(ctx, t.handleMessage) })
	}
	running.Wait()
	return nil
}

// each hands messages to do until ctx ends.
func (t *topicConsumer) each(ctx context.Context, do func(context.Context, pulsar.ConsumerMessage)) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-t.messages:
			do(ctx, m)
		}
	}
}

func (t *topicConsumer) handleMessage(ctx context.Context, m pulsar.ConsumerMessage) {
	if t.handleLocked(ctx, m) != nil {
		t.consumer.Nack(m)
		return
	}
	_ = t.consumer.Ack(m) // without a receipt from the broker it never fails
	t.finished(m.Key(), m.Payload())
}

// handleLocked handles an event under the lock of its key, where there are locks.
func (t *topicConsumer) handleLocked(ctx context.Context, m pulsar.ConsumerMessage) error {
	if t.locks == nil {
		return t.handle(m.Key(), m.Payload(), event.Fence{})
	}
	lock := t.locks.of(m.Key())
	if err := lock.LockContext(ctx); err != nil {
		return err
	}
	err := t.handle(m.Key(), m.Payload(), event.Fence{})
	// A lock that cannot be released expires; the guarded work is done.
	_, _ = lock.UnlockContext(context.WithoutCancel(ctx))
	return err
}

// lanes handle events of one key one after the other, and of different keys at once. Striped modes
// need them if handlers wait: with a fixed set of queues, a stalled key would hold up the other
// keys of its queue.
type lanes struct {
	handle func(context.Context, pulsar.ConsumerMessage)
	room   chan struct{} // one for each event that is here
	slots  chan struct{} // one for each running handler
	all    sync.WaitGroup

	mu      sync.Mutex
	waiting map[string][]pulsar.ConsumerMessage // behind the event that is handled, by key
}

func newLanes(handle func(context.Context, pulsar.ConsumerMessage)) *lanes {
	return &lanes{
		handle: handle, room: make(chan struct{}, receiverQueue), slots: make(chan struct{}, waitingHandlers),
		waiting: make(map[string][]pulsar.ConsumerMessage),
	}
}

// put blocks while as many events are here as the receiver queue holds.
func (l *lanes) put(ctx context.Context, m pulsar.ConsumerMessage) {
	select {
	case l.room <- struct{}{}:
	case <-ctx.Done():
		return
	}
	key := m.Key()
	l.mu.Lock()
	defer l.mu.Unlock()
	if behind, running := l.waiting[key]; running {
		l.waiting[key] = append(behind, m)
		return
	}
	l.waiting[key] = nil
	l.all.Go(func() { l.run(ctx, key, m) })
}

// run handles the events of a key until there are no more.
func (l *lanes) run(ctx context.Context, key string, m pulsar.ConsumerMessage) {
	for more := true; more; m, more = l.next(key) {
		l.slots <- struct{}{}
		if ctx.Err() == nil {
			l.handle(ctx, m)
		}
		<-l.slots
		<-l.room
	}
}

func (l *lanes) next(key string) (m pulsar.ConsumerMessage, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	behind := l.waiting[key]
	if len(behind) == 0 {
		delete(l.waiting, key)
		return m, false
	}
	l.waiting[key] = behind[1:]
	return behind[0], true
}
