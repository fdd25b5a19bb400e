package mailbox

import (
	"slices"
	"sort"
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

// Weight estimates how long the events, calls and reservations of the key have been here, all
// of them together, in seconds. The list of the worst keys is in its order: it is great for a key
// that is stuck, fails again and again, or gets more work than its handler can do.
func (k *KeyState) Weight(now clock.Instant) float64 {
	return weightOf(now, k.Accepted, k.Depth+k.Calls, k.Wait)
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
	worst []*weighedKey // the worst first
}

type weighedKey struct {
	weight float64
	ListedKey
}

// walkAtOnce bounds one step of a walk: the lock of a shard is held for about 50 µs.
const walkAtOnce = 4 * blockLen

// walk calls look with all actors, and releases the lock between steps: an actor that comes meanwhile may be missing.
func (s *shard) walk(look func(*Boxes, *actor)) {
	for from, more := 0, true; more; from += walkAtOnce {
		s.with(func(b *Boxes) {
			for place := from; place < min(from+walkAtOnce, b.actors.places()); place++ {
				if a := b.actors.at(uint32(place)); a.part != nil {
					look(b, a)
				}
			}
			more = from+walkAtOnce < b.actors.places()
		})
	}
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
		depth += int(b.visits.of[a].depth)
	}
	weight := weightOf(w.now, it.cohort.at, depth, a.wait)
	i := sort.Search(len(w.worst), func(i int) bool { return w.worst[i].weight < weight })
	if i == w.max {
		return
	}
	w.worst = slices.Insert(w.worst[:min(len(w.worst), w.max-1)], i, &weighedKey{weight, ListedKey{
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
		m.shards[i].walk(worst.consider)
	}
	for _, k := range worst.worst {
		worst.Keys = append(worst.Keys, k.ListedKey)
	}
	worst.worst = nil
	return worst
}
