package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"
)

// The extreme rates of the simulated NTP: chrony's defaults while it corrects a large offset
// (maxslewrate 83333.333 ppm).
const rateLeast, rateMost = 0.917, 1.083

// The bounds of the other random draws for a process.
const (
	ratesMax              = 3 // that take turns in one process
	turnLeast, turnMost   = 4 * time.Second, 40 * time.Second
	aheadLeast, aheadMost = time.Second, time.Hour // of the steered clocks at the start of the process
)

// How fast the clocks of a router run after a fault of the kind slew; those of its
// applications do the opposite.
const (
	routerFast = "fast router"
	routerSlow = "slow router"
)

// clockOf returns the environment by which a process that was built with the tag
// slewclock believes that NTP steers its clocks. It is drawn from the seed, the name of the
// process and the number of its run; half of all rates are extreme.
func clockOf(o options, process string, run int) []string {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %d", process, run) // never fails
	d := &drawer{random: rand.New(rand.NewPCG(o.Seed, hash.Sum64()))}
	rates := make([]string, 1+d.random.IntN(ratesMax))
	for i := range rates {
		rate := rateLeast + d.random.Float64()*(rateMost-rateLeast)
		switch d.random.IntN(4) {
		case 0:
			rate = rateLeast
		case 1:
			rate = rateMost
		}
		rates[i] = fmt.Sprintf("%.4f", rate)
	}
	return clockEnv(o, strings.Join(rates, ","), d.logarithmic(turnLeast, turnMost), d.logarithmic(aheadLeast, aheadMost))
}

// clockAt returns the environment for one rate that stays.
func clockAt(o options, rate float64) []string {
	return clockEnv(o, fmt.Sprintf("%.4f", rate), turnMost, aheadLeast)
}

func clockEnv(o options, rates string, turn, ahead time.Duration) []string {
	env := []string{
		"RINGFENCE_TEST_CLOCK_RATE=" + rates,
		fmt.Sprintf("RINGFENCE_TEST_CLOCK_EVERY=%v", turn),
		fmt.Sprintf("RINGFENCE_TEST_CLOCK_OFFSET=%v", ahead),
	}
	if o.Control == controlSlewed {
		env = append(env, "RINGFENCE_TEST_CLOCK=slewed")
	}
	return env
}

// clocks are the environments of a router and its applications after a fault.
func (f fault) clocks(o options) (router, app []string) {
	if f.Variant == routerFast {
		return clockAt(o, rateMost), clockAt(o, rateLeast)
	}
	return clockAt(o, rateLeast), clockAt(o, rateMost)
}
