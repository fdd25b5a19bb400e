package entries

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/topicname"
)

// pace computes the delay before a consumer subscribes again. Pure.
type pace struct{ delays backoff.Backoff }

// after returns the delay after the end of a session: none if the broker ended it in an orderly way, unless that happens repeatedly. A
// session that lasted longer than the longest delay was steady.
func (p *pace) after(reason string, steady bool) time.Duration {
	if steady {
		p.delays.Reset()
		if reason != reasonConnection {
			return 0
		}
	}
	return p.delays.Next()
}

// run serves sessions until the consumer is closed or lost.
func (c *Consumer) run(ctx context.Context, s *session) {
	defer close(c.gone)
	defer c.client.remove(c)
	p := pace{backoff.Backoff{Min: c.client.cfg.BackoffMin, Max: c.client.cfg.BackoffMax}}
	for {
		steady := c.serve(ctx, s)
		if ctx.Err() != nil {
			c.closeAtBroker(context.WithoutCancel(ctx), s)
		}
		e := c.leave(s)
		var err error
		if s, err = c.again(ctx, e, p.after(e.reason, steady), &p); err != nil {
			c.quit(err)
			return
		}
	}
}

// serve passes on the receipts of a session until the session or ctx ends.
func (c *Consumer) serve(ctx context.Context, s *session) (steady bool) {
	cfg := c.client.cfg
	ticker := time.NewTicker(cfg.tick())
	defer ticker.Stop()
	lasting := time.NewTimer(cfg.BackoffMax)
	defer lasting.Stop()
	following, stop := context.WithCancel(ctx)
	defer stop()
	if c.read == nil {
		c.client.work.Go(func() { c.follow(following, s) })
	}
	for {
		select {
		case <-c.wake:
			c.report()
		case <-ticker.C:
			c.tick(s)
		case <-lasting.C:
			steady = true
		case <-s.ended:
			return steady
		case <-s.conn.done:
			return steady
		case <-ctx.Done():
			return steady
		}
	}
}

// tick is the interval at which a consumer checks for overdue chunks and receipts.
func (c Config) tick() time.Duration { return min(c.GivenUpDelay, c.OperationTimeout) }

// report calls Receipt.
func (c *Consumer) report() {
	c.mu.Lock()
	settled := c.settled
	c.settled = nil
	c.mu.Unlock()
	for _, r := range settled {
		c.sub.Receipt(r.ids, r.err)
	}
}

// tick gives up overdue chunks and receipts, and has an idle broker count anew.
func (c *Consumer) tick(s *session) {
	chunks := c.chunks.tick()
	left := chunks.GivenUp
	if c.sub.Type != Shared { // the broker would begin anew with all that is not acked; the next consumer gets them
		left = nil
	}
	for len(left) > 0 {
		n := min(len(left), c.client.cfg.AckGroupMax)
		s.conn.send(func(dst []byte) []byte { return wire.AppendRedeliver(dst, s.id, left[:n]) })
		left = left[n:]
	}
	for i := range chunks.Incomplete {
		s.incomplete(&chunks.Incomplete[i])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range chunks.GivenUp {
		s.settled(wire.AckID{ID: id}) // the broker has them back
	}
	if c.read == nil {
		for _, id := range append(chunks.Redundant, s.alone.expire(c.client.now())...) {
			c.acks.add([]wire.AckID{{ID: id}})
		}
	}
	cfg := c.client.cfg
	for request, a := range s.receipts {
		if a.ticks++; time.Duration(a.ticks-1)*cfg.tick() >= cfg.OperationTimeout {
			s.conn.unexpect(request)
			c.confirm(s, request, fmt.Errorf("entries: ack: %w", errNoAnswer))
			continue
		}
		s.receipts[request] = a
	}
	s.recount()
	c.later()
}

// closeAtBroker sends the last acks and closes the consumer at the broker.
func (c *Consumer) closeAtBroker(ctx context.Context, s *session) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.client.cfg.CloseTimeout, errNoAnswer)
	defer cancel()
	c.mu.Lock()
	c.over = ErrClosed // no acks from now on
	c.flush()
	c.mu.Unlock()
	for c.unconfirmed(s) {
		select {
		case <-c.wake:
			continue
		case <-ctx.Done():
		case <-s.conn.done:
		}
		break
	}
	id := c.client.ids.Add(1)
	if _, err := s.conn.request(ctx, id, closeConsumer(s.id, id)); err != nil {
		c.client.log.Debug("consumer not closed at the broker", "topic", c.sub.Topic, "error", err)
	}
}

func (c *Consumer) unconfirmed(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(s.receipts) > 0
}

// leave ends the use of a session. Its entries that were not received are dropped, and acks without a receipt wait for the next session.
func (c *Consumer) leave(s *session) ending {
	s.conn.detach(s)
	c.chunks.begin(nil)
	c.client.unshare(s.share)
	c.mu.Lock()
	moves := s.end.reason == reasonMigrated
	if moves || s.end.over != nil { // the broker still has the consumer
		c.flush()
		_ = s.conn.post(closeConsumer(s.id, c.client.ids.Add(1)))
	}
	e := s.end
	if e.reason == "" {
		e.reason = reasonConnection
	}
	if e.seeds != nil {
		c.seeds = e.seeds
	}
	c.client.metrics.permits.Sub(float64(s.permits.granted))
	c.client.metrics.unacked.Sub(float64(s.permits.unacked))
	for _, request := range slices.Sorted(maps.Keys(s.receipts)) { // in order: the first chunk of a message goes last
		s.conn.unexpect(request)
		if ids := s.receipts[request].ids; moves { // the next session's broker would take them for its own entries
			c.client.metrics.receiptsFailed.Add(float64(len(ids)))
			c.settled = append(c.settled, receipt{ids, errMoved})
			c.awake()
		} else {
			c.acks.add(ids)
		}
	}
	clear(s.receipts)
	c.session = nil
	c.mu.Unlock()
	if e.seeds != nil {
		base, _ := topicname.Split(c.sub.Topic)
		c.client.learn(base, func(k *known) { k.moved = e.seeds })
	}
	c.sub.Queue.drop(s)
	return e
}

// again subscribes until it succeeds, the consumer is closed, or the failure is final.
func (c *Consumer) again(ctx context.Context, e ending, delay time.Duration, p *pace) (*session, error) {
	if e.over != nil {
		return nil, &LostError{Consumer: c, Topic: c.sub.Topic, Cause: e.over}
	}
	connects := backoff.Backoff{Min: c.client.cfg.BackoffMin, Max: c.client.cfg.ReconnectMax}
	for {
		if backoff.Sleep(ctx, c.client.jitter(delay)) != nil || ctx.Err() != nil {
			return nil, ErrClosed
		}
		s, err := c.subscribe(ctx, e.next)
		switch {
		case err == nil:
			c.client.metrics.reconnects.WithLabelValues(e.reason).Inc()
			c.client.log.Debug("subscribed again", "topic", c.sub.Topic, "broker", s.conn.to.String(), "reason", e.reason)
			return s, nil
		case ctx.Err() != nil || errors.Is(err, ErrClosed):
			return nil, ErrClosed
		case final(err) && e.next == (address{}): // a refusal by a broker that was only named by another broker is not final
			return nil, &LostError{Consumer: c, Topic: c.sub.Topic, Cause: err}
		}
		e.next = address{} // a named broker gets one attempt
		if refused := (*BrokerError)(nil); errors.As(err, &refused) {
			delay = p.delays.Next()
		} else {
			delay = connects.Next() // separate, so that the first answers after a long outage get short delays
		}
		if log, due := c.client.trouble.Line(); due {
			log.Warn("cannot subscribe again to a topic partition; trying again", "topic", c.sub.Topic, "again_in", delay, "error", err)
		}
	}
}

// quit ends the consumer, and reports the acks that were not confirmed.
func (c *Consumer) quit(err error) {
	c.mu.Lock()
	c.delay.Stop()
	if c.over == nil {
		c.over = err
	}
	if n := len(c.acks.ids); n > 0 {
		c.client.metrics.acksUnsent.Add(float64(n))
		c.client.log.Warn("a consumer ended while it was disconnected; the broker will deliver its entries again", "topic", c.sub.Topic, "acks_unsent", n, "error", err)
	}
	for _, ids := range c.acks.take(c.client.cfg.AckGroupMax) {
		if c.sub.Receipt != nil {
			c.settled = append(c.settled, receipt{ids, err})
		}
	}
	c.mu.Unlock()
	c.report()
	if errors.Is(err, ErrLost) {
		c.sub.Queue.lose(err)
	}
}

// remove forgets a consumer that has ended.
func (c *Client) remove(consumer *Consumer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.consumers, consumer)
}
