package clock

import (
	"sync/atomic"
	"time"
)

// FastFor is how long a [Fast] extrapolates from one reading of the clock, by Go's monotonic
// clock.
const FastFor = time.Millisecond

// Fast is a cheap check whether an instant has passed, for every event: it reads the clock at
// most every [FastFor], and after each suspend, and extrapolates by Go's monotonic clock, which
// costs about 60 ns instead of 400.
//
// Its instants may be ahead of the clock, by the duration of an interruption of a reading, and
// are off by NTP's correction of the system clock within FastFor: by 0.11 ms at most. So it may
// decide that something must not start any more; a lease or a deadline must never be counted
// from it. The zero Fast is ready; safe for concurrent use.
type Fast struct {
	reading atomic.Pointer[fastReading] // the newest; nil: none yet
}

// fastReading holds the clocks' values at the last reading of the lease clock.
type fastReading struct {
	mono int64 // Go's monotonic clock
	wall int64 // the wall clock less mono
	now  Instant
}

// fastStep is a change of the wall clock against the monotonic one that makes a [Fast] read
// the clock again. Both are slewed alike, so the wall clock moves against the other when it
// is set, and in a suspend, by exactly its length. That it is set costs a reading; the
// time that it shows decides nothing.
const fastStep = 100 * time.Microsecond

var fastBegan = time.Now()

// Now returns the present instant.
func (f *Fast) Now() Instant {
	now := time.Now()
	mono := int64(now.Sub(fastBegan))
	return f.at(mono, now.UnixNano()-mono, Now)
}

func (f *Fast) at(mono, wall int64, read func() Instant) Instant {
	r := f.reading.Load()
	if r == nil || mono-r.mono >= int64(FastFor) || wall-r.wall > int64(fastStep) || r.wall-wall > int64(fastStep) {
		// The monotonic clock was read first, so an interruption here makes the result too great.
		r = &fastReading{mono: mono, wall: wall, now: read()}
		f.reading.Store(r)
	}
	return r.now.Add(time.Duration(mono - r.mono))
}
