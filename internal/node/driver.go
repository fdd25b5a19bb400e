package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/ring"
)

// machine decides who may act: inputs in, effects out. An ownership.Machine does, by
// the control log; with Mode Gossip a gossipMachine, by hearsay.
type machine interface {
	Step(now clock.Instant, in ownership.Input) []ownership.Effect
	Next() clock.Instant
	Status(now clock.Instant) ownership.Status
}

// controlLog performs the effects that concern the control log. Its methods do not block.
type controlLog interface {
	OpenReader(ownership.OpenReader)
	CheckContiguity(ownership.CheckContiguity)
	Append(ownership.Append)
	MoveAnchor(ownership.MoveAnchor)
	ReadFirst(ownership.ReadFirst)
}

// dataPath is what ownership governs. A method has taken effect when it returns.
type dataPath interface {
	// SetGates changes gates; events that wait behind one that closes go back.
	SetGates([]ownership.GateChange)
	// Revoke stands in the queue of every application stream when it returns.
	Revoke(ownership.Revoke)
	// Force ends the patience with what runs on these partitions.
	Force(ownership.ForceDrain)
	// Rest returns those of the partitions on which nothing runs, and what does on the others.
	Rest(ownership.Set) (idle ownership.Set, busy []ownership.Busy)
	// SetLease publishes the lease for dispatch and for Pongs.
	SetLease(ownership.Lease)
	// SetTable publishes the newest applied epoch for routing.
	SetTable(*ownership.Table)
	// HandOver tells the next owners a part of what was done here, and whether there may be more.
	HandOver() (more bool)
	// HandOverLate tells them all that has ended since their partitions moved.
	HandOverLate()
}

// driver is the one goroutine that owns a machine, for one incarnation.
// It alone changes gates, so a Beat is always a consistent cut.
type driver struct {
	machine machine
	log     controlLog // nil if the machine asks nothing of it
	path    dataPath
	note    func(ownership.Note)
	news    func() []ownership.Input // what is new about the reach of peers, each time that wake says so
	inputs  chan ownership.Input

	revoked uint64 // Seq of the newest Revoke that was performed

	ended  chan struct{} // closed when run has returned
	wake   chan struct{} // cap 1: there is something in idle, or news
	status atomic.Pointer[ownership.Status]
	mu     sync.Mutex
	idle   []ring.Partition // may have less running than before
}

func newDriver(decides machine, log controlLog, path dataPath, note func(ownership.Note), news func() []ownership.Input) *driver {
	d := &driver{
		machine: decides, log: log, path: path, note: note, news: news,
		inputs: make(chan ownership.Input, 64), ended: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	d.status.Store(new(ownership.Status))
	return d
}

// deliver hands an input to the machine; it blocks until the driver takes it or has
// ended. Not for the driver's own goroutine.
func (d *driver) deliver(in ownership.Input) {
	select {
	case d.inputs <- in:
	case <-d.ended:
	}
}

// drained says that nothing may run any more on these partitions. It never blocks:
// the data path calls it while it works.
func (d *driver) drained(partitions []ring.Partition) {
	d.mu.Lock()
	d.idle = append(d.idle, partitions...)
	d.mu.Unlock()
	d.look()
}

// look makes the driver look for news and for what is idle. It never blocks.
func (d *driver) look() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Status returns the newest picture of the machine. Safe for concurrent use, and never in
// the driver's way.
func (d *driver) Status() ownership.Status { return *d.status.Load() }

// run drives the machine until it ends or ctx does. It returns the effect that ended
// it: ownership.Lost, Exit or Left, or nil when ctx ended.
func (d *driver) run(ctx context.Context) ownership.Effect {
	defer close(d.ended)
	timer, pause := time.NewTimer(0), time.NewTimer(0)
	defer timer.Stop()
	defer pause.Stop()
	telling := true // until pause ends
	for {
		var inputs []ownership.Input
		select {
		case <-ctx.Done():
			return nil
		case in := <-d.inputs:
			inputs = append(inputs, in)
		case <-d.wake:
			inputs = append([]ownership.Input{d.takeIdle()}, d.news()...)
		case <-timer.C:
			inputs = append(inputs, ownership.Tick{})
		case <-pause.C:
			telling = false
		}
		for _, in := range inputs {
			if end := d.step(in); end != nil {
				return end
			}
		}
		if !telling && d.path.HandOver() {
			telling = true
			pause.Reset(pipeline.HandoverPause)
		}
		timer.Reset(d.untilNext())
	}
}

// takeIdle asks again, now that the driver is at rest: what is idle behind a gate
// that is not open stays idle.
func (d *driver) takeIdle() ownership.Input {
	d.mu.Lock()
	asked := d.idle
	d.idle = nil
	d.mu.Unlock()
	return d.rest(asked)
}

// rest says what runs on these partitions. What does not any more is told before the Beat
// that says so: the next owner may hold a copy of it, which waits for that Beat alone.
func (d *driver) rest(partitions []ring.Partition) ownership.Input {
	idle, busy := d.path.Rest(ownership.SetOf(partitions...))
	d.path.HandOverLate()
	return ownership.Drained{Seq: d.revoked, Partitions: idle, Busy: busy}
}

func (d *driver) untilNext() time.Duration {
	return max(0, min(time.Hour, d.machine.Next().Sub(clock.Now())))
}

// step applies in, and what the effects themselves answer, before anything else.
func (d *driver) step(in ownership.Input) (end ownership.Effect) {
	now := clock.Now()
	for in != nil && end == nil {
		in, end = d.perform(d.machine.Step(now, in))
	}
	status := d.machine.Status(now)
	d.status.Store(&status)
	return end
}

// perform performs effects in their order. The answer to a Revoke is the next input.
func (d *driver) perform(effects []ownership.Effect) (next ownership.Input, end ownership.Effect) {
	var revoked []ring.Partition
	answer := false
	for _, eff := range effects {
		switch eff := eff.(type) {
		case ownership.OpenReader:
			d.log.OpenReader(eff)
		case ownership.CheckContiguity:
			d.log.CheckContiguity(eff)
		case ownership.Append:
			d.log.Append(eff)
		case ownership.MoveAnchor:
			d.log.MoveAnchor(eff)
		case ownership.ReadFirst:
			d.log.ReadFirst(eff)
		case ownership.SetGates:
			d.path.SetGates(eff.Gates)
		case ownership.Revoke:
			d.path.Revoke(eff)
			d.revoked, answer = eff.Seq, true
			revoked = slices.AppendSeq(revoked, eff.Partitions.All())
		case ownership.ForceDrain:
			d.path.Force(eff)
		case ownership.SetLease:
			d.path.SetLease(eff.Lease)
		case ownership.PublishTable:
			d.path.SetTable(eff.Table)
		case ownership.Note:
			d.note(eff)
		case ownership.Lost, ownership.Exit, ownership.Left:
			end = eff
		}
	}
	if answer {
		next = d.rest(revoked)
	}
	return next, end
}
