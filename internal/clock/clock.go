// Package clock is the only place that reads the clock that leases run on.
//
// The clock is CLOCK_BOOTTIME where the system has it: unlike Go's monotonic
// clock it goes on while the machine is suspended, so that a lease runs out
// during a suspend too (golang/go#24595). It is not comparable between machines.
// On systems without such a clock [Covers] says what is missing.
package clock

import "time"

// Instant is a point on the boot-time clock of this machine, as the time since
// boot. It is not a time.Time on purpose: wall-clock time decides nothing here,
// and the compiler keeps the two apart. The zero Instant is long past.
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
