package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/topicname"
)

// entryReader reads with package entries.
type entryReader struct {
	cfg    Config
	client *entries.Client
	queue  *entries.Queue

	// Of the source's reader.
	origins origins
	fetched []*entries.Delivered // from the queue; those before next were handed on
	next    int
	batches batches
	parser  wire.Parser

	mu         sync.Mutex // guards the fields below
	consumers  []*entries.Consumer
	unackedMax int
}

// entriesConfig returns the configuration of a client of package entries.
func entriesConfig(cfg Config, options *pulsar.ClientOptions) entries.Config {
	c := entries.DefaultConfig()
	c.URL = options.URL
	c.ChunkTimeout, c.CloseTimeout = cfg.ChunkedTimeout, cfg.CloseTimeout
	c.ChunkBytesMax, c.PayloadBytesMax = cfg.ChunkedBytesMax, cfg.PayloadBytesMax
	c.ConnectionsPerBrokerMax = cfg.BrokerConnectionsMax
	if options.ConnectionTimeout > 0 {
		c.ConnectTimeout = options.ConnectionTimeout
	}
	if options.OperationTimeout > 0 {
		c.OperationTimeout = options.OperationTimeout
	}
	return c
}

func newEntryReader(cfg Config, client entries.Config, access entries.Access, metrics *entries.Metrics, log *slog.Logger) (*entryReader, error) {
	c, err := entries.New(client, access, metrics, log)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	return &entryReader{cfg: cfg, client: c, queue: entries.NewQueue(), origins: make(origins)}, nil
}

// partitions implements reader.
func (r *entryReader) partitions(ctx context.Context, topic string) ([]string, error) {
	return r.client.Partitions(ctx, topic)
}

// subscribe implements reader.
func (r *entryReader) subscribe(ctx context.Context, s subscription) error {
	r.mu.Lock()
	unackedMax := r.unackedMax
	r.mu.Unlock()
	consumer, err := r.client.Subscribe(ctx, entries.Subscription{
		Topic: s.topic, Name: r.cfg.Subscription, Type: entries.Shared, FromEarliest: s.earliest, Properties: r.cfg.Properties,
		Consumer: r.cfg.ConsumerName, Permits: s.queue, UnackedMax: unackedMax, Queue: r.queue,
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.consumers = append(r.consumers, consumer)
	if r.unackedMax != unackedMax { // it changed meanwhile
		consumer.SetUnackedMax(r.unackedMax)
	}
	return nil
}

// fetchAhead implements reader.
func (r *entryReader) fetchAhead(name string, queue int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.consumers {
		if c.Topic() == name {
			c.SetPermits(queue)
		}
	}
}

// bound implements reader.
func (r *entryReader) bound(unacked int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unackedMax = unacked
	for _, c := range r.consumers {
		c.SetUnackedMax(unacked)
	}
}

// batchBytesMax bounds the bytes that are received at once, but for the last entry: the bound of all that is open is checked in between.
const batchBytesMax = 8 << 20

// receive implements reader.
func (r *entryReader) receive(ctx context.Context, batch []Receipt) ([]Receipt, error) {
	for len(batch) == 0 { // again if no entry had an event
		if r.next == len(r.fetched) {
			var err error
			r.next = 0
			r.fetched, err = r.queue.Receive(ctx, r.fetched[:0], r.cfg.BatchMax)
			switch {
			case errors.Is(err, entries.ErrLost): // also if ctx has ended meanwhile: it is told once
				r.forget(err)
				return batch, fmt.Errorf("%w: %w", errLost, err)
			case err != nil:
				return batch, err
			}
		}
		began, events, bytes := r.next, 0, 0
		for ; r.next < len(r.fetched) && events < r.cfg.BatchMax && bytes < batchBytesMax; r.next++ {
			d := r.fetched[r.next]
			d.Open(&r.parser)
			receipt, ok := r.receipt(d)
			d.Entry, d.Raw = wire.Entry{}, nil // the events alias what they need of it; the rest can be freed
			if ok {
				batch = append(batch, receipt)
				events += receipt.Entry.Len()
				bytes += receipt.Entry.Bytes
			}
		}
		entries.Take(r.fetched[began:r.next]...)
		clear(r.fetched[began:r.next])
	}
	return batch, nil
}

// forget removes the consumer that an error reports as lost.
func (r *entryReader) forget(err error) {
	var lost *entries.LostError
	if !errors.As(err, &lost) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.consumers = slices.DeleteFunc(r.consumers, func(c *entries.Consumer) bool { return c == lost.Consumer })
}

// receipt returns the receipt of an entry, and reports false if none of its events is to be handed on.
func (r *entryReader) receipt(d *entries.Delivered) (_ Receipt, ok bool) {
	from := r.origins.of(d.Consumer.Topic(), &r.cfg)
	switch {
	case d.Broken != nil:
		return brokenReceipt(d, from), true
	case d.Entry.Metadata.Encryption.Present():
		return encryptedReceipt(d, from), true
	case d.Entry.Metadata.Marker:
		_ = d.Ack() // as in ackCompacted
		return Receipt{}, false
	case !d.Entry.Batched:
		return unbatchedReceipt(d, from), true
	}
	receipt, removed, intact := r.batches.receipt(d, from, r.cfg.Counting)
	if !intact {
		return brokenReceipt(d, from), true
	}
	if removed != nil {
		r.ackCompacted(d, removed, receipt.Entry.Len())
	}
	return receipt, receipt.Has.First() >= 0
}

// ackCompacted acks the events of a batch that compaction has removed: nothing else would. Under CountEntries they go with the others, if
// there are any.
func (r *entryReader) ackCompacted(d *entries.Delivered, removed event.Bits, total int) {
	if removed.Len() == total {
		removed = nil
	} else if r.cfg.Counting == CountEntries {
		return
	}
	_ = r.ack(Ack{Events: removed, Total: total, Ref: d}) // it fails if the consumer is closed; then another one gets the entry
}

// ack implements reader.
func (r *entryReader) ack(a Ack) error {
	d, ok := a.Ref.(*entries.Delivered)
	if !ok {
		return fmt.Errorf("source: %T is not an entry", a.Ref)
	}
	if a.Events == nil || a.Total == 1 {
		return d.Ack()
	}
	left := event.AllBits(a.Total)
	left.RemoveAll(a.Events)
	return d.AckPart(left, a.Total)
}

// ends implements reader.
func (r *entryReader) ends(ctx context.Context) ([]End, error) {
	r.mu.Lock()
	consumers := slices.Clone(r.consumers)
	r.mu.Unlock()
	ends := make([]End, 0, len(consumers))
	for _, c := range consumers {
		base, partition := topicname.Split(c.Topic())
		mark := c.Mark()
		id, err := c.LastID(ctx)
		// Lost: receive has not told it yet. Moved to another cluster meanwhile: which of the two has answered is not known.
		if errors.Is(err, entries.ErrLost) || err == nil && c.Mark() != mark {
			ends = append(ends, unknownEnd(base, marked(partition, c.Mark())))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("source: last message ids: %w", err)
		}
		ends = append(ends, End{Topic: base, Partition: marked(partition, mark), Last: EntryID{Ledger: id.Ledger, Entry: id.Entry}})
	}
	return ends, nil
}

// close implements reader.
func (r *entryReader) close() { r.client.Close() }
