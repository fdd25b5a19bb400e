package node

import (
	"context"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/clock"
)

// consume reads the subscription while this node is a member with an application,
// and not otherwise: a node that can work on nothing takes nothing from the others.
func (n *Node) consume(ctx context.Context) error {
	defer close(n.settled)
	for n.waitUntil(ctx, n.mayConsume) {
		if err := n.consumeOnce(ctx); err != nil {
			return err
		}
	}
	return nil
}

// consumeOnce reads until the node may not any more, and then waits until everything
// that it has received is settled.
func (n *Node) consumeOnce(ctx context.Context) error {
	src := n.parts.Source()
	n.source.Store(src)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() {
		failed <- src.Run(reading, n.pipeline.Received)
		stop()
	}()
	n.log.Info("consuming")
	n.waitUntil(reading, func() bool { return !n.mayConsume() })
	if reading.Err() == nil {
		n.log.Info("no longer consuming")
		_ = src.Drain(reading) // an error means that reading has ended, which is all we wait for
	}
	stop()
	if err := <-failed; err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return nil
}

func (n *Node) mayConsume() bool {
	select {
	case <-n.draining:
		return false
	default:
	}
	l := n.life.Load()
	return l != nil && l.isMember() && !n.appIsGone()
}

// appIsGone reports whether the application has been away for longer than a restart
// of its stream explains.
func (n *Node) appIsGone() bool {
	return n.Workers() == 0 && clock.Now().Sub(clock.Instant(n.since.Load())) > n.cfg.Timing.AppAbsence
}

// waitUntil blocks until the condition holds, and reports false when ctx ended or the
// node drains and so it never will.
func (n *Node) waitUntil(ctx context.Context, holds func() bool) bool {
	const again = 200 * time.Millisecond // absence is a matter of time, which nobody reports
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for {
		if holds() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-n.draining:
			return holds()
		case <-n.changed:
		case <-ticker.C:
		}
	}
}
