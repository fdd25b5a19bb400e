// Package backoff computes the delays between attempts: each twice the one before, up to
// a maximum. It reads no clock and draws no random number; only [Sleep] waits.
package backoff

import (
	"context"
	"time"
)

// Backoff counts the delays of one series of failed attempts. Not safe for concurrent use.
type Backoff struct {
	Min, Max time.Duration // the first delay, more than 0, and the longest
	Last     time.Duration // the newest delay; 0: none yet
}

// Next returns the next delay: Min, or twice the newest one, and at most Max.
func (b *Backoff) Next() time.Duration {
	b.Last = min(max(double(b.Last, b.Max), b.Min), b.Max)
	return b.Last
}

// Reset restarts the delays, after a success.
func (b *Backoff) Reset() { b.Last = 0 }

// IsMaxBackoffReached reports whether the newest delay is Max. With it a *Backoff is a
// policy of Pulsar's client.
func (b *Backoff) IsMaxBackoffReached() bool { return b.Last >= b.Max }

// Nth returns delay number n of a series, from 1; for n < 1 that is the first.
func Nth(first, longest time.Duration, n int) time.Duration {
	d := min(first, longest)
	for ; n > 1 && d < longest; n-- {
		d = double(d, longest)
	}
	return d
}

// double returns twice d, at most longest, also where a Duration cannot hold twice d.
func double(d, longest time.Duration) time.Duration {
	if d > longest/2 {
		return longest
	}
	return 2 * d
}

// Jitter shortens d by up to half of it, so that attempts that failed together are not made
// together again: random picks one of the delays from d/2 to d.
func Jitter(d time.Duration, random uint64) time.Duration {
	return d - time.Duration(random%uint64(d/2+1))
}

// Sleep waits for d and returns nil, or returns ctx.Err() as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
