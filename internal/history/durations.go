package history

import (
	"math/bits"
	"time"
)

// durationBuckets is the number of bounds of Durations: each is four times the one before.
const durationBuckets = 12

// firstBound is the first bound.
const firstBound = 100 * time.Microsecond

// Durations counts durations by size: up to 100 µs, 400 µs, 1.6 ms and so on to 7 minutes, and
// more. The zero value is ready for use. It is not safe for concurrent use.
type Durations struct {
	counts [durationBuckets + 1]uint64
	sum    time.Duration
	n      uint64
}

// Add adds one duration.
func (d *Durations) Add(took time.Duration) { d.AddMany(took, 1) }

// AddMany adds a duration n times.
func (d *Durations) AddMany(took time.Duration, n int) {
	took = max(0, took)
	count := uint64(n)
	d.counts[bucketOf(took)] += count
	d.sum += took * time.Duration(n)
	d.n += count
}

// bucketOf returns the first bound that is not less than a duration.
func bucketOf(took time.Duration) int {
	if took <= firstBound {
		return 0
	}
	return min((bits.Len64(uint64((took-1)/firstBound))+1)/2, durationBuckets)
}

// Plus returns the durations of both.
func (d Durations) Plus(e Durations) Durations {
	for i, n := range e.counts {
		d.counts[i] += n
	}
	d.sum += e.sum
	d.n += e.n
	return d
}

// Histogram returns what a histogram of Prometheus holds: the number of durations, their sum in
// seconds, and how many of them are at most as long as each bound.
func (d *Durations) Histogram() (n uint64, sum float64, buckets map[float64]uint64) {
	buckets = make(map[float64]uint64, durationBuckets)
	bound, upTo := firstBound, uint64(0)
	for _, count := range d.counts[:durationBuckets] {
		upTo += count
		buckets[float64(bound)/float64(time.Second)] = upTo // a round number, unlike bound.Seconds()
		bound *= 4
	}
	return d.n, d.sum.Seconds(), buckets
}
