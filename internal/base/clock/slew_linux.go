//go:build slewclock

package clock

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// This file, with the tag slewclock, puts an NTP daemon into the process: CLOCK_BOOTTIME
// and CLOCK_MONOTONIC run at another rate, as chrony makes them do while it corrects a
// large offset, and CLOCK_MONOTONIC_RAW is left alone, as the kernel leaves it. All of
// this package but the two functions that read those clocks is what production runs. So
// a router that reads the right clocks shows no overlap, and the metric of the clock's
// rate shows the slew.
//
//	go build -tags slewclock ./cmd/router
//
// The environment says how, read once at the start; a value that cannot be read ends the
// process:
//
//	RINGFENCE_TEST_CLOCK_RATE=1.06           the steered clocks run 6 % fast
//	RINGFENCE_TEST_CLOCK_RATE=1.08,0.92      … and change their rate, in turns
//	RINGFENCE_TEST_CLOCK_EVERY=10s           how long a turn lasts by the hardware's clock; 10s if not set
//	RINGFENCE_TEST_CLOCK_OFFSET=3h           by how much they are ahead at the start
//	RINGFENCE_TEST_CLOCK=slewed              the control: leases run on the steered
//	                                         CLOCK_BOOTTIME, as they did before ADR 0025;
//	                                         Slewable is true then, and an SDK does not
//	                                         declare an own clock to its router
//
// Without RINGFENCE_TEST_CLOCK_RATE the clocks are the system's. [Shared] is never
// steered: journals of differently steered processes stay comparable.
var (
	slewRates = func() (rates []float64) {
		all := os.Getenv("RINGFENCE_TEST_CLOCK_RATE")
		if all == "" {
			return []float64{1}
		}
		for one := range strings.SplitSeq(all, ",") {
			rate, err := strconv.ParseFloat(one, 64)
			if err != nil || rate <= 0 || rate > 2 {
				panic(fmt.Sprintf("clock: RINGFENCE_TEST_CLOCK_RATE=%q: want rates above 0, up to 2", all))
			}
			rates = append(rates, rate)
		}
		return rates
	}()
	slewEvery   = testDuration("RINGFENCE_TEST_CLOCK_EVERY", 10*time.Second)
	slewOffset  = testDuration("RINGFENCE_TEST_CLOCK_OFFSET", 0)
	forceSlewed = os.Getenv("RINGFENCE_TEST_CLOCK") == "slewed"
	slewBegan   = gettime(unix.CLOCK_MONOTONIC_RAW)
	shared      = newSteady(readShared)
)

func testDuration(name string, otherwise time.Duration) time.Duration {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		panic(fmt.Sprintf("clock: %s=%q: want a duration above 0", name, text))
	}
	return d
}

func steered() (boot, mono time.Duration) {
	boot, mono = unsteered()
	ahead := slewOffset + slewed(gettime(unix.CLOCK_MONOTONIC_RAW)-slewBegan, slewRates, slewEvery)
	return boot + ahead, mono + ahead
}

// slewed returns by how much a clock is ahead that runs since d at the rates, each for a turn.
func slewed(d time.Duration, rates []float64, turn time.Duration) (ahead time.Duration) {
	round := turn * time.Duration(len(rates))
	for _, rate := range rates {
		// The part of d in turns of this rate: whole rounds, and a part of the last.
		in := d/round*turn + min(max(d%round, 0), turn)
		ahead += time.Duration(float64(in) * (rate - 1))
		d -= turn
	}
	return ahead
}

// Shared returns the present instant on the clock that the journals of processes of one
// machine share, which nothing steers.
func Shared() Instant { return shared.Now(readShared()) }

func readShared() (r Reading) {
	r.Raw = gettime(unix.CLOCK_MONOTONIC_RAW)
	r.Boot, r.Mono = unsteered()
	return r
}
