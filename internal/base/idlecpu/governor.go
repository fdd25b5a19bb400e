// Package idlecpu limits a process with little work to one processor.
//
// Go's scheduler wakes a thread whenever there is work and a processor idles. In a process that
// handles a few small batches at a time, such a thread mostly wakes up, finds its data in no
// cache, and sleeps again. On one processor the same goroutines run one after the other on the
// thread that is awake. Under load that would cost throughput, so the process gets all
// processors back when the load rises.
package idlecpu

import (
	"os"
	"runtime"
	"sync"
	"time"
)

// The policy, in shares of one processor. Between the two everything stays as it is.
const (
	BusyFrom   = 0.2  // a period with as much takes all processors back
	QuietBelow = 0.15 // QuietFor with less in each period leave one

	Period   = 500 * time.Millisecond // how often one looks, and so the longest that a load waits for the processors
	QuietFor = 5 * time.Second
)

// Policy decides whether one processor is enough. The zero Policy wants all of them. It is
// not safe for concurrent use.
type Policy struct {
	quiet time.Duration // for how long it has been
	one   bool
}

// Next takes in how much CPU time was used in the period that has just ended, and tells
// whether one processor is enough. A period of no length changes nothing.
func (p *Policy) Next(used, period time.Duration) (one bool) {
	if period <= 0 {
		return p.one
	}
	switch share := float64(used) / float64(period); {
	case share >= BusyFrom:
		p.quiet, p.one = 0, false
	case share < QuietBelow:
		p.quiet += period
		p.one = p.one || p.quiet >= QuietFor
	default:
		p.quiet = 0
	}
	return p.one
}

// Start governs this process until stop is called, which restores Go's own number. It does
// nothing where GOMAXPROCS is set in the environment, on a machine with one processor, and
// where the system does not report CPU use. There must be one at a time in a process, and no
// other code may set [runtime.GOMAXPROCS].
func Start() (stop func()) {
	if _, err := cpuTime(); err != nil || decided() || runtime.GOMAXPROCS(0) == 1 {
		return func() {}
	}
	ended := make(chan struct{})
	var governing sync.WaitGroup
	governing.Go(func() { govern(ended) })
	return func() {
		close(ended)
		governing.Wait()
	}
}

func govern(ended <-chan struct{}) {
	defer set(false)
	tick := time.NewTicker(Period)
	defer tick.Stop()
	var policy Policy
	for m := newMeter(); ; {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		was := policy.one
		if one := policy.Next(m.period()); one != was {
			set(one)
		}
	}
}

// set stops the world for some microseconds.
func set(one bool) {
	if one {
		runtime.GOMAXPROCS(1)
		return
	}
	runtime.SetDefaultGOMAXPROCS() // as many as the machine and its limits have by now
}

// decided reports whether the process was started with GOMAXPROCS set.
func decided() bool { return os.Getenv("GOMAXPROCS") != "" }
