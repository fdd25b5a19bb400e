package forward

import "github.com/ringfence/router/internal/base/clock"

// relayAt returns the time at which a third member begins to take the events of l, and its calls end; [clock.Forever] when none
// is needed, or none is there and no call waits.
func (t *Table) relayAt(l *lane) clock.Instant {
	if l.up || l.via != nil || l.queuedN == 0 || l.callsN == 0 && t.third(l) == nil {
		return clock.Forever
	}
	return l.since.Add(t.config.UnreachableHoldMax)
}

// third returns a peer that might reach l when this node cannot, in round robin.
func (t *Table) third(l *lane) *lane {
	for i := range t.lanes {
		if other := t.lanes[(t.turn+i)%len(t.lanes)]; other != l && other.up {
			return other
		}
	}
	return nil
}
