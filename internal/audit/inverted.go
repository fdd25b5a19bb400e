package audit

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// InvertedKey is a key whose events began out of order.
type InvertedKey struct {
	Hash   partition.KeyHash
	Name   event.Key      // "" if it is longer than invertedNameMax
	Causes [causes]uint64 // how often, since the key has a counter: at least so often
	Last   clock.Instant
}

// Sum returns how often events of the key began out of order, at least.
func (k *InvertedKey) Sum() (all uint64) {
	for _, n := range k.Causes {
		all += n
	}
	return all
}

const (
	invertedSets    = 64
	invertedWays    = 4
	invertedNameMax = 1 << 10 // bytes of a longer key are not kept
)

// InvertedBytes is the most memory that an [Inversions] takes for the keys with the most inversions.
const InvertedBytes = invertedSets * invertedWays * (invertedNameMax + 96)

// invertedKeys is a Space-Saving in sets, as in package hotkeys: a key without a counter takes over the least one of its set. So a
// key with more than a quarter of the inversions of its set, which has about a 64th of all, has a counter.
type invertedKeys [invertedSets][invertedWays]struct {
	InvertedKey

	weight uint64 // inversions, with those of the keys that had the counter before; 0: free
}

func (v *invertedKeys) add(now clock.Instant, e *event.Event, cause Cause) {
	hash := partition.HashOf(string(e.Key))
	set := &v[spread(uint64(hash))%invertedSets]
	at := &set[0]
	for i := range set {
		if c := &set[i]; c.Hash == hash && c.weight > 0 {
			at = c
			break
		} else if c.weight < at.weight {
			at = c
		}
	}
	if at.weight == 0 || at.Hash != hash {
		at.InvertedKey = InvertedKey{Hash: hash}
		if len(e.Key) <= invertedNameMax {
			at.Name = event.Key(strings.Clone(string(e.Key))) // the event's may be a part of its batch
		}
	}
	at.weight++
	at.Causes[cause]++
	at.Last = now
}

// top returns the keys with the most inversions first.
func (v *invertedKeys) top() (all []InvertedKey) {
	for i := range v {
		for j := range v[i] {
			if c := &v[i][j]; c.weight > 0 {
				all = append(all, c.InvertedKey)
			}
		}
	}
	slices.SortFunc(all, func(a, b InvertedKey) int { return cmp.Or(cmp.Compare(b.Sum(), a.Sum()), cmp.Compare(a.Hash, b.Hash)) })
	return all
}
