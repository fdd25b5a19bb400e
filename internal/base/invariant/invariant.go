// Package invariant asserts conditions that must never be false, and reports failures.
//
// A broken invariant is a bug in this repository, never an effect of input. In test builds
// (-race, or -tags invariants) it panics, so that the test fails at the place of the bug. In
// production it is counted, and [Check] returns false, so that the caller abandons the affected
// operation instead of the process.
package invariant

import "sync/atomic"

var failures atomic.Uint64

// Check returns ok. When ok is false it panics with the text what in test builds, and counts a
// failure in all other builds. It is safe for concurrent use and costs one branch while ok is true,
// so what must be a constant, without formatting.
func Check(ok bool, what string) bool {
	if !ok {
		fail(what)
	}
	return ok
}

// Failures returns how many checks have failed in this process. It is a metric
// with an alert: anything but 0 is a bug.
func Failures() uint64 { return failures.Load() }

func fail(what string) {
	failures.Add(1)
	if Enabled {
		panic("invariant broken: " + what)
	}
}
