package node

import (
	"context"
	"fmt"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/report"
)

// parkOf returns the park or unpark of a key, as this member has read it; nil: none.
func (n *Node) parkOf(key event.Key) *report.Park {
	if n.parts.Acts == nil {
		return nil
	}
	r, is := n.parts.Acts.ParkOf(key)
	if !is {
		return nil
	}
	p := &report.Park{
		ID:   r.ID.String(),
		Hold: report.Hold{By: r.By, Via: r.Via, Reason: r.Reason, Since: r.At.UTC(), Until: r.Until.UTC()}, Unparking: r.Kind == act.Unpark,
	}
	n.unparks.mu.Lock()
	defer n.unparks.mu.Unlock()
	if c := n.unparks.keys[key]; c != nil && p.Unparking {
		p.Letters, p.Waits = c.count, c.waits
	}
	return p
}

// parking returns the number of events of a key that this member is copying to the parking topic.
func (n *Node) parking(key event.Key) int {
	if s := n.source.Load(); s != nil {
		return s.Parking(key)
	}
	return 0
}

// Parkable returns the reason why no key can be parked now: a member of the group would not send events to the parking
// topic, or would handle them. The error is [act.ErrRefused].
func Parkable(ctx context.Context, group *report.Group) error {
	members := group.Members(ctx)
	for _, m := range members.Members {
		switch {
		case m.Status == nil && m.Listed:
			return fmt.Errorf("%w: %s does not answer, so it is unknown whether it can park events (%s)", act.ErrRefused, m.Name, m.Error)
		case m.Status == nil: // it has left, or gossip alone knows it
		case m.Status.Acts == nil || m.Status.Acts.Parks == nil:
			return fmt.Errorf("%w: %s takes no acts (acts.enabled is false), or is of a version that does not park keys: it would handle the events", act.ErrRefused, m.Name)
		case m.Status.Acts.Error != "":
			return fmt.Errorf("%w: %s cannot use the acts topic now, and would handle the events: %s", act.ErrRefused, m.Name, m.Status.Acts.Error)
		}
	}
	return nil
}
