// Package hotkeys finds the keys with the most events and those that keep their handlers busiest,
// among any number of keys, in constant memory and time for each event. It is pure.
//
// A [Sketch] is Space-Saving (Metwally, Agrawal, El Abbadi 2005) in sets: the hash of a key selects
// one of 256 sets, and each set keeps four keys with counters. An event of a key that has no
// counter takes over the least one of its set, with its count. So of the W in a set:
//
//   - a counter is never too small, and too great by its Error at most, which is at most W/4;
//   - every key with more than W/4 has a counter.
//
// W is about a 256th of everything, so that a key with more than a thousandth of all events, or of
// all time in handlers, has a counter, unless four greater keys are in its set. Sketches count
// for a window of time, and [Windows] compares the windows.
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
const SketchBytes = 2 * 2 * sets * ways * 32

// counter is a key in one set. Weight is what the set is ordered by.
type counter struct {
	key    ring.KeyHash
	weight uint64 // at most so much
	err    uint64 // of weight: may be of other keys
	other  uint64 // the other measure, since the key has the counter
}

// table is a Space-Saving in sets.
type table [sets][ways]counter

// add counts weight for a key, which must not be 0.
func (t *table) add(key ring.KeyHash, weight, other uint64) {
	set := &t[uint64(key)>>56] // the partition depends on all bits, so that those of one shard spread over all sets
	least := &set[0]
	for i := range set {
		c := &set[i]
		if c.key == key {
			c.weight += weight
			c.other += other
			return
		}
		if c.weight < least.weight {
			least = c
		}
	}
	least.key, least.err = key, least.weight
	least.weight += weight
	least.other = other
}

// Sketch counts the events of keys, and the time that they take. The zero value is ready for use.
type Sketch struct {
	byEvents table // other: nanoseconds
	byTime   table // other: events
}

// Add counts one event and the time that its handler took.
func (s *Sketch) Add(key ring.KeyHash, took time.Duration) {
	nanos := uint64(max(1, took))
	s.byEvents.add(key, 1, nanos)
	s.byTime.add(key, nanos, 1)
}

// Count is what a sketch knows of a key. Both measures are at most so great, and never less than
// the true one minus its error.
type Count struct {
	Key         ring.KeyHash
	Events      uint64
	EventsError uint64
	Busy        time.Duration // in handlers
	BusyError   time.Duration
}

// Top returns up to most keys with the most events and up to most that are busiest, by what is
// certain of them.
func (s *Sketch) Top(most int) []Count {
	found := make(map[ring.KeyHash]Count)
	for _, c := range s.byEvents.top(most) {
		found[c.key] = Count{Key: c.key, Events: c.weight, EventsError: c.err, Busy: time.Duration(c.other)}
	}
	for _, c := range s.byTime.top(most) {
		one, known := found[c.key]
		one.Key, one.Busy, one.BusyError = c.key, time.Duration(c.weight), time.Duration(c.err)
		if !known {
			one.Events = c.other
		}
		found[c.key] = one
	}
	all := make([]Count, 0, len(found))
	for _, c := range found {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Busy-b.BusyError, a.Busy-a.BusyError), cmp.Compare(a.Key, b.Key))
	})
	return all
}

func (t *table) top(most int) []counter {
	var all []counter
	for i := range t {
		for _, c := range t[i] {
			if c.weight > c.err {
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(a, b counter) int {
		return cmp.Or(cmp.Compare(b.weight-b.err, a.weight-a.err), cmp.Compare(a.key, b.key))
	})
	return all[:min(most, len(all))]
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
// Outgrows is when Busy reaches 1 if it goes on as in the last windows, by least squares: events
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
