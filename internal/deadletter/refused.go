package deadletter

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ringfence/router/internal/base/backoff"
)

// refusal is what a topic has not taken, for example because of its policy maxMessageSize.
type refusal struct {
	bytes  int // of the smallest event that was sent alone; larger ones count as refused
	events int // that remain, tried or not
}

func (r refusal) err(topic string) error {
	return fmt.Errorf("deadletter: %s has not taken one of %d bytes: a policy, such as maxMessageSize, may refuse it; %d that are no smaller remain", topic, r.bytes, r.events)
}

// refusedNamesMax bounds the names in [Counts.Refused].
const refusedNamesMax = 100

// find looks for the events of the newest batch that were not answered, in their topics, and acks those that it finds. The client reports no refusal,
// and loses the receipts of what its producer sends after the refused event, though that arrives.
//
// The broker answers the request to close the producer when it has handled what it got from it.
func (s *sender) find(ctx context.Context, confirmed []Sent, unanswered []batched, c *Counts) (found int, left []batched, err error) {
	doubt := s.acting.memory.open[s.acting.act.Act]
	recorded := doubt.From
	doubt.Letters, doubt.From = nil, map[string]Place{} // of their topics alone: another one of the batch may have held no message before
	for i := range unanswered {
		e := &unanswered[i]
		doubt.Letters = append(doubt.Letters, e.sent)
		for partition := range s.ends[e.topic] {
			doubt.From[partition] = recorded[partition]
		}
		if p := s.producers[e.topic]; p != nil {
			p.Close()
			delete(s.producers, e.topic)
		}
	}
	if err := backoff.Sleep(ctx, s.acting.broker.cfg.LateMax); err != nil {
		return 0, nil, err
	}
	names, err := s.acting.resolve(ctx, doubt, confirmed)
	if err != nil {
		return 0, nil, fmt.Errorf("deadletter: %d of a batch are not answered: %w", len(unanswered), err)
	}
	for i := range unanswered {
		e := &unanswered[i]
		if !slices.Contains(names, e.sent) {
			left = append(left, *e)
			continue
		}
		found++
		if err := e.settle(c); err != nil {
			return found, nil, fmt.Errorf("deadletter: ack of %s: %w", e.message.ID, err)
		}
	}
	return found, left, nil
}

// sendAlone sends events again that were not taken with others, each alone, and leaves those that are not taken. The smallest come first, and decide
// about the larger ones, since each attempt takes long.
func (s *sender) sendAlone(ctx context.Context, events []batched, c *Counts) error {
	slices.SortStableFunc(events, func(a, b batched) int { return cmp.Compare(a.size(), b.size()) })
	for i := range events {
		e := &events[i]
		if s.isRefused(e) {
			s.refuseUntried(e, c)
			continue
		}
		sent, left, err := s.sendRecorded(ctx, events[i:i+1], c)
		c.Sent += sent
		if err != nil {
			return err
		}
		if len(left) > 0 {
			s.refused[e.topic] = refusal{e.size(), s.refused[e.topic].events}
			s.refuse(e, c, e.topic+" has not taken it")
		}
	}
	return nil
}

// isRefused reports whether the topic of an event has not taken one that is no larger.
func (s *sender) isRefused(e *batched) bool {
	r, some := s.refused[e.topic]
	return some && e.size() >= r.bytes
}

// refuseUntried counts an event that is not sent, since its topic has not taken one that is no larger.
func (s *sender) refuseUntried(e *batched, c *Counts) {
	s.refuse(e, c, fmt.Sprintf("not tried, since %s has not taken one of %d bytes", e.topic, s.refused[e.topic].bytes))
}

// refuse counts an event that is not sent, and says why.
func (s *sender) refuse(e *batched, c *Counts, why string) {
	r := s.refused[e.topic]
	r.events++
	s.refused[e.topic] = r
	s.remain[e.sent.Identity] = true
	c.obstacle(ObstacleRefused)
	if len(c.Refused) < refusedNamesMax {
		c.Refused = append(c.Refused, fmt.Sprintf("%s of %d bytes: %s", e.message.ID, e.size(), why))
	}
}

// size is about that of the event's message.
func (o *outgoing) size() int {
	n := len(o.message.Payload) + len(o.message.MessageKey) + len(o.message.OrderingKey)
	for name, value := range o.properties {
		n += len(name) + len(value)
	}
	return n
}
