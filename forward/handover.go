package forward

import (
	"fmt"
	"sync"

	"github.com/ringfence/router/internal/event"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// Window holds the ids of events of a partition that were done lately, oldest first.
// Whoever works on the partition next answers those events instead of working on them
// again. Without it the promises hold all the same, but for one: an event that the
// broker delivers once more may be handled twice.
type Window struct {
	Partition ring.Partition
	IDs       []event.MessageID
}

// handover holds the windows that are on their way to peers. Its methods are safe for
// concurrent use.
type handover struct {
	idsMax int

	mu     sync.Mutex
	ids    int // in all queues
	queues map[Peer][]Window
	empty  chan struct{} // closed when ids falls to zero; nil: nobody waits
}

// put queues windows and returns how many ids there was no room for.
func (h *handover) put(to Peer, windows []Window) (dropped int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range windows {
		if h.ids+len(w.IDs) > h.idsMax {
			dropped += len(w.IDs)
			continue
		}
		h.ids += len(w.IDs)
		h.queues[to] = append(h.queues[to], w)
	}
	return dropped
}

// take takes up to idsMax ids of one window from the queue of a peer, and tells
// whether more are there.
func (h *handover) take(to Peer, idsMax int) (w Window, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	queue := h.queues[to]
	if len(queue) == 0 {
		return Window{}, false
	}
	w = queue[0]
	if len(w.IDs) > idsMax {
		queue[0].IDs = w.IDs[idsMax:]
		w.IDs = w.IDs[:idsMax]
	} else {
		queue[0] = Window{}
		queue = queue[1:]
	}
	h.keep(to, queue, len(w.IDs))
	return w, len(queue) > 0
}

// keepOnly drops what is for others than these peers, and returns how many ids that was.
func (h *handover) keepOnly(listed map[Peer]string) (dropped int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for to, queue := range h.queues {
		if _, ok := listed[to]; ok {
			continue
		}
		ids := 0
		for _, w := range queue {
			ids += len(w.IDs)
		}
		dropped += ids
		h.keep(to, nil, ids)
	}
	return dropped
}

// keep says what remains in a queue after so many ids were taken out.
func (h *handover) keep(to Peer, queue []Window, taken int) {
	h.queues[to] = queue
	if len(queue) == 0 {
		delete(h.queues, to)
	}
	h.ids -= taken
	if h.ids == 0 && h.empty != nil {
		close(h.empty)
		h.empty = nil
	}
}

// done returns what is closed as soon as nothing waits.
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

// encode returns w as it stands on the wire.
func (w Window) encode() *peerv1.Window {
	wire := &peerv1.Window{
		Partition:       uint32(w.Partition),
		LedgerIds:       make([]int64, len(w.IDs)),
		EntryIds:        make([]int64, len(w.IDs)),
		BatchIndexes:    make([]int32, len(w.IDs)),
		TopicPartitions: make([]int32, len(w.IDs)),
	}
	for i, id := range w.IDs {
		wire.LedgerIds[i], wire.EntryIds[i] = id.Ledger, id.Entry
		wire.BatchIndexes[i], wire.TopicPartitions[i] = id.Batch, id.TopicPartition
	}
	return wire
}

// decodeWindow reads a window that a peer has sent.
func decodeWindow(wire *peerv1.Window) (Window, error) {
	n := len(wire.GetLedgerIds())
	switch {
	case wire.GetPartition() >= ring.Partitions:
		return Window{}, fmt.Errorf("%w: a window of partition %d", errFrame, wire.GetPartition())
	case n > frameItemsMax || len(wire.GetEntryIds()) != n || len(wire.GetBatchIndexes()) != n || len(wire.GetTopicPartitions()) != n:
		return Window{}, fmt.Errorf("%w: a window of %d ledgers, %d entries, %d batch indexes and %d topic partitions",
			errFrame, n, len(wire.GetEntryIds()), len(wire.GetBatchIndexes()), len(wire.GetTopicPartitions()))
	}
	w := Window{Partition: ring.Partition(wire.GetPartition()), IDs: make([]event.MessageID, n)}
	for i := range w.IDs {
		w.IDs[i] = event.MessageID{
			Ledger: wire.GetLedgerIds()[i], Entry: wire.GetEntryIds()[i],
			Batch: wire.GetBatchIndexes()[i], TopicPartition: wire.GetTopicPartitions()[i],
		}
	}
	return w, nil
}
