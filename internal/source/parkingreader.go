package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// pulsarParking is a parkingConn of two clients of its own. It reads with package entries, which bounds what a message can become: anybody who may
// produce to the topic chooses that. It writes with pulsar-client-go, whose calls may hang.
type pulsarParking struct {
	cfg        Config
	reader     *entries.Client
	queue      *entries.Queue
	writer     *sdk
	partitions []string // names of the topic partitions
	origins    origins
	batches    batches
	parser     wire.Parser

	mu      sync.Mutex // guards the field below
	waiting map[wire.ID]*parkingAck
}

// parkingAck waits for the receipts of a letter.
type parkingAck struct {
	left int // entries without a receipt
	err  error
	done chan error
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
	cfg := entriesConfig(p.cfg, &access.Client)
	cfg.AckGroupMax = 1                                                                                  // each is waited for
	cfg.ChunkBytesMax = cfg.PayloadBytesMax + parkingHead                                                // an event that came compressed may be a letter in chunks
	reader, err := entries.New(cfg, access.Entries, entries.NewMetrics(prometheus.NewRegistry()), p.log) // the router's are about events
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	return &pulsarParking{
		cfg: p.cfg, reader: reader, queue: entries.NewQueue(), writer: new(sdk), origins: make(origins), waiting: make(map[wire.ID]*parkingAck),
	}, nil
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
		busy := hasKeeper(err)
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
	if c.partitions, err = c.reader.Partitions(ctx, c.cfg.ParkingTopic()); err != nil {
		return err
	}
	var consumers []*entries.Consumer
	for _, one := range c.partitions {
		consumer, err := c.reader.Subscribe(ctx, entries.Subscription{
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
	for _, one := range c.partitions {
		options := pulsar.ProducerOptions{Topic: one, SendTimeout: pulsarsend.NoTimeout, DisableBatching: true}
		producer, err := await(ctx, c.writer, func() (pulsar.Producer, error) { return c.writer.client.CreateProducer(options) }, pulsar.Producer.Close)
		if err != nil {
			return 0, fmt.Errorf("source: producer for %s: %w", one, err)
		}
		mark := &pulsar.ProducerMessage{Payload: []byte{}, Properties: map[string]string{propertyParkedEnd: value}, DisableReplication: true}
		_, err = await(ctx, c.writer, func() (struct{}, error) {
			defer producer.Close()
			return struct{}{}, pulsarsend.Send(ctx, producer, mark, parkingAnswer)
		}, func(struct{}) {})
		if err != nil {
			return 0, fmt.Errorf("source: %s: %w", one, err)
		}
	}
	return len(c.partitions), nil
}

// next implements parkingConn.
func (c *pulsarParking) next(ctx context.Context) (m *event.Message, ref any, why string, err error) {
	got, err := c.queue.Receive(ctx, nil, 1)
	if err != nil {
		return nil, nil, "", err
	}
	d := got[0]
	d.Open(&c.parser)
	m = c.message(d)
	if d.Broken != nil {
		why = fmt.Sprintf("%s %d:%d (%v: %s)", d.Consumer.Topic(), d.ID.Ledger, d.ID.Entry, d.Broken.Reason, d.Broken.What)
	}
	d.Entry, d.Raw = wire.Entry{}, nil // acking needs neither
	entries.Take(d)
	return m, d, why, nil
}

// message returns the message of an entry, nil if it cannot be read or if no router can have written it. Only the payload aliases the entry: all else is kept
// for letters whose payload is not.
func (c *pulsarParking) message(d *entries.Delivered) *event.Message {
	if d.Broken != nil || d.Entry.Metadata.Encryption.Present() || d.Entry.Metadata.Marker || d.Entry.Batched && d.Entry.Events > 1 {
		return nil
	}
	from := c.origins.of(d.Consumer.Topic(), &c.cfg)
	r, ok := unbatchedReceipt(d, from), true
	if d.Entry.Batched {
		r, _, ok = c.batches.receipt(d, from, CountEvents)
	}
	if !ok || r.Has.First() < 0 {
		return nil
	}
	m := r.Entry.Message(0)
	m.Key, m.OrderingKey = strings.Clone(m.Key), strings.Clone(m.OrderingKey)
	own := make([]event.Property, 0, len(m.Event.Properties))
	for _, p := range m.Event.Properties {
		own = append(own, event.Property{Name: strings.Clone(p.Name), Value: strings.Clone(p.Value)})
	}
	slices.SortFunc(own, byName)
	m.Event.Properties, m.Event.Key = own, ""
	return &m
}

// ack implements parkingConn.
func (c *pulsarParking) ack(ref any) error {
	d := ref.(*entries.Delivered)
	ids := d.Chunks
	if ids == nil {
		ids = []wire.ID{d.ID}
	}
	a := &parkingAck{left: len(ids), done: make(chan error, 1)}
	c.mu.Lock()
	for _, id := range ids {
		c.waiting[id] = a
	}
	c.mu.Unlock()
	defer c.forget(ids)
	if err := d.Ack(); err != nil {
		return err
	}
	patience := time.NewTimer(parkingAnswer)
	defer patience.Stop()
	select {
	case err := <-a.done:
		return err
	case <-patience.C:
		return errNoReceipt
	}
}

var errNoReceipt = errors.New("source: the broker has not confirmed the ack of a letter in time")

func (c *pulsarParking) forget(ids []wire.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		delete(c.waiting, id)
	}
}

// receipt is told of confirmed acks, and of those that failed.
func (c *pulsarParking) receipt(ids []wire.AckID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		a := c.waiting[id.ID]
		if a == nil {
			continue
		}
		delete(c.waiting, id.ID)
		if err != nil {
			a.err = err
		}
		if a.left--; a.left == 0 {
			a.done <- a.err
		}
	}
}

// close implements parkingConn.
func (c *pulsarParking) close() { c.writer.close(c.reader.Close) }
