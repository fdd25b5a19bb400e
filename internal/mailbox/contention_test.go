package mailbox

import (
	"container/list"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/testing/contention"
)

// BenchmarkContention takes events through the mailboxes on all cores: each goroutine accepts them as a reader of a stream, and takes and
// finishes those of its worker. Beside it, a cache behind one mutex only finds out which events are new, which is part of what mailboxes do.
// Both remember as many ids, and are full.
func BenchmarkContention(b *testing.B) {
	const idsMax = 1 << 15
	b.Run("mailboxes", func(b *testing.B) {
		cfg := DefaultConfig()
		cfg.WindowBytesMax = idsMax * recordBytes
		boxes := NewMailboxes(cfg, outcome.DefaultConfig(), "a", clock.Now)
		boxes.SetGates(openAll(), event.Position{}, new(Output))
		all := benchEvents(64 * contention.Batch) // of different keys
		work := func(worker int) func() {
			var out Output
			id := event.WorkerID(worker + 1)
			boxes.WorkerUp(id, &out)
			from := worker % 64 * contention.Batch
			events := all[from : from+contention.Batch]
			ids := event.MessageID{Ledger: int64(worker), Batch: -1, TopicPartition: -1}
			var deliveries []event.Delivery
			var results []event.Result
			return func() {
				out.Reset()
				fresh := make([]event.Event, len(events)) // as decoded: those of the last operation may still wait for another worker
				for i := range fresh {
					ids.Entry++
					fresh[i] = *events[i]
					fresh[i].ID = ids
				}
				batch := make([]*event.Event, len(fresh))
				for i := range fresh {
					batch[i] = &fresh[i]
				}
				boxes.Accept(Local, event.Position{}, event.RefsTo(batch...), &out)
				deliveries = boxes.Take(openLease, id, contention.Batch, deliveries[:0])
				results = results[:0]
				for _, d := range deliveries {
					results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
				}
				boxes.Finish(results, &out)
			}
		}
		const filler = 1 << 20 // beyond the numbers of workers
		for fill, i := work(filler), 0; i < 2*idsMax/contention.Batch; i++ {
			fill()
		}
		boxes.WorkerGone(filler+1, new(Output))
		contention.Run(b, work)
	})
	b.Run("mutex cache", func(b *testing.B) {
		cache := newMutexCache(idsMax, DefaultConfig().WindowAgeMax)
		for i := range int64(idsMax) {
			cache.seen(event.MessageID{Ledger: -1, Entry: i}, clock.Now())
		}
		contention.Run(b, func(worker int) func() {
			id := event.MessageID{Ledger: int64(worker), Batch: -1, TopicPartition: -1}
			return func() {
				for range contention.Batch {
					id.Entry++
					if cache.seen(id, clock.Now()) {
						b.Errorf("%v is new", id)
					}
				}
			}
		})
	})
}

// mutexCache is the obvious way to find events that come again: a map and a list behind one mutex. It holds the newest ids for a time.
type mutexCache struct {
	countMax int
	ageMax   time.Duration

	mu    sync.Mutex
	order *list.List // of cached, the newest first
	ids   map[event.MessageID]*list.Element
}

type cached struct {
	id event.MessageID
	at clock.Instant
}

func newMutexCache(countMax int, ageMax time.Duration) *mutexCache {
	return &mutexCache{countMax: countMax, ageMax: ageMax, order: list.New(), ids: make(map[event.MessageID]*list.Element)}
}

// seen reports whether id is in the cache, and puts it there.
func (c *mutexCache) seen(id event.MessageID, now clock.Instant) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.ids[id]; e != nil && now.Sub(e.Value.(cached).at) < c.ageMax {
		c.order.MoveToFront(e)
		return true
	}
	c.ids[id] = c.order.PushFront(cached{id, now})
	for c.order.Len() > c.countMax {
		oldest := c.order.Back()
		delete(c.ids, oldest.Value.(cached).id)
		c.order.Remove(oldest)
	}
	return false
}
