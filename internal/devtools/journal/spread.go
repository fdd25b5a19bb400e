package journal

import (
	"math/bits"
	"time"
)

// Spread sums up many durations in little memory. Quantiles are rounded up by at
// most 1/32; the count and the longest one are exact.
type Spread struct {
	Count uint64        `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

const (
	stepBits = 5 // 32 steps per power of two
	steps    = 1 << stepBits
)

// histogram counts durations in buckets that grow by powers of two, each cut in
// equal steps. The zero histogram is empty.
type histogram struct {
	buckets [(64 - stepBits + 1) * steps]uint64
	count   uint64
	max     time.Duration
}

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.buckets[bucketOf(d)]++
	h.count++
	h.max = max(h.max, d)
}

// bucketOf keeps the highest stepBits+1 bits of d.
func bucketOf(d time.Duration) int {
	shift := max(0, bits.Len64(uint64(d))-stepBits-1)
	return shift<<stepBits + int(uint64(d)>>shift)
}

// bucketEnd returns the longest duration that falls in bucket b.
func bucketEnd(b int) time.Duration {
	shift := max(0, b>>stepBits-1)
	mantissa := uint64(b - shift<<stepBits)
	return time.Duration((mantissa+1)<<shift - 1)
}

// quantile returns the duration that the q-th part of all does not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.count))
	var seen uint64
	for b, n := range h.buckets {
		if seen += n; seen > rank {
			return min(bucketEnd(b), h.max)
		}
	}
	return h.max
}

func (h *histogram) spread() Spread {
	return Spread{Count: h.count, P50: h.quantile(0.50), P99: h.quantile(0.99), Max: h.max}
}
