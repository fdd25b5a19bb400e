package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/source"
)

// consume reads the subscription while this node is a member with an application,
// and not otherwise: a node that can work on nothing takes nothing from the others.
func (n *Node) consume(ctx context.Context) error {
	err := n.consumeWhileAllowed(ctx)
	close(n.settled)
	if err == nil {
		<-ctx.Done() // drained, and not over yet
	}
	return err
}

func (n *Node) consumeWhileAllowed(ctx context.Context) error {
	pause := pauseFirst
	for n.waitUntil(ctx, n.mayConsume) {
		began := clock.Now()
		err := n.consumeOnce(ctx)
		n.consumeErr.Store(&err)
		switch {
		case errors.Is(err, source.ErrSubscriptionType):
			return fmt.Errorf("node: %w", err) // somebody uses it in another way: not for us to wait out
		case err != nil:
			if clock.Now().Sub(began) > pauseMax {
				pause = pauseFirst
			}
			n.log.Warn("cannot consume; trying again", "error", err, "pause", pause)
			n.sleep(ctx, pause)
			pause = min(2*pause, pauseMax)
		}
	}
	return nil
}

// The pauses between two attempts to subscribe.
const (
	pauseFirst = 500 * time.Millisecond
	pauseMax   = 15 * time.Second
)

// sleep waits, but not while the node drains.
func (n *Node) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-n.draining:
	case <-timer.C:
	}
}

// CheckSource returns why this node does not consume though it should.
func (n *Node) CheckSource() error {
	if err := n.consumeErr.Load(); err != nil && *err != nil {
		return *err
	}
	return nil
}

// consumeOnce reads until the node may not any more, and then waits until everything
// that it has received is settled.
func (n *Node) consumeOnce(ctx context.Context) error {
	src := n.parts.Source()
	if earlier := n.source.Load(); earlier != nil {
		src.ContinueAfter(earlier)
	}
	n.source.Store(src)
	n.shareAllowance()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var err error
	var running sync.WaitGroup
	running.Go(func() {
		defer stop()
		err = src.Run(reading, n.pipeline)
	})
	running.Go(func() { n.noteConsuming(reading, src) })
	n.waitUntil(reading, func() bool { return !n.mayConsume() })
	if reading.Err() == nil {
		n.log.Info("no longer consuming")
		_ = src.Drain(reading) // an error means that reading has ended, which is all we wait for
	}
	stop()
	running.Wait()
	return err
}

// shareAllowance tells the source with how many it shares the broker's allowance.
func (n *Node) shareAllowance() {
	if src, t := n.source.Load(), n.Table(); src != nil && t != nil {
		src.SetMembers(len(t.Members))
	}
}

// noteConsuming says so when the subscription stands.
func (n *Node) noteConsuming(ctx context.Context, src *source.Source) {
	select {
	case <-src.Ready():
		n.consumeErr.Store(nil)
		n.log.Info("consuming")
	case <-ctx.Done():
	}
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
