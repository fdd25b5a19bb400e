// Package hotkeys finds the keys with the most events and those that keep their handlers busiest,
// among any number of keys, in constant memory and time for each event. It is pure.
//
// A [Sketch] is Space-Saving (Metwally, Agrawal, El Abbadi 2005) in sets: the hash of a key selects
// one of 256 sets, and each set keeps four keys with counters. An event of a key that has no
// counter takes over the least one of its set, with its count. So of the W in a set:
//
//   - a counter is never too small, and too great by the least of its set at most, which is at most W/4;
//   - every key with more than W/4 has a counter.
//
// W is about a 256th of everything, so that a key with more than a thousandth of all events, or of
// all time in handlers, has a counter, unless four greater keys are in its set. A set is one cache
// line: most of the cost of an event is to load it. Sketches count for a window of time, and
// [Windows] compares the windows.
package hotkeys

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/ringfence/router/ring"
)

const (
	sets = 256
	ways = 4
)

// SketchBytes is the memory of the sketches of a shard: one counts, and the one before is looked at.
const SketchBytes = 2 * 2 * sets * 64

// set is four keys and their counters. An unused counter is 0.
type set struct {
	keys   [ways]ring.KeyHash
	counts [ways]uint64
}

// table is a Space-Saving in sets.
type table [sets]set

// of returns the set of a key. The partition of a key depends on all bits of its hash, so the keys
// of one shard are in all sets.
func (t *table) of(key ring.KeyHash) *set { return &t[uint64(key)>>56] }

// at returns the place of a key in its set, or that of the least counter.
func (s *set) at(key ring.KeyHash) (place int, found bool) {
	for i := range s.keys {
		if s.keys[i] == key && s.counts[i] > 0 {
			return i, true
		}
		if s.counts[i] < s.counts[place] {
			place = i
		}
	}
	return place, false
}

// least returns the least counter of a set: no counter of it is too great by more.
func (s *set) least() uint64 { return min(s.counts[0], s.counts[1], s.counts[2], s.counts[3]) }

// Sketch counts the events of keys, and the time that they take. The zero value is ready for use.
type Sketch struct {
	byEvents table
	byTime   table // each counter has microseconds above eventBits, and below them the events since the key has it
}

const (
	eventBits = 24
	eventMask = 1<<eventBits - 1
)

// Add counts one event and the time that its handler took.
func (s *Sketch) Add(key ring.KeyHash, took time.Duration) {
	often := s.byEvents.of(key)
	at, _ := often.at(key)
	often.keys[at] = key
	often.counts[at]++
	*s.timed(key, took)++
}

// AddTime counts time of a handler whose event is not over.
func (s *Sketch) AddTime(key ring.KeyHash, took time.Duration) { s.timed(key, took) }

// timed counts the time of a handler, and returns its counter.
func (s *Sketch) timed(key ring.KeyHash, took time.Duration) *uint64 {
	long := s.byTime.of(key)
	at, found := long.at(key)
	if !found {
		long.keys[at] = key
		long.counts[at] &^= eventMask
	}
	long.counts[at] += uint64(max(1, took.Microseconds())) << eventBits
	return &long.counts[at]
}

// Peek loads what Add will need, so that the cache misses of many events overlap. The result is of
// no meaning.
func (s *Sketch) Peek(key ring.KeyHash) int {
	return int(s.byEvents.of(key).counts[0] + s.byTime.of(key).counts[0])
}

// Count is what a sketch knows of a key: each true value is at most the one here, and at least that minus
// its error. Busy is 0 if the key has no counter of time; without a counter of events, Events are those
// since it got its counter of time.
type Count struct {
	Key         ring.KeyHash
	Events      uint64
	EventsError uint64
	Busy        time.Duration // in handlers, each rounded down to microseconds, and 1 at least
	BusyError   time.Duration
}

// count returns what is known of a key.
func (s *Sketch) count(key ring.KeyHash) Count {
	c := Count{Key: key}
	long, often := s.byTime.of(key), s.byEvents.of(key)
	if at, found := long.at(key); found {
		c.Busy, c.BusyError = timeOf(long.counts[at]), timeOf(long.least())
		c.Events = long.counts[at] & eventMask
	}
	if at, found := often.at(key); found {
		c.Events, c.EventsError = often.counts[at], often.least()
	}
	return c
}

func timeOf(count uint64) time.Duration { return time.Duration(count>>eventBits) * time.Microsecond }

// Top returns up to most keys with the most events and up to most that are busiest, by what is
// certain of them.
func (s *Sketch) Top(most int) []Count {
	keys := append(s.byEvents.top(most), s.byTime.top(most)...)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	all := make([]Count, len(keys))
	for i, key := range keys {
		all[i] = s.count(key)
	}
	slices.SortStableFunc(all, func(a, b Count) int { return cmp.Compare(b.Busy-b.BusyError, a.Busy-a.BusyError) })
	return all
}

// top returns the keys with the greatest counters, by what is certain of them.
func (t *table) top(most int) []ring.KeyHash {
	type certain struct {
		key    ring.KeyHash
		weight uint64
	}
	var all []certain
	for i := range t {
		for j, count := range t[i].counts {
			if least := t[i].least(); count > least {
				all = append(all, certain{t[i].keys[j], count - least})
			}
		}
	}
	slices.SortFunc(all, func(a, b certain) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.key, b.key))
	})
	keys := make([]ring.KeyHash, min(most, len(all)))
	for i := range keys {
		keys[i] = all[i].key
	}
	return keys
}

const (
	windowsMax = 6 // that are compared
	trendMin   = 3 // windows that a forecast needs

	// forecastMin is the part of its turn that a key must need for a forecast, and forecastMax the
	// longest time that is foretold.
	forecastMin = 0.1
	forecastMax = time.Hour
)

// window is the top keys of one stretch of time.
type window struct {
	length time.Duration
	counts map[ring.KeyHash]Count
}

// Windows keeps the top keys of the last windows of a member. Not safe for concurrent use.
type Windows struct{ last []window } // the oldest first

// Add adds the counts of a window, of all shards: a key is in one of them.
func (w *Windows) Add(length time.Duration, counts []Count) {
	one := window{length, make(map[ring.KeyHash]Count, len(counts))}
	for _, c := range counts {
		one.counts[c.Key] = c
	}
	if len(w.last) == windowsMax {
		w.last = slices.Delete(w.last, 0, 1)
	}
	w.last = append(w.last, one)
}

// Key is a key as the last window has it.
type Key struct {
	Hash     ring.KeyHash
	Rate     float64 // events a second that were handled
	Busy     float64 // the part of the time in which its handler ran: the rate times the time of the handler
	Outgrows time.Duration
}

// NotForeseen is the Outgrows of a key that is not foreseen to need more than its turn.
const NotForeseen = time.Duration(math.MaxInt64)

// Keys returns the top keys of the last window, the busiest first.
//
// Outgrows is when Busy reaches 1 if it continues as in the last windows, by least squares: events
// of the key then come faster than they can be handled one at a time. It is 0 if Busy has
// reached [Full].
func (w *Windows) Keys() []Key {
	if len(w.last) == 0 {
		return nil
	}
	newest := w.last[len(w.last)-1]
	all := make([]Key, 0, len(newest.counts))
	for hash, c := range newest.counts {
		k := Key{Hash: hash, Rate: float64(c.Events) / newest.length.Seconds(), Busy: newest.busy(hash)}
		k.Outgrows = w.outgrows(&k)
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Busy, a.Busy), cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Hash, b.Hash))
	})
	return all
}

func (w *window) busy(hash ring.KeyHash) float64 {
	return (w.counts[hash].Busy - w.counts[hash].BusyError).Seconds() / w.length.Seconds()
}

// Full is the part of the time from which on a key counts as always busy: the rest goes by
// between its events.
const Full = 0.95

func (w *Windows) outgrows(k *Key) time.Duration {
	if k.Busy >= Full {
		return 0
	}
	if len(w.last) < trendMin || k.Busy < forecastMin {
		return NotForeseen
	}
	// The slope of busy over time, with the end of the last window as time 0.
	var n, sumT, sumB, sumTT, sumTB float64
	at := 0.0
	for i := len(w.last) - 1; i >= 0; i-- {
		b := w.last[i].busy(k.Hash)
		n, sumT, sumB, sumTT, sumTB = n+1, sumT+at, sumB+b, sumTT+at*at, sumTB+at*b
		at -= w.last[i].length.Seconds()
	}
	slope := (n*sumTB - sumT*sumB) / (n*sumTT - sumT*sumT)
	in := (1 - k.Busy) / slope
	if slope <= 0 || in > forecastMax.Seconds() {
		return NotForeseen
	}
	return time.Duration(in * float64(time.Second))
}

// TopMax is the number of keys by each measure that a window keeps, of each shard.
const TopMax = 16
