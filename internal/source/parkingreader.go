package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/pulsarread"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// pulsarParking is a parkingConn of two clients of its own. It reads with package entries, which bounds what a message can become: anybody who may
// produce to the topic chooses that. It writes with pulsar-client-go, whose calls may hang.
type pulsarParking struct {
	*entryReader
	writer *sdk
	topics []string // names of the topic partitions

	ackMu  sync.Mutex // guards the fields below
	unsure []wire.ID  // entries of the ack that is waited for, without a receipt
	failed error      // of one of its receipts
	acked  chan error // gets its result
}

// parkingHead is room beside the payload of a letter in chunks: its head is in each of them, and so are the properties of the router.
const parkingHead = 4 * headMax

func (p *Parking) openPulsar(ctx context.Context, access Access) (parkingConn, error) {
	c, err := p.newPulsar(access)
	if err != nil {
		return nil, err
	}
	if err = c.writer.open(ctx, access.Client); err == nil {
		err = c.subscribe(ctx)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// newPulsar does no I/O.
func (p *Parking) newPulsar(access Access) (*pulsarParking, error) {
	cfg := p.cfg
	cfg.BatchMax, cfg.Counting = 1, CountEvents
	client := entriesConfig(cfg, &access.Client)
	client.AckGroupMax = 1                                                                                          // each is waited for
	client.ChunkBytesMax = client.PayloadBytesMax + parkingHead                                                     // an event that came compressed may be a letter in chunks
	reader, err := newEntryReader(cfg, client, access.Entries, entries.NewMetrics(prometheus.NewRegistry()), p.log) // the router's are about events
	if err != nil {
		return nil, err
	}
	return &pulsarParking{entryReader: reader, writer: new(sdk)}, nil
}

// subscribe subscribes to all topic partitions. It waits for another reader, for a bounded time.
func (c *pulsarParking) subscribe(ctx context.Context) error {
	patience, cancel := context.WithTimeout(ctx, parkingBusyMax)
	defer cancel()
	delays := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for {
		err := c.trySubscribe(ctx)
		if err == nil {
			return nil
		}
		busy := pulsarread.IsTaken(err)
		if busy {
			err = ErrParkingBusy
		}
		if !busy || backoff.Sleep(patience, delays.Next()) != nil {
			return fmt.Errorf("source: subscription %q on %s: %w%s", c.cfg.DeadLetterSubscription, c.cfg.ParkingTopic(), err, hint(err))
		}
	}
}

// trySubscribe subscribes to all topic partitions, or to none.
func (c *pulsarParking) trySubscribe(ctx context.Context) (err error) {
	if c.topics, err = c.partitions(ctx, c.cfg.ParkingTopic()); err != nil {
		return err
	}
	var consumers []*entries.Consumer
	for _, one := range c.topics {
		consumer, err := c.client.Subscribe(ctx, entries.Subscription{
			Topic: one, Name: c.cfg.DeadLetterSubscription, Type: entries.Exclusive, FromEarliest: true,
			Permits: parkingPrefetch, Queue: c.queue, Receipt: c.receipt,
		})
		if err != nil {
			for _, before := range consumers {
				before.Close()
			}
			return err
		}
		consumers = append(consumers, consumer)
	}
	return nil
}

// end implements parkingConn.
func (c *pulsarParking) end(ctx context.Context, value string) (int, error) {
	mark := &pulsar.ProducerMessage{Payload: []byte{}, Properties: map[string]string{propertyParkedEnd: value}, DisableReplication: true}
	for _, one := range c.topics {
		err := c.writer.call(ctx, func() error {
			producer, err := c.writer.client.CreateProducer(pulsar.ProducerOptions{Topic: one, SendTimeout: pulsarsend.NoTimeout, DisableBatching: true})
			if err != nil {
				return fmt.Errorf("producer: %w", err)
			}
			defer producer.Close()
			return pulsarsend.Send(ctx, producer, mark, parkingAnswer)
		})
		if err != nil {
			return 0, fmt.Errorf("source: %s: %w", one, err)
		}
	}
	return len(c.topics), nil
}

// receive implements parkingConn.
func (c *pulsarParking) receive(ctx context.Context, batch []Receipt) ([]Receipt, error) {
	got, err := c.entryReader.receive(ctx, batch)
	for i := range got {
		if d := got[i].Ref.(*entries.Delivered); d.Broken != nil {
			got[i].Unreadable = fmt.Sprintf("%s %d:%d (%v: %s)", d.Consumer.Topic(), d.ID.Ledger, d.ID.Entry, d.Broken.Reason, d.Broken.What)
		}
	}
	return got, err
}

// ack implements parkingConn.
func (c *pulsarParking) ack(a Ack) error {
	d := a.Ref.(*entries.Delivered)
	acked := make(chan error, 1)
	c.ackMu.Lock()
	c.unsure, c.failed, c.acked = slices.Clone(d.Chunks), nil, acked
	if d.Chunks == nil {
		c.unsure = []wire.ID{d.ID}
	}
	c.ackMu.Unlock()
	if err := d.Ack(); err != nil {
		return err
	}
	patience := time.NewTimer(parkingAnswer)
	defer patience.Stop()
	select {
	case err := <-acked:
		return err
	case <-patience.C:
		return errNoReceipt
	}
}

var errNoReceipt = errors.New("source: the broker has not confirmed the ack of a letter in time")

// receipt is told of confirmed acks, and of those that failed.
func (c *pulsarParking) receipt(ids []wire.AckID, err error) {
	c.ackMu.Lock()
	defer c.ackMu.Unlock()
	for _, id := range ids {
		at := slices.Index(c.unsure, id.ID)
		if at < 0 { // it was waited for too long
			continue
		}
		c.failed = cmp.Or(err, c.failed)
		if c.unsure = slices.Delete(c.unsure, at, at+1); len(c.unsure) == 0 {
			c.acked <- c.failed
		}
	}
}

// close implements parkingConn.
func (c *pulsarParking) close() { c.writer.close(c.entryReader.close) }
