package sim

import (
	"math/rand/v2"
	"time"
)

// rateMax bounds by how much a hardware counter is off real time (A2).
const rateMax = 0.0099

// A counter keeps its rate for driftShortest to driftLongest. The rates of real ones change within
// hours, by far less: with temperature and load.
const driftShortest, driftLongest = 5 * time.Second, 60 * time.Second

// drift is the error of a host's hardware counter. Its rate changes from time to time, and stays
// within rateMax of real time.
type drift struct {
	rng   *rand.Rand
	since time.Duration // real time of the last change
	shown time.Duration // the counter's value at that time
	rate  float64       // from then on
	until time.Duration // real time of the next change
	then  float64       // the rate from that on
	turns int           // changes so far
}

// drawRate draws an error within the bound, often at its ends, which test the margins.
func drawRate(rng *rand.Rand) float64 {
	if rng.IntN(2) == 0 {
		return 1 + rateMax*float64(2*rng.IntN(2)-1)
	}
	return 1 + (rng.Float64()*2-1)*rateMax
}

func newDrift(rng *rand.Rand) drift {
	d := drift{rng: rng, rate: drawRate(rng), then: drawRate(rng), until: driftShortest + time.Duration(rng.Int64N(int64(driftLongest)))}
	if rng.IntN(4) == 0 {
		d.until = 1 << 62 // it keeps its rate
	}
	return d
}

// at returns the counter's value at a time that never falls.
func (d *drift) at(now time.Duration) time.Duration {
	for now >= d.until {
		d.shown += time.Duration(float64(d.until-d.since) * d.rate)
		d.since, d.rate, d.then = d.until, d.then, drawRate(d.rng)
		d.until += driftShortest + time.Duration(d.rng.Int64N(int64(driftLongest-driftShortest)))
		d.turns++
	}
	return d.shown + time.Duration(float64(now-d.since)*d.rate)
}

// takes returns how long, in real time, the counter takes for a count from now on; never more
// than that. Behind the change after the next it is taken to be fast.
func (d *drift) takes(now, count time.Duration) time.Duration {
	d.at(now)
	left := d.until - now
	if there := time.Duration(float64(left) * d.rate); count > there {
		second := time.Duration(float64(driftShortest) * d.then)
		rest := count - there
		if rest <= second {
			return left + time.Duration(float64(rest)/d.then)
		}
		return left + driftShortest + time.Duration(float64(rest-second)/(1+rateMax))
	}
	return time.Duration(float64(count) / d.rate)
}
