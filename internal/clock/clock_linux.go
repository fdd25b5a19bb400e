package clock

import "golang.org/x/sys/unix"

// Covers is empty: CLOCK_BOOTTIME goes on during suspend.
const Covers = ""

// Now returns the present instant. It costs about 300 ns: call it once per
// batch, never per event. Safe for concurrent use.
func Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock: CLOCK_BOOTTIME: " + err.Error()) // since Linux 2.6.39 it cannot fail
	}
	return Instant(ts.Nano())
}
