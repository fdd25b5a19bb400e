//go:build unix

package idlecpu

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is this process's CPU time, in the kernel and outside.
func cpuTime() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("CPU time of this process: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
