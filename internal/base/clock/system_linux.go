//go:build !slewclock

package clock

import "time"

// forceSlewed is for builds with the tag slewclock.
const forceSlewed = false

func steered() (boot, mono time.Duration) { return unsteered() }

// Shared returns the present instant on the clock that the journals of processes of one
// machine share, which is the lease clock.
func Shared() Instant { return Now() }
