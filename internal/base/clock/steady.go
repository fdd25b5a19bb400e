package clock

import (
	"sync/atomic"
	"time"
)

// SlewMax bounds how far a clock that NTP steers can be off the hardware counter, as a
// part of its rate. Linux accepts a tick of 10 ± 1 ms, a frequency of ± 500 ppm and a
// single adjustment of ± 500 ppm on top (kernel/time/ntp.c); it is built to follow up to
// 11 % (clocksource_max_adjustment), which is above their sum.
const SlewMax = 0.11

// Reading holds the values of a system's clocks, as the time since boot, read in the order of
// the fields.
type Reading struct {
	Raw  time.Duration // the hardware counter: stops in a suspend, and nothing steers it
	Boot time.Duration // runs during a suspend; NTP steers it
	Mono time.Duration // stops in a suspend; NTP steers it exactly as it steers Boot
}

// shortSleep is the longest suspend that is ignored. The difference of Boot and Mono changes
// only in a suspend, but they are not read at the same moment: below this, a change counts as
// the time between the two readings.
const shortSleep = time.Millisecond

// Steady computes the lease clock from readings: Raw plus the time asleep. It never goes
// backward, and is behind by at most [shortSleep]. The zero Steady is ready; it is safe
// for concurrent use.
type Steady struct {
	asleep atomic.Int64 // in nanoseconds; it only grows
}

// Now returns the instant at which r.Raw was read.
func (s *Steady) Now(r Reading) Instant {
	// Mono is read after Boot, so this is at most the time asleep: a goroutine that is
	// interrupted between the two makes it too small, and too small a value is ignored.
	asleep := int64(r.Boot - r.Mono)
	for {
		have := s.asleep.Load()
		if asleep-have <= int64(shortSleep) {
			return Instant(int64(r.Raw) + have)
		}
		s.asleep.CompareAndSwap(have, asleep)
	}
}

// newSteady returns a Steady that knows the time asleep to some hundred nanoseconds, so
// that processes of one machine agree on their instants: of several readings the one
// counts that was interrupted least.
func newSteady(read func() Reading) *Steady {
	const tries = 16
	best := read()
	for range tries {
		if r := read(); r.Boot-r.Mono > best.Boot-best.Mono {
			best = r
		}
	}
	s := new(Steady)
	s.Now(best)
	return s
}

// Careful returns the reading of several whose parts lie closest together. Use it to
// compare readings, as [Steering] does.
func Careful() Reading {
	const tries = 8
	best := Read()
	for range tries {
		if r := Read(); r.Mono-r.Raw < best.Mono-best.Raw {
			best = r
		}
	}
	return best
}

// Steering returns the relative amount by which the system clock ran faster than the hardware
// counter between two readings; slower is negative. ok is false if the time between them is too
// short to tell.
func Steering(from, to Reading) (ratio float64, ok bool) {
	const least = 100 * time.Millisecond
	raw := to.Raw - from.Raw
	if raw < least {
		return 0, false
	}
	return float64(to.Mono-from.Mono)/float64(raw) - 1, true
}
