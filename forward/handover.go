package forward

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// handover queues ids of recently finished events on partitions that have moved, for
// their next owners, which then answer those events instead of running them again.
// Without it an event that the broker delivers once more may be handled twice; all other
// guarantees hold. Its methods are safe for concurrent use.
type handover struct {
	idsMax int

	mu     sync.Mutex
	ids    int // in all queues, and under way to a peer
	queues map[Peer][]event.Finished
	empty  chan struct{} // closed when ids falls to zero; nil without a waiter
}

// put queues ids and returns the number of those without room.
func (h *handover) put(to Peer, done []event.Finished) (dropped int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	room := min(len(done), h.idsMax-h.ids)
	if room == 0 {
		return len(done)
	}
	h.ids += room
	h.queues[to] = append(h.queues[to], done[:room]...)
	return len(done) - room
}

// take moves up to idsMax ids from the queue of a peer to dst, and reports whether more
// wait. The caller passes their number to taken in the end.
func (h *handover) take(to Peer, idsMax int, dst []event.Finished) (_ []event.Finished, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	queue := h.queues[to]
	if len(queue) == 0 {
		return dst, false
	}
	n := min(idsMax, len(queue))
	dst = append(dst, queue[:n]...)
	h.keep(to, queue[n:])
	return dst, len(queue) > n
}

// taken releases ids that take returned: the peer has them, or they are lost.
func (h *handover) taken(ids int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.release(ids)
}

// keepOnly drops the ids for peers that are not listed, and returns their number.
func (h *handover) keepOnly(listed map[Peer]string) (dropped int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for to, queue := range h.queues {
		if _, ok := listed[to]; !ok {
			dropped += len(queue)
			h.keep(to, nil)
			h.release(len(queue))
		}
	}
	return dropped
}

// keep replaces the queue of a peer.
func (h *handover) keep(to Peer, queue []event.Finished) {
	h.queues[to] = queue
	if len(queue) == 0 {
		delete(h.queues, to)
	}
}

// release subtracts ids from the backlog, and closes empty when none remain.
func (h *handover) release(ids int) {
	h.ids -= ids
	if h.ids == 0 && h.empty != nil {
		close(h.empty)
		h.empty = nil
	}
}

// done returns a channel that is closed when the backlog is empty.
func (h *handover) done() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids == 0 {
		none := make(chan struct{})
		close(none)
		return none
	}
	if h.empty == nil {
		h.empty = make(chan struct{})
	}
	return h.empty
}

// encodeWindow returns the wire form of ids.
func encodeWindow(now clock.Instant, done []event.Finished) *peerv1.Window {
	wire := &peerv1.Window{
		Partitions:      make([]uint32, len(done)),
		AgesMs:          make([]uint32, len(done)),
		LedgerIds:       make([]int64, len(done)),
		EntryIds:        make([]int64, len(done)),
		BatchIndexes:    make([]int32, len(done)),
		TopicPartitions: make([]int32, len(done)),
	}
	for i, d := range done {
		wire.Partitions[i] = uint32(d.Partition)
		wire.AgesMs[i] = uint32(min(max(0, now.Sub(d.At)), ageMax) / time.Millisecond)
		wire.LedgerIds[i], wire.EntryIds[i] = d.ID.Ledger, d.ID.Entry
		wire.BatchIndexes[i], wire.TopicPartitions[i] = d.ID.Batch, d.ID.TopicPartition
		if d.Content != (event.Content{}) {
			if wire.Contents == nil {
				wire.Contents = make([]byte, len(done)*contentBytes)
			}
			copy(wire.Contents[i*contentBytes:], d.Content[:])
		}
	}
	return wire
}

// contentBytes is the length of one digest in a window.
const contentBytes = len(event.Content{})

// ageMax exceeds the age of every remembered id.
const ageMax = 1 << 31 * time.Millisecond

// decodeWindow reads ids from the wire. Peers of older versions send one partition for all
// ids, or no ages.
func decodeWindow(now clock.Instant, wire *peerv1.Window) ([]event.Finished, error) {
	n, partitions, ages := len(wire.GetLedgerIds()), wire.GetPartitions(), wire.GetAgesMs()
	if n > frameItemsMax {
		return nil, fmt.Errorf("%w: a window of %d ids", errFrame, n)
	}
	if len(partitions) == 0 {
		partitions = slices.Repeat([]uint32{wire.GetPartition()}, n)
	}
	if len(ages) == 0 {
		ages = make([]uint32, n)
	}
	if len(partitions) != n || len(ages) != n || len(wire.GetEntryIds()) != n || len(wire.GetBatchIndexes()) != n || len(wire.GetTopicPartitions()) != n {
		return nil, fmt.Errorf("%w: a window of %d ledgers, %d partitions, %d ages, %d entries, %d batch indexes and %d topic partitions", errFrame,
			n, len(partitions), len(ages), len(wire.GetEntryIds()), len(wire.GetBatchIndexes()), len(wire.GetTopicPartitions()))
	}
	contents := wire.GetContents()
	if len(contents) != 0 && len(contents) != n*contentBytes {
		return nil, fmt.Errorf("%w: a window of %d ids and %d bytes of contents", errFrame, n, len(contents))
	}
	done := make([]event.Finished, n)
	for i := range done {
		if partitions[i] >= ring.Partitions {
			return nil, fmt.Errorf("%w: a window of partition %d", errFrame, partitions[i])
		}
		done[i] = event.Finished{
			Partition: ring.Partition(partitions[i]),
			ID: event.MessageID{
				Ledger: wire.GetLedgerIds()[i], Entry: wire.GetEntryIds()[i],
				Batch: wire.GetBatchIndexes()[i], TopicPartition: wire.GetTopicPartitions()[i],
			},
			At: now.Add(-time.Duration(ages[i]) * time.Millisecond),
		}
		if len(contents) != 0 {
			copy(done[i].Content[:], contents[i*contentBytes:])
		}
	}
	return done, nil
}
