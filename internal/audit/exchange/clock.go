package exchange

import (
	"sync"
	"time"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/base/clock"
)

// clockID names the boot clock of this process.
var clockID = sync.OnceValue(readClockID)

// Here returns the clocks of this process, with their wandering as far as w knows it.
func Here(w *audit.Wander) audit.Clock {
	boot, lease := bothClocks()
	return w.Clock(audit.Clock{ID: clockID(), Boot: boot, Lease: lease, Slewed: clock.Slewable()})
}

// Note adds the present reading of both clocks to w.
func Note(w *audit.Wander) { w.Note(bothClocks()) }

// bothClocks reads the boot clock and the lease clock together. Of several tries the one that took least counts.
func bothClocks() (boot, lease time.Duration) {
	const tries = 8
	least := time.Duration(1<<63 - 1)
	for range tries {
		before := clock.Now()
		at := clock.Read().Boot
		after := clock.Now()
		if took := after.Sub(before); took < least {
			least, boot, lease = took, at, time.Duration(before)+took/2
		}
	}
	return boot, lease
}
