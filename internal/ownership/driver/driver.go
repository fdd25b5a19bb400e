// Package driver performs the effects of an ownership machine one at a time. It has no
// goroutine, clock or lock. In production a goroutine advances it until no effect is left; the
// simulator can run other code between any two effects.
package driver

import (
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Machine makes the ownership decisions. An [ownership.Machine] makes them by the control log.
type Machine interface {
	Step(now clock.Instant, in ownership.Input) []ownership.Effect
	Next() clock.Instant
	Status(now clock.Instant) ownership.Status
}

// ControlLog performs the effects that concern the control log. Its methods do not block; their
// answers are inputs.
type ControlLog interface {
	OpenReader(ownership.OpenReader)
	CheckContiguity(ownership.CheckContiguity)
	Append(ownership.Append)
	MoveAnchor(ownership.MoveAnchor)
	ReadFirst(ownership.ReadFirst)
}

// DataPath is the part of a node that ownership controls. A method has taken effect when it returns.
type DataPath interface {
	// SetGates changes gates; events that wait behind one that closes go back.
	SetGates([]ownership.GateChange)
	// Revoke is in the queue of every application stream when it returns.
	Revoke(ownership.Revoke)
	// Force stops extending the deadlines of running deliveries on these partitions.
	Force(ownership.ForceDrain)
	// Rest returns those of the partitions on which nothing runs, and the running keys of the others.
	Rest(ownership.Set) (idle ownership.Set, busy []ownership.Busy)
	// SetLease publishes the lease for dispatch and for Pongs.
	SetLease(ownership.Lease)
	// SetTable publishes the newest applied epoch for routing.
	SetTable(*ownership.Table)
	// TakenOver reports that an owner's tenures are over, which the owner may not have read.
	TakenOver(ownership.TakenOver)
	// Covered reports until when the holder of a turn may be promised its ttl, or why it will not be.
	Covered(ownership.Covered)
	// HandOverLate sends the next owners the results that finished after their partitions moved.
	HandOverLate()
}

// Host performs effects.
type Host interface {
	ControlLog
	DataPath
	// Note takes a fact for logs and metrics.
	Note(ownership.Note)
}

// Progress is the result of one call of [Driver.Advance].
type Progress int

// The results of Advance.
const (
	AtRest    Progress = iota // nothing: there is no effect to perform and no input to take
	Stepped                   // the machine took an input
	Performed                 // the host performed an effect
	Ended                     // nothing: the machine has ended, see [Driver.End]
)

// Driver drives one machine, which is one incarnation. Only the driver changes gates, so a Beat
// is always a consistent cut. It is not safe for concurrent use.
type Driver struct {
	machine Machine
	host    Host

	inputs  []ownership.Input
	effects []ownership.Effect // of the newest step, not performed yet
	at      clock.Instant      // of the newest step
	taken   ownership.Input    // by the newest step
	end     ownership.Effect

	revoked   uint64           // Seq of the newest Revoke that was performed
	answering bool             // the pending effects included a Revoke: its answer is the next input
	asked     []ring.Partition // the partitions of that Revoke
}

// New returns a driver without inputs.
func New(machine Machine, host Host) *Driver { return &Driver{machine: machine, host: host} }

// Put queues an input. A machine that has ended takes none.
func (d *Driver) Put(in ownership.Input) { d.inputs = append(d.inputs, in) }

// Advance performs the next effect or, if there is none, gives the machine its next input, at
// now. The answer to a Revoke comes before all other inputs, at the instant of the step that
// asked for it. An effect that ends the machine is the last one that is performed.
func (d *Driver) Advance(now clock.Instant) Progress {
	switch {
	case d.end != nil:
		return Ended
	case len(d.effects) > 0:
		eff := d.effects[0]
		d.effects = d.effects[1:]
		d.perform(eff)
		return Performed
	case d.answering:
		asked := d.asked
		d.answering, d.asked = false, nil
		d.step(d.at, d.Rest(asked))
		return Stepped
	case len(d.inputs) > 0:
		in := d.inputs[0]
		d.inputs = d.inputs[1:]
		d.step(now, in)
		return Stepped
	}
	return AtRest
}

// Rest returns an input that lists the running deliveries of these partitions. Late results are
// handed over before the Beat that follows: the next owner may hold copies of their events,
// which wait only for that Beat.
func (d *Driver) Rest(partitions []ring.Partition) ownership.Input {
	idle, busy := d.host.Rest(ownership.SetOf(partitions...))
	d.host.HandOverLate()
	return ownership.Drained{Seq: d.revoked, Partitions: idle, Busy: busy}
}

// End returns the effect that ended the machine: ownership.Lost, Exit or Left. It is nil before.
func (d *Driver) End() ownership.Effect { return d.end }

// At returns the instant of the newest step, zero before the first.
func (d *Driver) At() clock.Instant { return d.at }

// Taken returns the input of the newest step, nil before the first.
func (d *Driver) Taken() ownership.Input { return d.taken }

// Pending returns the effects of the newest step that are not performed yet, and whether an
// input waits. The slice is the driver's own.
func (d *Driver) Pending() (effects []ownership.Effect, inputs bool) {
	return d.effects, len(d.inputs) > 0
}

func (d *Driver) step(now clock.Instant, in ownership.Input) {
	d.at, d.taken = now, in
	d.effects = d.machine.Step(now, in)
}

func (d *Driver) perform(eff ownership.Effect) {
	switch eff := eff.(type) {
	case ownership.OpenReader:
		d.host.OpenReader(eff)
	case ownership.CheckContiguity:
		d.host.CheckContiguity(eff)
	case ownership.Append:
		d.host.Append(eff)
	case ownership.MoveAnchor:
		d.host.MoveAnchor(eff)
	case ownership.ReadFirst:
		d.host.ReadFirst(eff)
	case ownership.SetGates:
		d.host.SetGates(eff.Gates)
	case ownership.Revoke:
		d.host.Revoke(eff)
		d.revoked, d.answering = eff.Seq, true
		d.asked = slices.AppendSeq(d.asked, eff.Partitions.All())
	case ownership.ForceDrain:
		d.host.Force(eff)
	case ownership.SetLease:
		d.host.SetLease(eff.Lease)
	case ownership.PublishTable:
		d.host.SetTable(eff.Table)
	case ownership.TakenOver:
		d.host.TakenOver(eff)
	case ownership.Covered:
		d.host.Covered(eff)
	case ownership.Note:
		d.host.Note(eff)
	case ownership.Lost, ownership.Exit, ownership.Left:
		d.end = eff
	}
}
