// Package timerslack lets the kernel wake the threads of a process a little late.
//
// Go's runtime has a thread of its own, sysmon, that looks every 20 µs for threads in a long system call, and takes their processors away. In a
// process with small batches of work it runs a thousand times a second and more, and each processor that it takes costs two more thread switches.
// Its interval cannot be set, but it sleeps by the kernel's timers: with a timer slack of a millisecond it looks every millisecond, and all timers
// of the process may be that late (ADR 0054).
package timerslack

import "time"

const (
	// Wide is the slack of a router. No promise depends on timers: deadlines are compared with a clock.
	Wide = time.Millisecond

	// Default is the kernel's.
	Default = 50 * time.Microsecond
)
