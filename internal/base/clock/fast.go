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
	boot time.Duration // CLOCK_BOOTTIME
}

// fastStep is a change of the wall clock against the monotonic one that makes a [Fast] read
// the clock again. Both are slewed alike, so the wall clock moves against the other when it
// is set, and in a suspend, by exactly its length. That it is set costs a reading; the
// time that it shows decides nothing.
const fastStep = 100 * time.Microsecond

var fastBegan = time.Now()

// Both returns the present instant, and the present CLOCK_BOOTTIME, which may be off by the duration of an interruption
// in either direction: if a reading is interrupted it is tried again, a few times.
func (f *Fast) Both() (Instant, time.Duration) {
	now := time.Now()
	mono := int64(now.Sub(fastBegan))
	return f.at(mono, now.UnixNano()-mono, readBoth)
}

func (f *Fast) at(mono, wall int64, read func(time.Duration) (Instant, time.Duration)) (Instant, time.Duration) {
	r := f.reading.Load()
	if r == nil || mono-r.mono >= int64(FastFor) || wall-r.wall > int64(fastStep) || r.wall-wall > int64(fastStep) {
		// The monotonic clock was read first, so an interruption here makes the instant too great.
		r = &fastReading{mono: mono, wall: wall}
		r.now, r.boot = read(time.Duration(mono))
		f.reading.Store(r)
	}
	ahead := time.Duration(mono - r.mono)
	return r.now.Add(ahead), r.boot + ahead
}

// bootErrorMax is the longest reading of CLOCK_BOOTTIME that is taken at once.
const bootErrorMax = 2 * time.Microsecond

// readBoth reads the lease clock and what CLOCK_BOOTTIME was when Go's monotonic clock showed mono. Of several tries the one that took least
// counts: all intervals of handlers until the next reading would be shifted by an interruption.
func readBoth(mono time.Duration) (now Instant, boot time.Duration) {
	const tries = 8
	now = Now()
	least := time.Duration(1<<63 - 1)
	for range tries {
		before := time.Since(fastBegan)
		at := bootNow()
		took := time.Since(fastBegan) - before
		if took < least {
			least, boot = took, at-(before+took/2-mono)
		}
		if took <= bootErrorMax {
			break
		}
	}
	return now, boot
}
