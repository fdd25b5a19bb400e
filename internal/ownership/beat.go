package ownership

import (
	"bytes"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
)

const (
	beatsOnWayMax  = 2   // handed to the producer and not finished
	beatsSentMax   = 256 // remembered until they are read back
	unreachableMax = 256 // named in one Beat
)

// beats are this node's own Beats.
type beats struct {
	seq     uint64        // Seq of the newest
	at      clock.Instant // when the newest was built; zero: none
	ready   bool          // ready flag of the newest Beat
	changed bool          // something changed that the newest does not say
	sent    []sentBeat    // not read back, oldest first
}

type sentBeat struct {
	seq     uint64
	at      clock.Instant // before Send: the only instant that a lease may count from
	applied Position      // its Applied
	done    bool          // AppendDone has come
	failed  bool          // with an error, although it may be in the log
}

// readBack returns when a Beat was sent and forgets it with all earlier ones.
func (b *beats) readBack(seq uint64) (sent clock.Instant, ok bool) {
	for i, s := range b.sent {
		if s.seq == seq {
			b.sent = slices.Delete(b.sent, 0, i+1)
			return s.at, true
		}
	}
	return 0, false
}

func (m *Machine) appendDone(in AppendDone) {
	switch body := in.Record.Body.(type) {
	case *Beat:
		for i := range m.beats.sent {
			if s := &m.beats.sent[i]; s.seq == body.Seq {
				s.done, s.failed = true, in.Failed
			}
		}
	case *Hello:
		if in.Failed {
			m.join.onWay = false // the next one goes out in its time
		}
	case *Reservations:
		m.changesDone(body.Seq, in.Failed)
	case *Genesis, *Epoch, *Snap: // read back or not: nothing depends on the answer
	}
}

// beat is rule 1: a Beat every R, and at once when something changed that others
// wait for. It tells one consistent cut: the gates cannot change within a Step, and
// a partition counts as draining until the driver has said that nothing runs.
func (m *Machine) beat() {
	t := &m.cfg.Timing
	if m.ready() != m.beats.ready {
		m.beats.changed = true
	}
	confirming := m.needsConfirming()
	if m.beats.at != 0 && !m.due(m.beats.at.Add(t.BeatEvery)) {
		if !m.beats.changed && !confirming || !m.due(m.beats.at.Add(t.BeatSpacing)) {
			return
		}
	}
	if m.awaitsDrained() || !m.hasRoom() {
		return
	}
	m.beats.seq++
	m.beats.at, m.beats.ready, m.beats.changed = m.now, m.ready(), false
	m.beats.sent = append(m.beats.sent, sentBeat{seq: m.beats.seq, at: m.now, applied: m.tail.last})
	if len(m.beats.sent) > beatsSentMax {
		m.beats.sent = slices.Delete(m.beats.sent, 0, 1)
	}
	m.append(&Beat{
		Seq: m.beats.seq, Applied: m.tail.last, Cur: m.state.Cur, ViewHash: m.state.ViewHash,
		Ready:       m.beats.ready,
		Draining:    m.draining(),
		Busy:        m.busy(),
		Acquired:    m.acquired(),
		Unreachable: m.unreachable(),
		PrefixHash:  m.state.PrefixHash,
	})
	if confirming {
		m.emit(Note{Kind: NoteConfirm})
	}
	m.due(m.now.Add(t.BeatEvery))
}

// draining returns the partitions on which deliveries of earlier tenures run now.
func (m *Machine) draining() Set {
	return m.gates.running.Clone()
}

// needsConfirming asks for the confirming Beat of rule 5: a deadline has passed,
// and no own Beat sent after it is on its way or was read back.
func (m *Machine) needsConfirming() bool {
	confirm := m.gates.confirm
	return confirm != 0 && !slices.ContainsFunc(m.beats.sent, func(s sentBeat) bool {
		return confirm.Before(s.at) && !s.failed
	})
}

// awaitsDrained reports whether the next Beat must wait for the driver's answer to a Revoke, which is the very next
// input. With that answer, the first Beat already releases the partitions on which nothing runs.
func (m *Machine) awaitsDrained() bool {
	return m.gates.answered < m.gates.seq && !m.due(m.gates.revokedAt.Add(m.cfg.Timing.BeatSpacing))
}

// hasRoom bounds the Beats in flight: Beats that queue up in an outage renew nothing. A Beat
// older than a lease counts as lost.
func (m *Machine) hasRoom() bool {
	onWay, first := 0, clock.Forever
	for _, s := range m.beats.sent {
		if gone := s.at.Add(m.cfg.Timing.Lease); !s.done && m.now.Before(gone) {
			onWay++
			first = min(first, gone)
		}
	}
	return onWay < beatsOnWayMax || m.due(first)
}

// unreachable lists the nodes that our transport cannot reach, in a fixed order.
func (m *Machine) unreachable() []Incarnation {
	var list []Incarnation
	for _, inc := range m.state.Members {
		if inc != m.cfg.Inc && m.reachOf(inc) == ReachDead {
			list = append(list, inc)
		}
	}
	for _, inc := range m.beating {
		if inc == m.cfg.Inc || m.state.IsMember(inc) || m.reachOf(inc) != ReachDead {
			continue
		}
		if n := m.state.node(inc); n != nil && m.seenFresh(n) {
			list = append(list, inc)
		}
	}
	slices.SortFunc(list, func(a, b Incarnation) int { return bytes.Compare(a[:], b[:]) })
	return list[:min(len(list), unreachableMax)]
}

func (m *Machine) reachOf(inc Incarnation) Reach {
	if p := m.peers[inc]; p != nil {
		return p.reach
	}
	return ReachUnknown
}
