// Package clock reads the clock that leases run on. No other package reads it.
//
// On Linux the clock is CLOCK_MONOTONIC_RAW plus the time that the machine was asleep, which is
// CLOCK_BOOTTIME minus CLOCK_MONOTONIC ([Steady]):
//
//   - it keeps running while the machine is suspended, unlike Go's monotonic clock, so that
//     a lease expires during a suspend too (golang/go#24595);
//   - its rate is that of the hardware counter. NTP steers CLOCK_MONOTONIC and
//     CLOCK_BOOTTIME, by up to 8.3 % in chrony's default settings and 11 % at most
//     ([SlewMax]), while the ownership protocol assumes that clocks agree within 1 %.
//
// Instants of processes of one machine can be compared with one another; those of two
// machines cannot. A process in a time namespace sees clocks that are shifted by a
// constant: its leases are correct, but its instants can be compared only with
// those of processes in the same namespace.
//
// On systems without such clocks [Covers] and [Slewable] report the missing properties.
//
// # Clocks for tests
//
// A build with the tag slewclock simulates a system whose NTP daemon steers the clock; see
// slew_linux.go. Tests with real processes use it; production never does.
package clock

import "time"

// Instant is a point on the lease clock of this machine, as the time since boot. It is
// not a time.Time on purpose: wall-clock time decides nothing here, and the compiler
// keeps the two apart. The zero Instant is long past.
type Instant time.Duration

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns how much later i is than j.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Before reports whether i is earlier than j.
func (i Instant) Before(j Instant) bool { return i < j }

// After reports whether i is later than j.
func (i Instant) After(j Instant) bool { return i > j }

// Forever is an instant that never comes.
const Forever = Instant(1<<63 - 1)
