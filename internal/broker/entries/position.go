package entries

import (
	"context"
	"time"

	"github.com/ringfence/router/internal/broker/entries/wire"
)

// positionAt is the position of a subscription at a broker: all entries up to it were acked.
type positionAt struct {
	cluster uint64
	id      wire.ID
	known   bool
}

// positionEvery is the interval at which a broker is asked for the position of a subscription.
const positionEvery = time.Minute

// follow asks for the position of the subscription at the beginning of a session and every positionEvery. The
// position moves back if the subscription was deleted and created again, if its cursor was reset, or if a broker
// ended before it saved the position; nothing else shows this.
func (c *Consumer) follow(ctx context.Context, s *session) {
	ticker := time.NewTicker(positionEvery)
	defer ticker.Stop()
	for {
		asked, cancel := context.WithTimeoutCause(ctx, c.client.cfg.OperationTimeout, errNoAnswer)
		r, err := s.lastIDs(asked)
		cancel()
		if id := r.GetConsumerMarkDeletePosition(); err == nil && id != nil { // brokers before Pulsar 2.8 do not tell
			c.stands(positionAt{cluster: s.cluster, id: idOf(id), known: true})
		}
		select {
		case <-ticker.C:
		case <-s.ended:
			return
		case <-s.conn.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// stands notes the position, and tells if it is before the last one.
func (c *Consumer) stands(now positionAt) {
	c.mu.Lock()
	before := c.position
	c.position = now
	c.mu.Unlock()
	if before.known && before.cluster == now.cluster && compare(now.id, before.id) < 0 {
		c.client.metrics.setBack.Inc()
		c.client.log.Warn("the position of the subscription moved back: settled events are delivered again",
			"topic", c.sub.Topic, "subscription", c.sub.Name, "before", before.id, "now", now.id)
	}
}
