//go:build !linux

package clock

import "time"

// Covers names the missing properties of this system's clock.
const Covers = "leases run on a clock that may stop while this machine sleeps: a machine that was suspended can act on a lease that has run out"

var start = time.Now()

// Slewable reports whether NTP can change the rate of the lease clock.
func Slewable() bool { return true }

// Now returns the present instant. Safe for concurrent use.
func Now() Instant { return Instant(time.Since(start)) + 1 }

// Shared returns the present instant on the clock that the journals of processes of one
// machine share. On this system it is the lease clock of this process alone.
func Shared() Instant { return Now() }

// Read reads the clocks of the system. There is no Raw on this one.
func Read() Reading {
	now := time.Duration(Now())
	return Reading{Boot: now, Mono: now}
}

// bootNow returns what Read calls Boot.
func bootNow() time.Duration { return time.Duration(Now()) }
