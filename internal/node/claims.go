package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/controllog/claim"
)

// keepClaims claims the subscription for this group, and ends the node if it belongs to another one.
func (n *Node) keepClaims(ctx context.Context) error {
	if n.parts.Claims == nil {
		<-ctx.Done()
		return nil
	}
	err := n.parts.Claims.Run(ctx)
	if errors.Is(err, claim.ErrTaken) || errors.Is(err, claim.ErrReleased) {
		n.log.Error("the subscription belongs to another group", "error", err)
		return fmt.Errorf("%w: %w: %w", ErrExit, ErrIdentity, err)
	}
	return err
}

// awaitClaims blocks until the claims are held: before that this node joins no group. It reports false when ctx ended.
func (n *Node) awaitClaims(ctx context.Context) bool {
	return n.parts.Claims == nil || n.awaitOutside(ctx, n.parts.Claims.Held(), nil)
}

// awaitOutside blocks a node that is outside of its group until ready is closed, or patience, nil for endless, fires. It
// reports false when ctx ended. A drain has nothing to leave meanwhile, but may outlast the patience.
func (n *Node) awaitOutside(ctx context.Context, ready <-chan struct{}, patience <-chan time.Time) bool {
	for {
		s := n.drainCycle()
		select {
		case <-ready:
			return true
		case <-patience:
			return true
		case <-s.draining:
			close(s.left)
			if !s.next(ctx) {
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
}

// claimedGeneration returns the generation, according to the claims, of the fencing tokens of
// groups on this subscription.
func (n *Node) claimedGeneration() (gen uint32, had bool) {
	if n.parts.Claims == nil {
		return 0, false
	}
	return n.parts.Claims.Began()
}

// noteBegan writes into the claims that fencing tokens of a generation are given out.
func (n *Node) noteBegan(gen uint32) {
	if n.parts.Claims != nil && n.cfg.Mode == Strict {
		n.parts.Claims.NoteBegan(gen)
	}
}

// CheckClaim returns an error while it is not known whether the subscription is this group's.
func (n *Node) CheckClaim() error {
	if n.parts.Claims == nil {
		return nil
	}
	return n.parts.Claims.Check()
}
