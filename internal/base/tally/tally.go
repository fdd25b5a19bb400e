// Package tally counts incidents that can come in thousands, so that they are logged together.
package tally

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// Tally is a count of incidents. The zero Tally is ready. It is not safe for concurrent use.
type Tally struct {
	n     int           // since the last line
	noted clock.Instant // the time of the last line, 0: there was none
}

// Add counts n more. If a line is due, at most once in every, it returns how many there were since the last one.
func (t *Tally) Add(now clock.Instant, n int, every time.Duration) (sum int, due bool) {
	t.n += n
	if t.n == 0 || t.noted != 0 && now.Sub(t.noted) < every {
		return 0, false
	}
	sum, t.n, t.noted = t.n, 0, now
	return sum, true
}
