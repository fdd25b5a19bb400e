package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/report"
)

// drainCycle is one period of membership: from the start, or from an Undrain, to the end of
// a drain. A drain that has begun always completes: the node comes back as a new incarnation,
// with no state of the cycle before.
type drainCycle struct {
	number     int           // 0: the first one
	draining   chan struct{} // closed when a drain was asked for
	left       chan struct{} // closed when this node owns no partition and no handler runs
	handedOver chan struct{} // closed when the next owners have the ids of finished events, or the time for that is over
	settled    chan struct{} // closed when the source is done
	drained    chan struct{} // closed when all of these are
	over       chan struct{} // closed when the next cycle has begun
}

func newDrainCycle(number int) *drainCycle {
	return &drainCycle{
		number:   number,
		draining: make(chan struct{}), left: make(chan struct{}), handedOver: make(chan struct{}),
		settled: make(chan struct{}), drained: make(chan struct{}), over: make(chan struct{}),
	}
}

// isDraining reports whether a drain was asked for.
func (s *drainCycle) isDraining() bool { return signal.IsClosed(s.draining) }

// isDrained reports whether that drain has ended.
func (s *drainCycle) isDrained() bool { return signal.IsClosed(s.drained) }

// next blocks until the next cycle has begun. It returns false if ctx ends first.
func (s *drainCycle) next(ctx context.Context) bool {
	select {
	case <-s.over:
		return true
	case <-ctx.Done():
		return false
	}
}

// drainCycles holds the current cycle of a node, and whether the next one was requested.
type drainCycles struct {
	mu      sync.Mutex
	present *drainCycle
	rejoin  bool          // an Undrain came after the newest Drain
	ending  bool          // Run drains for the last time
	wanted  chan struct{} // cap 1: rejoin was set
}

func newDrainCycles() drainCycles {
	return drainCycles{present: newDrainCycle(0), wanted: make(chan struct{}, 1)}
}

// drainCycle returns the current cycle.
func (n *Node) drainCycle() *drainCycle {
	n.drainCycles.mu.Lock()
	defer n.drainCycles.mu.Unlock()
	return n.drainCycles.present
}

// Drain makes the node stop consuming, leave the group in order, and finish its accepted
// events. It does not end Run. The channel is closed when the drain is complete. A repeated
// call has no effect, except that it cancels an [Node.Undrain] in between.
func (n *Node) Drain() <-chan struct{} {
	n.drainCycles.mu.Lock()
	defer n.drainCycles.mu.Unlock()
	s := n.drainCycles.present
	n.drainCycles.rejoin = false
	if !s.isDraining() {
		n.metrics.drains.Inc()
		n.log.Info("draining")
		n.lane.Leave()
		close(s.draining)
	}
	return s.drained
}

// ErrEnding says that the process is shutting down and can no longer join the group.
var ErrEnding = errors.New("node: shutting down")

// Undrain makes a node that drains or has drained take part again, without a restart:
// when the drain has ended, a new incarnation joins the group. The channel
// is closed when that begins, and is closed already if the drain has ended, or the node does not drain. The
// error is [ErrEnding], or nil.
func (n *Node) Undrain() (<-chan struct{}, error) {
	n.drainCycles.mu.Lock()
	defer n.drainCycles.mu.Unlock()
	switch s := n.drainCycles.present; {
	case n.drainCycles.ending:
		return nil, fmt.Errorf("%w: it is shutting down; start it again instead", ErrEnding)
	case !s.isDraining():
		begun := make(chan struct{})
		close(begun)
		return begun, nil
	default:
		if !n.drainCycles.rejoin {
			n.log.Info("rejoining the group once drained")
		}
		n.drainCycles.rejoin = true
		if s.isDrained() {
			n.nextDrainCycle(s)
		}
		signal.Set(n.drainCycles.wanted)
		return s.over, nil
	}
}

// endDrain drains for the last time: no cycle follows.
func (n *Node) endDrain() <-chan struct{} {
	n.drainCycles.mu.Lock()
	n.drainCycles.ending = true
	n.drainCycles.mu.Unlock()
	return n.Drain()
}

// keepDrainCycles records the end of each drain, and begins the next cycle when it is requested,
// until ctx ends.
func (n *Node) keepDrainCycles(ctx context.Context) {
	for {
		s := n.drainCycle()
		if !n.untilDrained(ctx, s) {
			return
		}
		n.log.Info("drained")
		close(s.drained)
		for !n.beginDrainCycle(s) {
			select {
			case <-n.drainCycles.wanted:
			case <-ctx.Done():
				return
			}
		}
		n.log.Info("rejoining the group")
	}
}

// untilDrained blocks until this node owns nothing, runs nothing, has handed its finished ids to
// the next owners, and what it knows of moves to all members, has closed its subscription, and its callers
// have their answers. It reports false if ctx ended before; an incomplete handover does not count.
func (n *Node) untilDrained(ctx context.Context, s *drainCycle) bool {
	select {
	case <-s.left:
	case <-ctx.Done():
		return false
	}
	n.handOver(ctx)
	close(s.handedOver)
	if n.audit != nil {
		n.audit.tellMoves(ctx)
	}
	select {
	case <-s.settled:
	case <-ctx.Done():
		return false
	}
	n.lane.Finish(ctx) // owners answer as long as the streams to them last
	return ctx.Err() == nil
}

// unfinished names the open part of a drain, "" if only the handover of finished ids is left.
func (n *Node) unfinished(s *drainCycle) string {
	var lacks []string
	left, unsettled := signal.IsClosed(s.left), n.Unsettled()
	if !left {
		status := n.Status()
		lacks = append(lacks, fmt.Sprintf("it has not left the group: %d partitions are not released", status.Open+status.Draining))
	}
	switch {
	case signal.IsClosed(s.settled):
	case left && !signal.IsClosed(s.handedOver): // the subscription waits for nothing else
	case unsettled > 0:
		lacks = append(lacks, fmt.Sprintf("%d events are not settled; the broker will deliver them again", unsettled))
	case left: // before it leaves, it consumes for other owners
		lacks = append(lacks, "the subscription is not closed")
	}
	if calls := n.lane.Stats().Unanswered; calls > 0 {
		lacks = append(lacks, report.Plural(calls, "call")+" of its callers have no answer: they may run, or have run")
	}
	return strings.Join(lacks, "; ")
}

// DrainStage returns a text that changes when a drain begins, when it ends, and when the node comes back.
func (n *Node) DrainStage() string {
	s := n.drainCycle()
	return fmt.Sprintf("%d %v %v", s.number, s.isDraining(), s.isDrained())
}

// DrainWaits returns what a drain waits for, "" when it waits for nothing. Numbers of several
// conditions are read one after the other, so that they may disagree for a moment.
func (n *Node) DrainWaits() string {
	s := n.drainCycle()
	if !s.isDraining() || s.isDrained() {
		return ""
	}
	return n.drainWaits(s)
}

// drainWaits is DrainWaits for a cycle that drains.
func (n *Node) drainWaits(s *drainCycle) string {
	held := n.heldEvents()
	reserved := n.boxes.Stats().Reserved
	handlers := held.Running - reserved
	switch {
	case !signal.IsClosed(s.left) && handlers > 0:
		return report.Plural(handlers, "handler") + " still running"
	case !signal.IsClosed(s.left) && reserved > 0:
		return report.Plural(reserved, "key") + " still reserved"
	case !signal.IsClosed(s.left):
		status := n.Status()
		if status.Open+status.Waiting+status.Draining == 0 {
			return "the control log has not recorded yet that it has left"
		}
		return report.Plural(status.Open+status.Waiting+status.Draining, "partition") + " not released yet"
	case !signal.IsClosed(s.handedOver):
		return "the next owners of its keys have not taken the ids of finished events yet"
	case held.Unsettled > 0:
		return report.Plural(held.Unsettled, "event") + " not settled yet"
	case signal.IsClosed(s.settled):
		return report.Plural(n.lane.Stats().Unanswered, "call") + " of its callers not answered yet"
	}
	return "the subscription is not closed yet"
}

// handOver sends the next owners the remaining ids of finished events. It gives up when that
// takes too long: the oldest ids are lost first, and a lost id costs at most a duplicate.
func (n *Node) handOver(ctx context.Context) {
	began := clock.Now()
	ctx, giveUp := context.WithTimeout(ctx, handoverTimeout)
	defer giveUp()
	if !n.handOverAll(ctx) {
		n.log.Warn("not all finished events were handed over: those that are redelivered are handled twice", "after", clock.Now().Sub(began))
	}
}

// handOverAll reports whether the next owners have confirmed all ids in time.
func (n *Node) handOverAll(ctx context.Context) bool {
	for n.pipeline.HandOver() { // its driver has ended
		if backoff.Sleep(ctx, pipeline.HandoverPause) != nil {
			return false
		}
	}
	select {
	case <-n.pool.HandedOver():
		return true
	case <-time.After(n.cfg.Forward.DeadAfter):
	case <-ctx.Done():
	}
	return false
}

// handoverTimeout suffices for all that the window of a node holds by default.
const handoverTimeout = 10 * time.Second

// beginDrainCycle reports whether the cycle after s has begun, and begins it if it was requested.
func (n *Node) beginDrainCycle(s *drainCycle) bool {
	n.drainCycles.mu.Lock()
	defer n.drainCycles.mu.Unlock()
	if signal.IsClosed(s.over) {
		return true
	}
	if !n.drainCycles.rejoin || n.drainCycles.ending {
		return false
	}
	n.nextDrainCycle(s)
	return true
}

// nextDrainCycle begins the cycle after s, which has drained. The lock is held.
func (n *Node) nextDrainCycle(s *drainCycle) {
	n.drainCycles.rejoin = false
	n.drainCycles.present = newDrainCycle(s.number + 1)
	n.lane.TakeCalls()
	n.incarnation.Store(nil) // the previous incarnation's state is stale
	close(s.over)
}
