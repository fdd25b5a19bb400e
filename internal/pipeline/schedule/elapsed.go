package schedule

import "time"

// elapsed reports whether wait has passed since then. It also reports true if the clock went back by more than wait:
// it is then unknown how much time has passed, and a step of the clock must not delay anything for hours.
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
