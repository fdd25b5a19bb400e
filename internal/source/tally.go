package source

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// tallyEvery is the least time between two lines in the log about one tally.
const tallyEvery = 10 * time.Second

// tally counts incidents that can come in thousands, so that they are logged together, once in tallyEvery. It belongs to
// one goroutine.
type tally struct {
	n     int           // since the last line
	noted clock.Instant // the time of the last line, 0: there was none
}

// add counts n more. If a line is due, it returns how many there were since the last one.
func (t *tally) add(now clock.Instant, n int) (sum int, due bool) {
	t.n += n
	if t.n == 0 || t.noted != 0 && now.Sub(t.noted) < tallyEvery {
		return 0, false
	}
	sum, t.n, t.noted = t.n, 0, now
	return sum, true
}
