package forward

import (
	"slices"

	"github.com/ringfence/router/internal/base/event"
)

// Moves collects the effects of a call. The caller owns it, performs it and calls Reset
// before it passes it again.
type Moves struct {
	Local []event.Ref // for the local mailbox
	Wake  []Peer      // peers whose streams have events to take

	Cancel    []Cancel        // calls whose callers have stopped waiting
	Granted   []event.Verdict // reservations that have begun
	Attempted []event.Verdict // failures of relayed events, which are told to their consumer nodes and stay held
	Renew     []Renew         // reservations that are to be renewed

	// Done are events that are done. Verdicts end the journeys of Settled, the events in the same order. They are final (see
	// [event.VerdictKind.Final]), except those of relayed events, see [Table.Hold].
	Done     []event.Set
	Verdicts []event.Verdict
	Settled  []event.Ref
}

// Reset empties m and keeps its memory.
func (m *Moves) Reset() {
	clear(m.Local)
	clear(m.Done)
	clear(m.Verdicts)
	clear(m.Settled)
	clear(m.Granted)
	clear(m.Attempted)
	m.Granted, m.Attempted, m.Renew = m.Granted[:0], m.Attempted[:0], m.Renew[:0]
	m.Local, m.Wake, m.Cancel, m.Done, m.Verdicts, m.Settled = m.Local[:0], m.Wake[:0], m.Cancel[:0], m.Done[:0], m.Verdicts[:0], m.Settled[:0]
}

func (m *Moves) settle(ref event.Ref, v event.Verdict) {
	m.Verdicts, m.Settled = append(m.Verdicts, v), append(m.Settled, ref)
}

func (m *Moves) wake(peer Peer) {
	if !slices.Contains(m.Wake, peer) {
		m.Wake = append(m.Wake, peer)
	}
}
