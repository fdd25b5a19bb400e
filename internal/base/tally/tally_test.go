package tally

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// TestTally: the first line is due at once, another one an interval later, with all that was counted since; none about nothing.
func TestTally(t *testing.T) {
	var counted Tally
	for i, c := range []struct {
		at  time.Duration
		n   int
		sum int // 0: no line
	}{
		{0, 0, 0},
		{0, 2, 2},
		{time.Second, 3, 0},
		{2 * time.Second, 0, 0},
		{10*time.Second - 1, 1, 0},
		{10 * time.Second, 1, 5},
		{20 * time.Second, 0, 0},
		{30 * time.Second, 4, 4},
		{39 * time.Second, 1, 0},
		{40 * time.Second, 0, 1},
	} {
		if sum, due := counted.Add(clock.Instant(1).Add(c.at), c.n, 10*time.Second); sum != c.sum || due != (c.sum > 0) {
			t.Errorf("step %d: %d are said, due: %v, want %d", i, sum, due, c.sum)
		}
	}
}
