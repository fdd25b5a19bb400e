package clock

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Covers is empty: the lease clock runs during a suspend.
const Covers = ""

// steady is the lease clock of this process.
var steady = newSteady(Read)

// hasRaw is whether the system has a CLOCK_MONOTONIC_RAW, as Linux has since 2.6.28; some
// systems that only look like Linux have none.
var hasRaw = func() bool { return tryGettime(unix.CLOCK_MONOTONIC_RAW) > 0 }()

// began is an instant of Go's monotonic clock at a known CLOCK_MONOTONIC: Go reads that clock
// without a system call, for a tenth of the cost.
var (
	began   = time.Now()
	beganAt = monotonicAt(began)
)

// monotonicAt returns the value of CLOCK_MONOTONIC at t, or some hundred nanoseconds more,
// never less: a smaller value would make the time asleep too great.
func monotonicAt(t time.Time) time.Duration {
	const tries = 16 // the one that was interrupted least counts
	at := time.Duration(1<<63 - 1)
	for range tries {
		since := time.Since(t)
		at = min(at, gettime(unix.CLOCK_MONOTONIC)-since)
	}
	return at
}

// Slewable reports whether NTP can change the rate of the lease clock.
func Slewable() bool { return !hasRaw || forceSlewed }

// Now returns the present instant. It costs about 400 ns: call it once per batch, never
// per event. Safe for concurrent use.
func Now() Instant {
	r := Read()
	if Slewable() {
		return Instant(r.Boot)
	}
	return steady.Now(r)
}

// Read reads the clocks of the system. Raw is zero where there is none.
func Read() (r Reading) {
	if hasRaw {
		r.Raw = gettime(unix.CLOCK_MONOTONIC_RAW)
	}
	r.Boot, r.Mono = steered()
	return r
}

// bootNow returns CLOCK_BOOTTIME.
func bootNow() time.Duration {
	boot, _ := steered()
	return boot
}

// unsteered returns CLOCK_BOOTTIME and CLOCK_MONOTONIC, read in this order.
func unsteered() (boot, mono time.Duration) {
	boot = gettime(unix.CLOCK_BOOTTIME)
	return boot, beganAt + time.Since(began)
}

func gettime(id int32) time.Duration {
	t := tryGettime(id)
	if t < 0 {
		panic("clock: the kernel refuses to read a clock") // since Linux 2.6.39 it cannot fail
	}
	return t
}

// tryGettime returns a clock's value, or -1. The call does not block, so it skips the notice to
// the scheduler that unix.ClockGettime gives at a cost of 100 ns.
func tryGettime(id int32) time.Duration {
	var ts unix.Timespec
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(id), uintptr(unsafe.Pointer(&ts)), 0); errno != 0 { //nolint:gosec // the system call writes one Timespec
		return -1
	}
	return time.Duration(ts.Nano())
}
