package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
)

// consume reads the subscription while this node is a member with an application. Otherwise it
// reads nothing: a node without an application must not take events from other members.
func (n *Node) consume(ctx context.Context) error {
	for {
		s := n.drainCycle()
		err := n.consumeWhileAllowed(ctx, s)
		close(s.settled)
		if err != nil || !s.next(ctx) {
			return err
		}
	}
}

// consumeWhileAllowed consumes whenever this node may, until it is to drain. It returns only errors that do not pass by
// waiting.
func (n *Node) consumeWhileAllowed(ctx context.Context, s *drainCycle) error {
	pauses := backoff.Backoff{Min: 500 * time.Millisecond, Max: 15 * time.Second}
	for n.waitUntil(ctx, s.draining, func() bool { return n.mayConsume(s) }) {
		began := clock.Now()
		err := n.consumeOnce(ctx, s)
		n.noteNotConsuming(err)
		switch {
		case errors.Is(err, source.ErrSubscriptionType):
			return fmt.Errorf("node: %w", err) // the subscription has another type, which does not pass by waiting
		case err != nil:
			if clock.Now().Sub(began) > pauses.Max {
				pauses.Reset()
			}
			pause := pauses.Next()
			n.log.Warn("cannot consume; trying again", "error", err, "pause", pause)
			select {
			case <-ctx.Done():
			case <-s.draining:
			case <-time.After(pause):
			}
		}
	}
	return nil
}

// settleMax bounds the wait of a node that stops reading for its verdicts: many round trips to
// any owner. Events that run for longer are redelivered to another node and join their
// execution; if this node waited for them, the client's prefetched events would wait, too.
const settleMax = 20 * time.Millisecond

// consumeOnce reads until the node must stop consuming. A node that drains reads for other members
// until its partitions have moved, or its application is gone, and then until the next owners have
// the ids of finished events: the end of the subscription makes the broker deliver open entries
// again, and with them finished events, which must not come before their ids.
func (n *Node) consumeOnce(ctx context.Context, s *drainCycle) error {
	topics := n.topicsToConsume()
	src := n.parts.Source(topics)
	if earlier := n.source.Load(); earlier != nil {
		src.ContinueAfter(earlier)
	}
	if acts := n.parts.Acts; acts != nil {
		src.SetParked(func(key event.Key) bool { _, is := acts.ParkOf(key); return is })
	}
	src.SetTracing(source.Tracing{Tracer: n.parts.Tracing.Tracer, Keys: n.parts.Tracing.Keys})
	n.source.Store(src)
	n.pipeline.SetSource(src)
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
	n.waitUntil(reading, s.draining, func() bool { return !n.mayConsume(s) || !slices.Equal(topics, n.topicsToConsume()) })
	if s.isDraining() {
		n.waitUntil(reading, s.handedOver, func() bool { return !signal.IsClosed(s.left) && n.appIsGone() })
	}
	if reading.Err() == nil {
		n.log.Info("no longer consuming")
		settling, done := context.WithTimeout(reading, settleMax)
		_ = src.Drain(settling) // an error means that the rest is left to others
		done()
	}
	stop()
	running.Wait()
	return err
}

// shareAllowance tells the source how many members share the broker's allowance.
func (n *Node) shareAllowance() {
	if src, t := n.source.Load(), n.Table(); src != nil && t != nil {
		src.SetMembers(len(t.Members))
	}
}

// noteConsuming records that the subscription is open.
func (n *Node) noteConsuming(ctx context.Context, src *source.Source) {
	select {
	case <-src.Ready():
		n.consumeErr.Store(nil)
		n.log.Info("consuming")
		n.pipeline.AskEnds()
	case <-ctx.Done():
	}
}

// noteNotConsuming records why it is not open; err is nil if it was closed on purpose.
func (n *Node) noteNotConsuming(err error) {
	if err == nil {
		err = errNotSubscribed
	}
	n.consumeErr.Store(&err)
}

// mayConsume reports whether this node is a member with an application that does not drain, and has a topic to consume.
func (n *Node) mayConsume(s *drainCycle) bool {
	l := n.incarnation.Load()
	return !s.isDraining() && l != nil && l.isMember() && !n.appIsGone() && len(n.topicsToConsume()) > 0
}

// topicsToConsume returns those of this node's topics that all members list: while a deploy
// adds or removes a topic, no application may get events of a topic that its own settings do
// not list. A member of a release that does not list its topics counts as listing all.
func (n *Node) topicsToConsume() []string {
	waiting := n.TopicsNotConsumed()
	return slices.DeleteFunc(slices.Clone(n.cfg.Topics), func(topic string) bool { return waiting[topic] != nil })
}

// TopicsNotConsumed returns those of this node's topics that wait until all members list them, each with the names of
// the members that do not. Nil: all are consumed, as far as this node consumes at all.
func (n *Node) TopicsNotConsumed() map[string][]string {
	t := n.Table()
	if t == nil {
		return nil
	}
	if known := n.topicsWaiting.Load(); known != nil && known.table == t {
		return known.topics
	}
	var waiting map[string][]string
	for _, topic := range n.cfg.Topics {
		for _, m := range t.Members {
			if len(m.Topics) > 0 && !slices.Contains(m.Topics, topic) {
				if waiting == nil {
					waiting = map[string][]string{}
				}
				waiting[topic] = append(waiting[topic], m.Name)
			}
		}
	}
	n.topicsWaiting.Store(&topicsWaiting{t, waiting})
	return waiting
}

// topicsWaiting are the topics that wait by a table. Probes ask, so they are worked out once.
type topicsWaiting struct {
	table  *ownership.Table
	topics map[string][]string // never written to
}

// noteTopics logs the topics that are not consumed, whenever they change.
func (n *Node) noteTopics() {
	waiting := n.TopicsNotConsumed()
	text := ""
	for _, topic := range slices.Sorted(maps.Keys(waiting)) {
		text += fmt.Sprintf("%s is not listed by %s; ", topic, strings.Join(waiting[topic], ", "))
	}
	text = strings.TrimSuffix(text, "; ")
	n.metrics.topicsNotConsumed.Set(float64(len(waiting)))
	if text == n.topicsNoted {
		return
	}
	n.topicsNoted = text
	if text == "" {
		n.log.Info("all topics are consumed: all members list them")
		return
	}
	n.log.Warn("topics are not consumed until all members list them", "reason", text)
}

// appIsGone reports whether the application has been away for longer than a restart
// of its stream explains.
func (n *Node) appIsGone() bool {
	return n.Workers() == 0 && clock.Now().Sub(clock.Instant(n.noWorkerSince.Load())) > n.cfg.Timing.AppAbsence
}

// waitUntil blocks until the condition holds, and returns true. It returns false when ctx ends, or when over is closed and
// the condition does not hold then. wakeConsumer makes it check again.
func (n *Node) waitUntil(ctx context.Context, over <-chan struct{}, holds func() bool) bool {
	const again = 200 * time.Millisecond // the length of an absence is not reported, so poll
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if holds() {
			return true
		}
		select {
		case <-ctx.Done():
		case <-over:
			return holds()
		case <-n.changed:
		case <-ticker.C:
		}
	}
	return false
}
