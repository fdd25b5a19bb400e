package idlecpu

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// meter returns the CPU use since its last call.
type meter struct {
	used time.Duration
	at   clock.Instant
}

func newMeter() *meter {
	m := &meter{}
	m.period()
	return m
}

// period returns the CPU time of this process since the last call, and how long ago
// that was; both 0 if the system does not say.
func (m *meter) period() (used, period time.Duration) {
	total, err := cpuTime()
	if err != nil {
		return 0, 0
	}
	now := clock.Now()
	used, period = total-m.used, now.Sub(m.at)
	m.used, m.at = total, now
	return used, period
}
