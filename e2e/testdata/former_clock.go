package journal

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/router/internal/clock"
)

// asleep is how long the machine has slept so far: it does not sleep during a test.
var asleep = func() (d time.Duration) {
	const tries = 16 // the least interrupted one counts
	for range tries {
		boot := read(unix.CLOCK_BOOTTIME)
		d = max(d, boot-read(unix.CLOCK_MONOTONIC))
	}
	return d
}()

// shared is the clock of journals since ADR 0025. That of the former commit is steered by
// NTP, so instants of one cannot be compared with those of the other.
func shared() clock.Instant { return clock.Instant(read(unix.CLOCK_MONOTONIC_RAW) + asleep) }

func read(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}
