package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// slewed lets NTP steer the clocks of every second host up by a rate and of all other hosts down,
// without an end, as chrony does while it corrects a large offset. oneWay: the other hosts are left
// alone.
func slewed(rate float64, oneWay bool) scene {
	return func(w *world) {
		for i, p := range w.pods {
			r := rate
			switch {
			case i%2 == 0:
			case oneWay:
				r = 0
			default:
				r = -rate
			}
			if n := &p.host.ntp; n.until < forGood {
				raw := p.host.reading().Raw - p.host.offset
				n.ahead = n.added(raw)
				n.since, n.rate, n.until = raw, r, forGood
			}
		}
	}
}

const forGood = 1 << 62

// Leases run on the hardware counters: nothing that NTP does to the clocks of a group lets
// two handlers of a key run. With the planted bug slewed_clock these runs show overlaps.
func TestExclusiveWhileNTPSlewsClocks(t *testing.T) {
	for _, rate := range []float64{0.06, chronySlew, -chronySlew, clock.SlewMax} {
		for _, oneWay := range []bool{false, true} {
			t.Run(fmt.Sprintf("rate=%v,one_way=%v", rate, oneWay), func(t *testing.T) {
				for seed := uint64(1); seed <= 6; seed++ {
					r := runScene(7919*seed, 3*time.Minute, false, slewed(rate, oneWay))
					if r.Failure != "" {
						t.Errorf("seed %d: %s", 7919*seed, r.Failure)
					}
				}
			})
		}
	}
}
