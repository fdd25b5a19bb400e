package source

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsarread"
)

// keeper makes sure that a topic that may have no reader for long has its subscription: without one the broker deletes
// messages at once. The outlets of the topic share it.
type keeper struct {
	sdk                 *sdk
	topic, subscription string

	checked clock.Instant // when the topic last had its subscription, 0: not checked yet; of the goroutine that sends

	mu      sync.Mutex      // guards the fields below
	ledgers map[int32]int64 // by topic partition: the ledger of the newest receipt after which the topic had its subscription
	unsure  []receipt       // receipts that wait until the topic certainly has its subscription
	looking bool            // the goroutine of assure runs
	doubted bool            // the subscription could not be created: nothing is sent before it exists
	later   bool            // the timer of lookLater runs
}

// receipt is the receipt of a copy.
type receipt struct {
	id     pulsar.MessageID
	answer func(error)
}

// keepEvery is the interval of checks that the dead letter and parking topics have their subscription: Pulsar does
// not tell us when it is deleted or expires.
const keepEvery = time.Minute

// ensure creates the subscription if it is missing. It asks the broker if anew is set, or assure has failed, and else at
// most once in keepEvery.
func (k *keeper) ensure(ctx context.Context, anew bool) error {
	k.mu.Lock()
	anew = anew || k.doubted
	k.doubted = false
	k.mu.Unlock()
	now := clock.Now()
	if !anew && k.checked != 0 && now.Sub(k.checked) < keepEvery {
		return nil
	}
	k.checked = 0
	if err := k.sdk.call(ctx, k.attach); err != nil {
		return err
	}
	k.checked = now
	return nil
}

// attach subscribes to all topic partitions, and closes the consumers. They take no message: the client decompresses what it receives without a
// bound. One that is taken exists.
func (k *keeper) attach() error {
	partitions, err := k.sdk.client.TopicPartitions(k.topic)
	if err != nil {
		return fmt.Errorf("source: %w %s: %w%s", errLookUp, k.topic, err, hint(err))
	}
	for _, one := range partitions {
		consumer, err := pulsarread.Subscribe(k.sdk.client, pulsar.ConsumerOptions{
			Topic:                       one,
			SubscriptionName:            k.subscription,
			Type:                        pulsar.Exclusive,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
			EnableZeroQueueConsumer:     true,
		})
		if err == nil {
			consumer.Close()
		} else if !pulsarread.IsTaken(err) {
			return fmt.Errorf("source: subscription %q on %s: %w%s", k.subscription, one, err, hint(err))
		}
	}
	return nil
}

// kept answers a receipt when the topic certainly had its subscription after it. The client silently continues with a topic that
// was deleted and created again, and with added topic partitions: a new ledger shows both. The client calls this from
// its own goroutine, so nothing here may block.
func (k *keeper) kept(r receipt) {
	k.mu.Lock()
	ledger, known := k.ledgers[r.id.PartitionIdx()]
	known = known && ledger == r.id.LedgerID()
	begins := !known && !k.looking
	if known {
		k.lookLater()
	} else {
		k.unsure, k.looking = append(k.unsure, r), true
	}
	k.mu.Unlock()
	switch {
	case known:
		r.answer(nil)
	case begins:
		if err := k.sdk.aside(func() { k.assure(k.attach) }); err != nil {
			k.assure(func() error { return err })
		}
	}
}

// lookLater creates the subscription once more after keepEvery, for the case that the subscription alone was deleted and
// no further copy comes, whose sending would check. It is called under the mutex.
func (k *keeper) lookLater() {
	if k.later {
		return
	}
	k.later = true
	time.AfterFunc(keepEvery, func() {
		_ = k.sdk.aside(func() {
			err := k.attach()
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.later = false; err != nil {
				k.lookLater()
			}
		})
	})
}

// assure creates the subscription for the receipts that wait for it, and answers them. Until then the broker keeps their entries,
// since they are in the newest ledger of the topic.
func (k *keeper) assure(attach func() error) {
	for {
		batch := k.takeUnsure()
		if len(batch) == 0 {
			return
		}
		err := attach()
		k.mu.Lock()
		if k.doubted = err != nil; !k.doubted {
			for _, r := range batch {
				k.ledgers[r.id.PartitionIdx()] = r.id.LedgerID()
			}
		}
		k.mu.Unlock()
		for _, r := range batch {
			r.answer(err)
		}
	}
}

// takeUnsure takes the waiting receipts. If there are none, no goroutine waits for them.
func (k *keeper) takeUnsure() []receipt {
	k.mu.Lock()
	defer k.mu.Unlock()
	batch := k.unsure
	k.unsure, k.looking = nil, len(batch) > 0
	return batch
}
