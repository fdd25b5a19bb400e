package entries

import (
	"context"
	"slices"
	"sync"

	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Delivered is an entry that a broker has sent, or a message that came in chunks. The receiver owns it, and all that it refers to.
type Delivered struct {
	Consumer   *Consumer
	ID         wire.ID // of the entry; of a message in chunks, of the one that came last
	Partition  int32   // as the broker names it, -1 for none
	Redelivery uint32
	AckSet     []uint64 // the events that are not acked yet, by their bits; nil: all
	Entry      wire.Entry
	Chunks     []wire.ID         // of a message that came in chunks: all its entries, which are acked together
	Broken     *wire.BrokenError // why Entry is incomplete; nil: it is not
	Raw        []byte            // the entry as it came; of a message in chunks the payloads of all, if it is broken, else nil
	Permits    int               // what the broker took for it

	from  *session
	taken bool
}

// Take says that entries were taken from the queue, so that the broker may send as many events again. The receiver calls it once for each
// that it has received, as soon as there is room for others.
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

// Queue collects what the consumers of one source receive. Permits bound it.
type Queue struct {
	ready chan struct{} // signals that there is something

	mu      sync.Mutex // guards the fields below
	entries []*Delivered
	lost    []error
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{ready: make(chan struct{}, 1)} }

// Receive waits until there are entries, and appends up to entriesMax of them to dst. It returns a [LostError] for each
// consumer that has ended by itself, and the error of ctx.
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
	n := min(len(q.entries), entriesMax)
	dst = append(dst, q.entries[:n]...)
	clear(q.entries[:n])
	if q.entries = q.entries[n:]; len(q.entries) == 0 {
		q.entries = nil // the array grows from the beginning again
	}
	var err error
	if n == 0 && len(q.lost) > 0 {
		err, q.lost = q.lost[0], q.lost[1:]
	}
	if len(q.entries) > 0 || len(q.lost) > 0 { // for another receiver, and the next call
		signal.Set(q.ready)
	}
	return dst, err
}

// Len returns how many entries wait.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}

func (q *Queue) push(d *Delivered) {
	q.mu.Lock()
	q.entries = append(q.entries, d)
	q.mu.Unlock()
	signal.Set(q.ready)
}

// drop removes the entries of a subscription that has ended: the broker delivers them again.
func (q *Queue) drop(from *session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.entries = slices.DeleteFunc(q.entries, func(d *Delivered) bool { return d.from == from })
}

func (q *Queue) lose(err error) {
	q.mu.Lock()
	q.lost = append(q.lost, err)
	q.mu.Unlock()
	signal.Set(q.ready)
}
