package entries

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Delivered is an entry that a broker has sent, or a message assembled from chunks. The receiver owns it and all memory it refers to.
type Delivered struct {
	Consumer   *Consumer
	Cluster    uint64  // that ID belongs to: a topic can move to another cluster, which may use the ids again
	ID         wire.ID // of the entry; for a message in chunks, of the entry that arrived last
	Redelivery uint32
	AckSet     []uint64 // a bit for each event that is not acked yet; nil: all
	Entry      wire.Entry
	Chunks     []wire.ID         // all entries of a message in chunks, which are acked together: first its chunks in order, then those that repeat one
	Missing    int               // number of its chunks that have not come; then it is broken
	Broken     *wire.BrokenError // the reason if Entry is incomplete; nil: complete, except for a batch that Split has not seen
	Raw        []byte            // the entry as sent; for a message in chunks, the payloads of all if it is broken, else nil
	Permits    int               // permits that the broker deducted for it
	Waits      bool              // a chunk that waits for the rest of its message, without its bytes: it only tells how far a reader is
	Unfinished int               // of a reader: messages whose first chunk has come, and that are not whole yet. More may have been given up for want of room or time

	from   *session
	read   *reading // nil: its consumer is no reader
	resume wire.ID  // see reading.from
	taken  bool
	part   bool // a chunk by itself
	first  bool // that is the first of its message
}

// openMax bounds the bytes of payloads that are decompressed before they enter the queue. Permits count events, not
// bytes, and thousands of waiting entries of a few KiB may each declare tens of MiB. Beyond the bound, the receiver
// decompresses them, one at a time.
const openMax = 32 << 20

// Open decompresses the payload of an entry that has waited compressed; if it is broken, it sets Broken. The receiver calls it once for each entry, before
// anything else.
func (d *Delivered) Open(p *wire.Parser) {
	if d.Broken != nil || !d.Entry.Compressed {
		return
	}
	if err := p.Open(&d.Entry, d.Consumer.client.cfg.PayloadBytesMax); err != nil {
		d.markBroken(err)
	} else if d.Chunks != nil {
		d.Raw = nil
	}
}

// eventsMax bounds the events of a batch. Producers put a thousand into a batch; a compressed entry could claim many millions.
const eventsMax = 1 << 17

// Split appends the events of a batch to dst, which refer to the entry, and reports true. If the batch is broken, it sets Broken, appends
// nothing and reports false. The receiver calls it once for each batch that is neither broken nor encrypted.
func (d *Delivered) Split(dst []wire.Single) ([]wire.Single, bool) {
	if d.Entry.Events > eventsMax {
		d.markBroken(&wire.BrokenError{Reason: wire.ReasonBatch, What: "too many events"})
		return dst, false
	}
	singles, err := d.Entry.Split(dst)
	if err != nil {
		d.markBroken(err)
		return dst, false
	}
	return singles, true
}

// markBroken sets Broken, and counts it.
func (d *Delivered) markBroken(err error) {
	if !errors.As(err, &d.Broken) {
		d.Broken = &wire.BrokenError{Reason: wire.ReasonMetadata, What: err.Error()}
	}
	d.Consumer.client.metrics.broken.WithLabelValues(d.Broken.Reason.String()).Inc()
}

// Take returns the permits of received entries, so that the broker may send as many events again. The receiver calls it once for each
// entry, as soon as it has room for more.
func Take(batch ...*Delivered) {
	for len(batch) > 0 {
		from, n := batch[0].from, 1
		for n < len(batch) && batch[n].from == from {
			n++
		}
		from.take(batch[:n])
		batch = batch[n:]
	}
}

// Queue collects the entries that the consumers of one source receive. Permits bound it.
type Queue struct {
	ready chan struct{} // signals entries or lost consumers

	mu      sync.Mutex // guards the fields below
	entries []*Delivered
	lost    []error

	bytes atomic.Int64 // of the payloads of entries
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{ready: make(chan struct{}, 1)} }

// Receive waits until there are entries, and appends up to entriesMax of them to dst. It returns a [LostError] for each
// consumer that has ended by itself, before all entries, and the error of ctx.
func (q *Queue) Receive(ctx context.Context, dst []*Delivered, entriesMax int) ([]*Delivered, error) {
	for {
		if got, err := q.poll(dst, entriesMax); len(got) > len(dst) || err != nil {
			return got, err
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return dst, ctx.Err()
		}
	}
}

func (q *Queue) poll(dst []*Delivered, entriesMax int) ([]*Delivered, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var err error
	if len(q.lost) > 0 { // first: a backlog of other topic partitions may never end
		err, q.lost = q.lost[0], q.lost[1:]
		entriesMax = 0
	}
	n := min(len(q.entries), entriesMax)
	for _, d := range q.entries[:n] {
		q.bytes.Add(-int64(len(d.Entry.Payload)))
		if d.read != nil {
			d.read.received(d)
		}
	}
	dst = append(dst, q.entries[:n]...)
	clear(q.entries[:n])
	if q.entries = q.entries[n:]; len(q.entries) == 0 {
		q.entries = nil // free the used array
	}
	if len(q.entries) > 0 || len(q.lost) > 0 { // wakes another receiver, or the next call
		signal.Set(q.ready)
	}
	return dst, err
}

// Len returns the number of waiting entries.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}

// opens reports whether a payload may be decompressed before it waits.
func (q *Queue) opens() bool { return q.bytes.Load() < openMax }

func (q *Queue) push(d *Delivered) {
	q.bytes.Add(int64(len(d.Entry.Payload)))
	q.mu.Lock()
	q.entries = append(q.entries, d)
	q.mu.Unlock()
	signal.Set(q.ready)
}

// drop removes the entries of a subscription that has ended: the broker redelivers them.
func (q *Queue) drop(from *session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.entries = slices.DeleteFunc(q.entries, func(d *Delivered) bool {
		if d.from == from {
			q.bytes.Add(-int64(len(d.Entry.Payload)))
		}
		return d.from == from
	})
}

func (q *Queue) lose(err error) {
	q.mu.Lock()
	q.lost = append(q.lost, err)
	q.mu.Unlock()
	signal.Set(q.ready)
}
