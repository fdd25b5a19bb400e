package clock

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Production reads the hardware's counter plus the time asleep, as the kernel reports it.
func TestNowIsTheRawClockPlusTheTimeAsleep(t *testing.T) {
	if Slewable() {
		t.Skip("this system has no CLOCK_MONOTONIC_RAW")
	}
	asleep := gettime(unix.CLOCK_BOOTTIME) - gettime(unix.CLOCK_MONOTONIC)
	for try := 0; ; try++ {
		before := gettime(unix.CLOCK_MONOTONIC_RAW)
		now := time.Duration(Now())
		after := gettime(unix.CLOCK_MONOTONIC_RAW)
		const slack = 2 * shortSleep
		if now >= before+asleep-slack && now <= after+asleep+slack {
			return
		}
		if try == 20 {
			t.Fatalf("the lease clock shows %v between %v and %v, and the machine has slept for %v", now, before, after, asleep)
		}
	}
}

func TestMonoIsNeverTooSmall(t *testing.T) {
	for range 1_000 {
		before := gettime(unix.CLOCK_MONOTONIC)
		if _, mono := unsteered(); mono < before {
			t.Fatalf("Go's clock gives %v for CLOCK_MONOTONIC after %v", mono, before)
		}
	}
}
