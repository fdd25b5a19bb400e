package source

import (
	"context"
)

// SetMembers sets the number of members, this one included, that share the subscription
// and so the broker's allowance for it. It may be called at any time.
func (s *Source) SetMembers(members int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = members
	s.share()
}

// share computes this node's share of the broker's allowance anew, and makes the ledger and the reader keep to it. The
// caller holds the lock.
func (s *Source) share() {
	s.ledger.Bound(s.cfg.bounds(s.members))
	if s.broker != nil {
		s.broker.bound(s.cfg.unackedMax(s.members, s.ramp))
	}
}

func (s *Source) unackedMax() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.unackedMax(s.members, s.ramp)
}

// growShare is a goroutine. It doubles the share every rampEvery until it has its full size, and ends then.
func (s *Source) growShare(ctx context.Context) {
	every(ctx, rampEvery, func() (again bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ramp++
		s.share()
		return s.ramp < rampSteps
	})
}

// adoptLimits replaces the configured limits by the broker's own.
func (s *Source) adoptLimits(ctx context.Context, broker connection) error {
	l, known, err := broker.limits(ctx)
	if err != nil {
		s.log.Warn("cannot ask the broker for its limits; using the configured ones", "error", err)
		return nil
	}
	if !known {
		return nil
	}
	switch {
	case l.batchIndexAcks == "false" && s.cfg.Counting == CountEvents:
		return errCounting
	case l.batchIndexAcks == "true" && s.cfg.Counting == CountEntries:
		s.log.Info("the broker can ack single events of a batch: set pulsar.batch_index_acks at all members to pin fewer events")
	}
	s.setLimits(l)
	s.log.Info("the broker's limits", "unacked_consumer", l.unackedConsumer, "unacked_subscription", l.unackedSubscription)
	return nil
}

// setLimits sets the broker's limits, makes the ledger and the reader keep to them, and reports whether they are others than before.
func (s *Source) setLimits(l limits) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.cfg.UnackedConsumerMax != l.unackedConsumer || s.cfg.UnackedSubscriptionMax != l.unackedSubscription
	s.cfg.UnackedConsumerMax, s.cfg.UnackedSubscriptionMax = l.unackedConsumer, l.unackedSubscription
	if changed {
		s.share()
	}
	return changed
}

// followLimits is a goroutine. It asks for the broker's limits every DiscoverEvery: if a policy has lowered them and this node
// did not know, the broker would stop sending before anything is spilled, and all keys would wait for the stuck ones.
func (s *Source) followLimits(ctx context.Context, broker connection) {
	failed := false
	every(ctx, s.cfg.DiscoverEvery, func() (again bool) {
		l, known, err := broker.limits(ctx)
		switch {
		case ctx.Err() != nil || err == nil && !known:
			return false
		case err != nil:
			if !failed { // said once, until it works again
				s.log.Warn("cannot ask the broker for its limits; the last known limits remain in use", "error", err)
			}
		case s.setLimits(l):
			s.log.Warn("the broker's limits have changed", "unacked_consumer", l.unackedConsumer, "unacked_subscription", l.unackedSubscription)
		}
		failed = err != nil
		return true
	})
}
