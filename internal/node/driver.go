package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/ownership/driver"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/ring"
)

// inputsMax is the number of inputs that wait for the driver, and that it takes in at once.
const inputsMax = 64

// driverLoop is the goroutine around the driver of one incarnation.
type driverLoop struct {
	driver   *driver.Driver
	machine  driver.Machine
	handOver func() (more bool)       // sends the next owners a part of the ids of events that finished here
	news     func() []ownership.Input // changes in the reach of peers, fetched after each wake
	inputs   chan ownership.Input

	ended  chan struct{} // closed when run has returned
	wake   chan struct{} // cap 1: there is something in idle or covers, or news
	status atomic.Pointer[ownership.Status]
	due    atomic.Int64 // clock.Instant of the machine's next step at the latest; 0: not stepped yet

	mu     sync.Mutex        // guards the fields below
	idle   []ring.Partition  // on which a delivery has ended: perhaps nothing runs there now
	covers []ownership.Input // Covers and Drops
}

func newDriverLoop(machine driver.Machine, host driver.Host, handOver func() (more bool), news func() []ownership.Input) *driverLoop {
	d := &driverLoop{
		driver: driver.New(machine, host), machine: machine, handOver: handOver, news: news,
		inputs: make(chan ownership.Input, inputsMax), ended: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	d.status.Store(new(ownership.Status))
	return d
}

// deliver hands an input to the machine; it blocks until the driver takes it or has
// ended. Not for the driver's own goroutine.
func (d *driverLoop) deliver(in ownership.Input) {
	select {
	case d.inputs <- in:
	case <-d.ended:
	}
}

// drained reports partitions on which perhaps no delivery runs any more; the driver checks that itself. It never blocks:
// the data path calls it while it works.
func (d *driverLoop) drained(partitions []ring.Partition) {
	d.mu.Lock()
	d.idle = append(d.idle, partitions...)
	d.mu.Unlock()
	d.wakeUp()
}

// cover hands over a Cover or a Drop. It never blocks: the data path calls it while it works.
func (d *driverLoop) cover(in ownership.Input) {
	d.mu.Lock()
	d.covers = append(d.covers, in) // bounded: at most two for each reservation
	d.mu.Unlock()
	d.wakeUp()
}

// wakeUp makes the driver fetch idle partitions, Covers, Drops and news. It never blocks.
func (d *driverLoop) wakeUp() {
	signal.Set(d.wake)
}

// Status returns the newest picture of the machine. Safe for concurrent use, and never in
// the driver's way.
func (d *driverLoop) Status() ownership.Status { return *d.status.Load() }

// run drives the machine until it ends or ctx does. It returns the effect that ended
// it: ownership.Lost, Exit or Left, or nil when ctx ended.
func (d *driverLoop) run(ctx context.Context) ownership.Effect {
	defer close(d.ended)
	timer, pause := time.NewTimer(0), time.NewTimer(0)
	defer timer.Stop()
	defer pause.Stop()
	pausing := true // between two parts of the handover: until pause ends
	inputs := make([]ownership.Input, 0, inputsMax)
	for {
		clear(inputs)
		inputs = inputs[:0]
		select {
		case <-ctx.Done():
			return nil
		case in := <-d.inputs:
			inputs = d.takeMore(append(inputs, in))
		case <-d.wake:
			inputs = append(append(inputs, d.takePending()...), d.news()...)
		case <-timer.C:
			inputs = append(inputs, ownership.Tick{})
		case <-pause.C:
			pausing = false
		}
		if len(inputs) > 0 {
			if end := d.take(inputs); end != nil {
				return end
			}
		}
		if !pausing && d.handOver() {
			pausing = true
			pause.Reset(pipeline.HandoverPause)
		}
		timer.Reset(d.untilNext())
	}
}

// takeMore appends the inputs that wait already, so that one wake-up takes in all records that came together.
func (d *driverLoop) takeMore(inputs []ownership.Input) []ownership.Input {
	for len(inputs) < inputsMax {
		select {
		case in := <-d.inputs:
			inputs = append(inputs, in)
		default:
			return inputs
		}
	}
	return inputs
}

// takePending returns what idle and covers hold. It checks idle partitions again, now that the driver is at rest: one that is idle behind a
// closed gate remains so.
func (d *driverLoop) takePending() []ownership.Input {
	d.mu.Lock()
	asked, covers := d.idle, d.covers
	d.idle, d.covers = nil, nil
	d.mu.Unlock()
	return append([]ownership.Input{d.driver.Rest(asked)}, covers...)
}

func (d *driverLoop) untilNext() time.Duration {
	return max(0, min(time.Hour, d.machine.Next().Sub(clock.Now())))
}

// take gives the machine its inputs and performs all effects. It returns the effect that
// ended the machine, if one did.
func (d *driverLoop) take(inputs []ownership.Input) (end ownership.Effect) {
	for _, in := range inputs {
		d.driver.Put(in)
	}
	for {
		switch d.driver.Advance(clock.Now()) {
		case driver.AtRest, driver.Ended:
			status := d.machine.Status(d.driver.At())
			d.status.Store(&status)
			return d.driver.End()
		case driver.Stepped:
			d.due.Store(int64(d.machine.Next()))
		case driver.Performed:
		}
	}
}
