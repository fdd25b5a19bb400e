package audit

import (
	"cmp"
	"slices"

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
const InvertedBytes = invertedSets * invertedWays * (invertedNameMax + 120)

// invertedKeys is a Space-Saving in sets, as in package hotkeys: a key without a counter takes over the least one of its set. So a
// key with more than a quarter of the inversions of its set, which has about a 64th of all, has a counter.
type invertedKeys [invertedSets][invertedWays]struct {
	InvertedKey // but its Name

	name   []byte // the memory stays for the next key
	weight uint64 // inversions, with those of the keys that had the counter before; 0: free
}

func (v *invertedKeys) add(now clock.Instant, d *event.Delivery, cause Cause) {
	hash, name := d.Key, d.Ref.Key()
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
		at.InvertedKey, at.name = InvertedKey{Hash: hash}, at.name[:0]
		if len(name) <= invertedNameMax {
			if cap(at.name) < len(name) {
				at.name = make([]byte, 0, len(name))
			}
			at.name = append(at.name, name...)
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
				key := c.InvertedKey
				key.Name = event.Key(c.name)
				all = append(all, key)
			}
		}
	}
	slices.SortFunc(all, func(a, b InvertedKey) int { return cmp.Or(cmp.Compare(b.Sum(), a.Sum()), cmp.Compare(a.Hash, b.Hash)) })
	return all
}
