package source

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// tally counts what has at most one line in the log in an interval. It belongs to one goroutine.
type tally struct {
	n     int           // since the last line
	noted clock.Instant // the time of the last line, 0: there was none
}

// add counts n more. It returns how many there are since the last line, and whether a line about them is due.
func (t *tally) add(now clock.Instant, n int, every time.Duration) (sum int, due bool) {
	t.n += n
	if t.n == 0 || t.noted != 0 && now.Sub(t.noted) < every {
		return 0, false
	}
	sum, t.n, t.noted = t.n, 0, now
	return sum, true
}
