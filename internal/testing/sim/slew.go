package sim

import (
	"math/rand/v2"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// ntp is the daemon that steers the clocks of a host, all but the hardware counter: most
// of the time by next to nothing, now and then by as much as chrony does by default
// (maxslewrate 83333 ppm), or by as much as the kernel lets anybody.
type ntp struct {
	rng   *rand.Rand
	since time.Duration // the hardware counter at the last change of the rate
	until time.Duration // … and at the next
	ahead time.Duration // the correction up to that time
	rate  float64       // the correction per second from then on
}

// steerEvery bounds how long a rate lasts.
const steerEvery = 40 * time.Second

const chronySlew = 83333e-6

// added returns the correction of the steered clocks when the counter shows awake.
func (n *ntp) added(awake time.Duration) time.Duration {
	for awake >= n.until {
		n.ahead += time.Duration(float64(n.until-n.since) * n.rate)
		n.since = n.until
		n.until += time.Second + time.Duration(n.rng.Int64N(int64(steerEvery)))
		sign := float64(1 - 2*n.rng.IntN(2))
		switch n.rng.IntN(6) {
		case 0:
			n.rate = sign * clock.SlewMax * 0.99 // a part of it is steered for good: the counter's own error
		case 1, 2:
			n.rate = sign * chronySlew
		default:
			n.rate = sign * 500e-6 * n.rng.Float64()
		}
	}
	return n.ahead + time.Duration(float64(awake-n.since)*n.rate)
}

// reading returns the values of the host's clocks.
func (h *host) reading() clock.Reading {
	slept := h.slept()
	raw := h.counter() - slept
	if h.ntp.rng == nil { // its own random source, so that the rest of the run does not depend on it
		h.ntp.rng = rand.New(rand.NewPCG(uint64(h.offset), 25))
	}
	steered := raw + h.ntp.added(raw)
	return clock.Reading{Raw: h.offset + raw, Boot: h.offset + steered + slept, Mono: h.offset + steered}
}

// lease is the clock that leases run on, computed as production does.
func (h *host) lease() clock.Instant { return h.steady.Now(h.reading()) }

// steered is the clock of an application that cannot read the hardware counter.
func (h *host) steered() clock.Instant { return clock.Instant(h.reading().Boot) }
