package schedule

import "time"

// elapsed reports whether wait has passed since then. If the clock went back by more than wait
// nobody knows, and it counts as passed: a step of the clock delays nothing for hours.
func elapsed(now, then time.Time, wait time.Duration) bool {
	d := now.Sub(then)
	return d >= wait || d < -wait
}

// after is when elapsed becomes true.
func after(now, then time.Time, wait time.Duration) time.Time {
	if elapsed(now, then, wait) {
		return now
	}
	return then.Add(wait)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
