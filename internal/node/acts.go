package node

import (
	"context"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/pipeline/schedule"
	"github.com/ringfence/router/internal/report"
)

// keepActs makes acts of operators take effect on this member's keys.
func (n *Node) keepActs(ctx context.Context) error {
	if n.parts.Acts == nil {
		<-ctx.Done()
		return nil
	}
	if n.parts.Claims != nil {
		select {
		case <-n.parts.Claims.Held():
		case <-ctx.Done():
			return nil
		}
	}
	return n.parts.Acts.Run(ctx, actKeys{n.pipeline, n.unparks, n.schedules})
}

// actKeys applies acts to the mailboxes of this member and to its unparks.
type actKeys struct {
	*pipeline.Pipeline

	unparks   *unparks
	schedules *schedules
}

// HoldKeys implements act.Keys.
func (k actKeys) HoldKeys(keys []event.Key) {
	k.Pipeline.HoldKeys(keys)
	k.schedules.stop(keys, schedule.OnHold, true)
}

// ReleaseKeys implements act.Keys.
func (k actKeys) ReleaseKeys(keys []event.Key) {
	k.Pipeline.ReleaseKeys(keys)
	k.schedules.stop(keys, schedule.OnHold, false)
}

// ParkKeys implements act.Keys.
func (k actKeys) ParkKeys(parks []event.Park) {
	k.Pipeline.ParkKeys(parks) // first: its other events wait before a letter comes
	k.unparks.set(parks)
	for i := range parks {
		k.schedules.stop([]event.Key{parks[i].Key}, schedule.Parked, parks[i].State != event.NotParked)
		k.schedules.stop([]event.Key{parks[i].Key}, schedule.Unparking, parks[i].State == event.ParkEnds)
	}
}

// awaitActs blocks until the acts are read, for a bounded time. Until it returns, this node joins no group, so that
// it does not run a key that is held. It reports false when ctx ended. A node that cannot read the acts joins without
// them: the topic serves operators, and its loss must not stop events.
func (n *Node) awaitActs(ctx context.Context) bool {
	if n.parts.Acts == nil {
		return true
	}
	patience := time.NewTimer(n.parts.Acts.StartWait())
	defer patience.Stop()
	if !n.awaitOutside(ctx, n.parts.Acts.Read(), patience.C) {
		return false
	}
	if !signal.IsClosed(n.parts.Acts.Read()) {
		n.log.Error("joining without the acts topic: keys that operators hold may run here", "error", n.parts.Acts.Check(), "after", n.parts.Acts.StartWait())
	}
	return true
}

// Acts returns what takes acts of operators; nil: nothing does.
func (n *Node) Acts() *act.Keeper { return n.parts.Acts }

// holdOf returns the hold of a key, as this member has read it; nil: none.
func (n *Node) holdOf(key event.Key) *report.Hold {
	if n.parts.Acts == nil {
		return nil
	}
	h, held := n.parts.Acts.Held(key)
	if !held {
		return nil
	}
	return &report.Hold{By: h.By, Via: h.Via, Reason: h.Reason, Since: h.At.UTC(), Until: h.Until.UTC()}
}

// skipsOf returns the newest skips of events of a key that this member has read, and the number of further ones.
func (n *Node) skipsOf(key event.Key) (skips []report.Skip, more int) {
	if n.parts.Acts == nil {
		return nil, 0
	}
	all := n.parts.Acts.SkipsOf(key)
	listed := min(len(all), report.SkipsMax)
	for _, s := range all[:listed] {
		skips = append(skips, report.Skip{ID: s.ID, Event: s.Event, By: s.By, Via: s.Via, Reason: s.Reason, Since: s.At, Until: s.Until, End: s.End})
	}
	return skips, len(all) - listed
}

// skipped takes the ends of skips at this member.
func (n *Node) skipped(ends []event.Skipped) {
	if n.parts.Acts != nil {
		n.parts.Acts.Ended(ends)
	}
	n.schedules.skipped(ends)
}

// FirstEvent asks the group for the event of a key that runs, or else the one that runs next at the owner. It fails if a member knows of a
// skip of the key: this one has not read it yet, and the event may be the one behind that of the skip.
func FirstEvent(ctx context.Context, group *report.Group, key event.Key) (event.MessageID, error) {
	k := group.Key(ctx, key)
	if len(k.At) == 0 || k.Owner == "" {
		return event.MessageID{}, fmt.Errorf("%w: the group has no table yet", act.ErrUnreadable)
	}
	first := k.At[0] // the owner's word
	for _, at := range k.At {
		if len(at.Skips) > 0 {
			return event.MessageID{}, fmt.Errorf("%w: %s knows of a skip of the key that this member has not read yet", act.ErrUnknown, at.Member)
		}
		if at.Wait == "handler" && first.Wait != "handler" {
			first = at // a former owner, whose handler has not ended
		}
	}
	switch {
	case first.Error != "" || first.Member != k.Owner && first.Wait != "handler":
		return event.MessageID{}, fmt.Errorf("%w: %s, which owns the key, does not answer (%s): say which event", act.ErrUnreadable, k.Owner, first.Error)
	case first.Wait == report.WaitsForNothing:
		return event.MessageID{}, fmt.Errorf("%w: no event of the key runs or waits at its owner, %s", act.ErrNothing, first.Member)
	case first.Call:
		return event.MessageID{}, fmt.Errorf("%w: a call of the key runs or waits first at %s, which cannot be skipped: say which event", act.ErrNothing, first.Member)
	}
	return event.ParseMessageID(first.Event)
}

// actsStatus returns what this member knows of acts; nil: it takes none.
func (n *Node) actsStatus() *report.Acts {
	if n.parts.Acts == nil {
		return nil
	}
	skips := n.parts.Acts.Skips()
	parks, lapsed := n.parts.Acts.Parks()
	acts := &report.Acts{HeldKeys: n.parts.Acts.HeldKeys(), Skips: &skips, Parks: &parks, Lapsed: lapsed}
	if err := n.parts.Acts.Check(); err != nil {
		acts.Error = err.Error()
	}
	return acts
}
