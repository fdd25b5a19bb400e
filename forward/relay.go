package forward

import "github.com/ringfence/router/internal/base/clock"

// relayAt returns when the events of l go by a third member, and its calls end as unreachable: UnreachableHoldMax after l
// went down. It is [clock.Forever] while l is up, has a third member or has nothing queued, and while there is neither a third
// member nor a call that waits.
func (t *Table) relayAt(l *lane) clock.Instant {
	if l.up || l.via != nil || l.queuedN == 0 || l.callsN == 0 && t.third(l) == nil {
		return clock.Forever
	}
	return l.since.Add(t.config.UnreachableHoldMax)
}

// third returns a peer that might reach l when this node cannot, nil if no other peer is up. They take turns.
func (t *Table) third(l *lane) *lane {
	for i := range t.lanes {
		if other := t.lanes[(t.viaNext+i)%len(t.lanes)]; other != l && other.up {
			return other
		}
	}
	return nil
}
