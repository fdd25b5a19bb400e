package sim

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/ownership/driver"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/testing/planted"
	"github.com/ringfence/router/ring"
)

// This file drives the ownership machine of a member, and performs its effects, as internal/node does.

// deliver hands the driver an input.
func (m *member) deliver(in ownership.Input) {
	if m.machine == nil || m.ended != nil {
		return
	}
	m.steps.Put(in)
	if !m.busy {
		m.drive()
	}
}

// drive advances the production driver until it rests. Between two effects its goroutine may have
// to wait, while the rest of the process runs.
func (m *member) drive() {
	m.busy = true
	defer func() { m.busy = m.paused }()
	for m.ended == nil && m.w.failure == "" {
		now := m.clock()
		if planted.On(planted.HeardBeforeRead) {
			now = m.restAt
		}
		switch m.steps.Advance(now) {
		case driver.Performed:
			if end := m.steps.End(); end != nil {
				m.end(end)
			}
			if m.w.chance(m.w.p.preempt) {
				m.preempt()
				return
			}
		case driver.Stepped:
			m.w.checkStep(m, m.steps.Taken())
		case driver.AtRest, driver.Ended:
			m.restAt = m.clock()
			m.handOver()
			m.arm()
			return
		}
	}
}

// handOver sends the next owners the ids of events that finished here, in parts.
func (m *member) handOver() {
	if m.telling || !m.pipeline.HandOver() {
		return
	}
	m.telling = true
	incarnation := m.incarnation
	m.driver.later(pipeline.HandoverPause, func() {
		if m.incarnation != incarnation {
			return
		}
		m.telling = false
		if !m.busy && m.ended == nil {
			m.handOver()
		}
	})
}

// preempt lets the driver's goroutine wait between two effects.
func (m *member) preempt() {
	m.paused = true
	incarnation := m.incarnation
	m.driver.later(m.w.between(100*time.Microsecond, 30*time.Millisecond), func() {
		if m.incarnation == incarnation && m.paused {
			m.paused = false
			m.drive()
		}
	})
}

// arm asks for a Tick when the machine wants one.
func (m *member) arm() {
	m.tick++
	tick := m.tick
	next := m.machine.Next()
	if next == clock.Forever {
		return
	}
	m.driver.later(m.host.until(m.clock(), next)+m.w.hop(), func() {
		if m.tick == tick {
			m.deliver(ownership.Tick{})
		}
	})
}

// effects performs a machine's effects, and checks them.
type effects struct{ *member }

// OpenReader implements driver.Host.
func (m effects) OpenReader(e ownership.OpenReader) { m.w.log.openReader(m.member, e) }

// CheckContiguity implements driver.Host.
func (m effects) CheckContiguity(e ownership.CheckContiguity) { m.w.log.check(m.member, e) }

// Append implements driver.Host.
func (m effects) Append(e ownership.Append) {
	m.w.checkAppend(m.member, e.Record)
	m.w.log.append(m.member, e.Record)
}

// MoveAnchor implements driver.Host.
func (m effects) MoveAnchor(e ownership.MoveAnchor) { m.w.log.moveAnchor(e.To) }

// ReadFirst implements driver.Host.
func (m effects) ReadFirst(e ownership.ReadFirst) { m.w.log.readFirst(m.member, e) }

// SetGates implements driver.Host.
func (m effects) SetGates(changes []ownership.GateChange) {
	m.w.checkGates(m.member, changes)
	for _, c := range changes {
		m.gates[c.Partition] = c
		m.w.tracef("%s: gate of %d is %v, token %v, withheld %x", m.member, c.Partition, c.Gate, c.Token, c.Withheld)
	}
	if m.firings != nil {
		m.firings.opens(changes)
	}
	m.pipeline.SetGates(changes)
	if m.firings != nil {
		m.firings.closes(changes)
	}
}

// Revoke implements driver.Host.
func (m effects) Revoke(e ownership.Revoke) {
	m.w.tracef("%s: revoke %x, final %t", m.member, []uint64(e.Partitions), e.Final)
	m.checkMoved(e.Partitions.Has)
	m.pipeline.Revoke(e)
	m.look()
}

// Force implements driver.Host.
func (m effects) Force(e ownership.ForceDrain) {
	m.w.count("forced")
	m.w.tracef("%s: force %x", m.member, []uint64(e.Partitions))
	m.pipeline.Force(e)
	m.look()
}

// Rest implements driver.Host.
func (m effects) Rest(partitions ownership.Set) (idle ownership.Set, busy []ownership.Busy) {
	return m.pipeline.Rest(partitions)
}

// TakenOver implements driver.Host.
func (m effects) TakenOver(t ownership.TakenOver) { m.pipeline.TakenOver(t) }

// Covered implements driver.Host.
func (m effects) Covered(c ownership.Covered) { m.pipeline.Covered(c) }

// HandOverLate implements driver.Host.
func (m effects) HandOverLate() { m.pipeline.HandOverLate() }

// SetLease implements driver.Host.
func (m effects) SetLease(lease ownership.Lease) {
	m.w.checkLease(m.member, lease)
	m.lease = lease
	if lease.Until != 0 {
		m.w.checkGroup(m.member, lease)
	}
	m.pipeline.SetLease(lease)
}

// SetTable implements driver.Host.
func (m effects) SetTable(t *ownership.Table) {
	m.setPeers(t)
	m.pipeline.SetTable(t)
	m.consumeLater()
}

// Note implements driver.Host.
func (m effects) Note(n ownership.Note) { m.w.noted(m.member, n) }

// end does the work of the process around a machine at the machine's end.
func (m *member) end(e ownership.Effect) {
	w := m.w
	switch e := e.(type) {
	case ownership.Lost:
		w.count("lost")
		w.tracef("%s: LOST, %s", m, e.Reason)
		m.ended = e
		m.process.later(w.between(time.Millisecond, 200*time.Millisecond), m.begin)
	case ownership.Exit:
		if e.Settings {
			w.checkSettingsExit(m, e.Reason)
		} else {
			w.checkExit(m, e.Reason)
		}
		m.ended = e
		m.process.later(w.between(0, 10*time.Millisecond), func() { m.kill(true) })
	case ownership.Left:
		w.count("left")
		w.tracef("%s: left", m)
		m.ended = e
		m.leftAt = w.now
		m.consumeLater()
		m.finishDrain()
	default:
		w.fail("%s: ended by %T", m, e)
	}
}

// deliveriesEnded receives from the mailboxes the partitions that may be idle.
func (m *member) deliveriesEnded(partitions []ring.Partition) {
	m.idle = append(m.idle, partitions...)
	if m.idleSoon {
		return
	}
	m.idleSoon = true
	m.driver.later(m.w.hop(), func() {
		m.idleSoon = false
		asked := m.idle
		m.idle = nil
		if m.machine == nil || m.ended != nil {
			return
		}
		if _, inputs := m.steps.Pending(); m.busy || inputs { // production asks when the driver is at rest
			m.deliveriesEnded(asked)
			return
		}
		m.deliver(m.steps.Rest(asked))
	})
}
