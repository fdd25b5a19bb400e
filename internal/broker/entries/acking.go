package entries

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Ack acks an entry, or all chunks of a message. The first chunk is acked last, even if chunks were handed on one by
// one. A first chunk that arrived before the latest reconnect is not acked: the broker sends it again, and needs it
// in order to send the other chunks. It fails for an entry of a cluster that the topic has left.
func (d *Delivered) Ack() error {
	c := d.Consumer
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.Cluster != c.seeds.cluster {
		return errMoved
	}
	ids := []wire.ID{d.ID}
	switch {
	case d.Chunks != nil:
		ids = append(slices.Clone(d.Chunks[1:]), d.Chunks[0])
	case d.part:
		held := &alone{} // between two sessions
		if c.session != nil {
			held = &c.session.alone
		}
		ids = held.done(c.client.now(), d.ID, d.first)
	}
	acks := make([]wire.AckID, len(ids))
	for i, id := range ids {
		acks[i].ID = id
	}
	return c.ack(acks)
}

// AckPart acks some events of an entry, all but those of ackSet.
func (d *Delivered) AckPart(ackSet []uint64, events int) error {
	c := d.Consumer
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.Cluster != c.seeds.cluster {
		return errMoved
	}
	return c.ack([]wire.AckID{{ID: d.ID, AckSet: ackSet, BatchSize: int32(events)}})
}

// AckUpTo acks an entry of a subscription that is not Shared, and all entries before it, and returns once the broker has confirmed it; brokers before Pulsar 2.8
// do not. It retries until the OperationTimeout.
func (c *Consumer) AckUpTo(ctx context.Context, id wire.ID) error {
	var refused error
	err := c.ask(ctx, func(ctx context.Context, s *session) error {
		ack := &pulsarpb.CommandAck{
			ConsumerId: &s.id, AckType: pulsarpb.CommandAck_CUMULATIVE.Enum(),
			MessageId: []*pulsarpb.MessageIdData{{LedgerId: new(uint64(id.Ledger)), EntryId: new(uint64(id.Entry))}},
		}
		command := &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ACK.Enum(), Ack: ack}
		if s.conn.protocol < receiptsSince {
			return s.conn.post(command)
		}
		ack.RequestId = new(c.client.ids.Add(1))
		answer, err := s.conn.request(ctx, ack.GetRequestId(), command)
		if err == nil {
			refused = answered(answer)
		}
		return err
	})
	return cmp.Or(err, refused)
}

// ack acks entries, or some of their events, including entries of earlier connections. Acks of whole entries are sent at once if none were
// sent for AckDelayMax. Others are sent in groups after at most AckDelayMax, after a reconnect, and at Close. The caller holds the lock.
func (c *Consumer) ack(ids []wire.AckID) error {
	if c.over != nil {
		return c.over
	}
	c.acks.add(ids)
	if c.acks.full(c.client.cfg.AckGroupMax) || c.idle() {
		c.flush()
	} else {
		c.later()
	}
	return nil
}

// idle reports whether acks need not wait to share a command. Acks of events of one entry follow each other. The caller holds the lock.
func (c *Consumer) idle() bool {
	return !c.acks.sets && time.Since(c.ackedAt) >= c.client.cfg.AckDelayMax //nolint:forbidigo // only groups acks
}

// later sends acks and permits after AckDelayMax, unless something else sends them before. The caller holds the lock.
func (c *Consumer) later() {
	if !c.delayed {
		c.delayed = true
		c.delay.Reset(c.client.cfg.AckDelayMax)
	}
}

// flushLate sends acks and permits when their delay is over.
func (c *Consumer) flushLate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delayed = false
	c.flush()
}

// awake makes the goroutine of the consumer pass on receipts.
func (c *Consumer) awake() { signal.Set(c.wake) }

// flush sends all acks and permits, if there is a session. The caller holds the lock.
func (c *Consumer) flush() {
	s := c.session
	if s == nil {
		return
	}
	if c.delayed {
		c.delayed = false
		c.delay.Stop()
	}
	if len(c.acks.ids) > 0 {
		c.ackedAt = time.Now() //nolint:forbidigo // only groups acks
	}
	for _, ids := range c.acks.take(c.client.cfg.AckGroupMax) {
		request := c.asked(s, ids)
		s.conn.send(func(dst []byte) []byte { return wire.AppendAck(dst, s.id, request, ids) })
		c.client.metrics.acks.Add(float64(len(ids)))
		s.settled(ids...)
	}
	s.rest()
}

// asked returns the request id of acks, 0 if no receipt is requested.
func (c *Consumer) asked(s *session, ids []wire.AckID) uint64 {
	if c.sub.Receipt == nil {
		return 0
	}
	if s.conn.protocol < receiptsSince {
		c.settled = append(c.settled, receipt{ids: ids})
		c.awake()
		return 0
	}
	request := c.client.ids.Add(1)
	s.receipts[request] = awaited{ids: ids}
	_ = s.conn.expect(request, func(answer *pulsarpb.BaseCommand) { // if the connection has ended, they are sent again on the next connection
		c.mu.Lock()
		defer c.mu.Unlock()
		c.confirm(s, request, answered(answer))
	})
	return request
}

// answered returns the error of an answer to acks.
func answered(answer *pulsarpb.BaseCommand) error {
	r := answer.GetAckResponse()
	switch {
	case r == nil:
		return errors.New("entries: ack: the answer is another command")
	case r.Error != nil || r.GetMessage() != "":
		return fmt.Errorf("entries: ack: %s: %s", codeName(r.GetError()), words(r.GetMessage()))
	}
	return nil
}

// confirm settles the acks of a request. The caller holds the lock.
func (c *Consumer) confirm(s *session, request uint64, err error) {
	a, ok := s.receipts[request]
	if !ok {
		return
	}
	delete(s.receipts, request)
	if err != nil {
		s.doubtful = true
		c.client.metrics.receiptsFailed.Add(float64(len(a.ids)))
	}
	c.settled = append(c.settled, receipt{a.ids, err})
	c.awake()
}
