package node

import (
	"context"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog/act"
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
	return n.parts.Acts.Run(ctx, n.pipeline)
}

// awaitActs blocks until the acts are read, for a bounded time: before that this node joins no group, so that it does
// not run a key that is held. It reports false when ctx ended. A node that cannot read them takes part without: the
// topic serves operators, and its loss must not stop events.
func (n *Node) awaitActs(ctx context.Context) bool {
	if n.parts.Acts == nil {
		return true
	}
	patience := time.NewTimer(n.parts.Acts.StartWait())
	defer patience.Stop()
	select {
	case <-n.parts.Acts.Read():
	case <-patience.C:
		n.log.Error("taking part without the acts topic: keys that operators hold may run here", "error", n.parts.Acts.Check(), "after", n.parts.Acts.StartWait())
	case <-n.drainCycle().draining: // nothing will run
	case <-ctx.Done():
		return false
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

// actsStatus returns what this member knows of acts; nil: it takes none.
func (n *Node) actsStatus() *report.Acts {
	if n.parts.Acts == nil {
		return nil
	}
	acts := &report.Acts{HeldKeys: n.parts.Acts.HeldKeys()}
	if err := n.parts.Acts.Check(); err != nil {
		acts.Error = err.Error()
	}
	return acts
}
