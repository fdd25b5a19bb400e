package mailbox

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Which selects keys by their state.
type Which uint8

// The selections.
const (
	EveryKey    Which = iota // each key with events here
	WaitingKeys              // its first event waits
	RunningKeys              // its event runs
	FailingKeys              // its first event has failed, or a worker crashed that had it
)

// ListedKey is a key with events here.
type ListedKey struct {
	Key  event.Key
	Hash ring.KeyHash
	KeyState
}

// Weight estimates how long the events of the key have been here, all of them together, in
// seconds. The list of the worst keys is in its order: it is great for a key that is stuck,
// fails again and again, or gets more events than its handler can do.
func (k *KeyState) Weight(now clock.Instant) float64 {
	return weightOf(now, k.Accepted, k.Depth, k.Wait)
}

func weightOf(now, accepted clock.Instant, depth int, wait Wait) float64 {
	if wait == WaitHandler {
		depth++ // the one that runs is not among those that wait
	}
	return max(0, now.Sub(accepted).Seconds()) * float64(max(1, depth))
}

// KeyCounts counts the keys with events here by their state.
type KeyCounts struct {
	Keys, Waiting, Running, Failing int
	Chosen                          int // those that were asked for, listed or not
}

// WorstKeys collects the keys with the greatest weight.
type WorstKeys struct {
	Counts KeyCounts
	Keys   []ListedKey // the worst first

	now   clock.Instant
	which Which
	max   int
	heap  weighed
}

// listAtOnce bounds one step of a list: the lock of a shard is held for about 50 µs.
const listAtOnce = 4 * blockLen

// list is one step: it looks at the actors from a place on, and returns where to continue, 0 when
// it is done.
func (b *Boxes) list(from int, worst *WorstKeys) (next int) {
	end := min(from+listAtOnce, b.actors.places())
	for place := from; place < end; place++ {
		if a := b.actors.at(uint32(place)); a.part != nil {
			worst.consider(b, a)
		}
	}
	if end == b.actors.places() {
		return 0
	}
	return end
}

// first returns what runs of a key, or else the event that runs next, or without events the oldest waiting visit.
func (b *Boxes) first(a *actor) *item {
	switch {
	case a.running != nil:
		return a.running
	case a.head == nil && a.visited:
		return b.visits.of[a].head
	}
	return a.head
}

func (w *WorstKeys) consider(b *Boxes, a *actor) {
	it := b.first(a)
	if it == nil {
		return
	}
	runs, fails := a.wait == WaitHandler, it.attempts > 0 || it.crashes > 0
	w.Counts.count(runs, fails)
	if w.which == WaitingKeys && runs || w.which == RunningKeys && !runs || w.which == FailingKeys && !fails {
		return
	}
	w.Counts.Chosen++
	depth := int(a.depth)
	if a.visited {
		depth += int(b.visits.of[a].n)
	}
	weight := weightOf(w.now, it.cohort.at, depth, a.wait)
	if len(w.heap) == w.max {
		if weight <= w.heap[0].weight {
			return
		}
		heap.Pop(&w.heap)
	}
	heap.Push(&w.heap, weighedKey{weight, ListedKey{
		Key: event.Key(strings.Clone(string(a.key))), Hash: a.id, KeyState: b.state(a),
	}})
}

func (c *KeyCounts) count(runs, fails bool) {
	c.Keys++
	if runs {
		c.Running++
	} else {
		c.Waiting++
	}
	if fails {
		c.Failing++
	}
}

// Keys returns the worst keys of a selection, at most so many, which must be 1 or more. It
// visits all keys, and releases the lock of a shard between steps: a key whose state changes
// meanwhile may be missing.
func (m *Mailboxes) Keys(which Which, keysMax int) *WorstKeys {
	worst := &WorstKeys{now: m.now(), which: which, max: keysMax}
	for i := range m.shards {
		for next, more := 0, true; more; more = next > 0 {
			m.shards[i].with(func(b *Boxes) { next = b.list(next, worst) })
		}
	}
	slices.SortFunc(worst.heap, func(a, b weighedKey) int { return cmp.Compare(b.weight, a.weight) })
	for _, k := range worst.heap {
		worst.Keys = append(worst.Keys, k.ListedKey)
	}
	worst.heap = nil
	return worst
}

type weighedKey struct {
	weight float64
	ListedKey
}

// weighed is a heap of keys, the one with the least weight first.
type weighed []weighedKey

var _ heap.Interface = (*weighed)(nil)

func (h weighed) Len() int           { return len(h) }
func (h weighed) Less(i, j int) bool { return h[i].weight < h[j].weight }
func (h weighed) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is for container/heap only.
func (h *weighed) Push(x any) { *h = append(*h, x.(weighedKey)) }

// Pop is for container/heap only.
func (h *weighed) Pop() any {
	last := len(*h) - 1
	k := (*h)[last]
	*h = (*h)[:last]
	return k
}
