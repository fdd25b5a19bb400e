package source

import (
	"context"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// outgoingEvent is an event that waits for its copy to be sent: a claimed one, or one
// that is spilled.
type outgoingEvent struct {
	message Message       // of a spilled one only from when it is sent
	verdict event.Verdict // Failed or Rejected; of a spilled one the handle is all that counts
	spilled bool
}

// weight is what the copy of an event that is sent weighs, more or less.
func (o *outgoingEvent) weight() int { return len(o.message.Event.Payload) }

// landing is the end of one copy.
type landing struct {
	outgoingEvent
	err error
}

// copier has the copies for one topic. Each topic has its own: where nothing is taken
// must not keep what is for the other one waiting.
type copier struct {
	work chan struct{} // capacity 1: there is something to do

	// Under the source's mutex.
	added  []outgoingEvent // to be sent
	landed []landing       // copies that came to their end
}

func newCopier() *copier { return &copier{work: make(chan struct{}, 1)} }

// add is called under the source's mutex.
func (c *copier) add(out outgoingEvent) {
	c.added = append(c.added, out)
	wake(c.work)
}

// copierOf returns whose the copy of an event is, once its message is known.
func (s *Source) copierOf(out *outgoingEvent) *copier {
	if s.isDead(out) {
		return s.letters
	}
	return s.retries
}

// copy is a copier's goroutine: it sends copies, settles the events whose copies
// are safe, and sends failed ones again. It returns when ctx ends; events whose
// copies are not safe by then go back to the broker with everything else.
//
// A copy that failed may be in its topic all the same. Sent again it is there
// twice, under one message id, by which its owner knows it.
func (s *Source) copy(ctx context.Context, c *copier, broker link, sink Sink) {
	var waiting, failed []outgoingEvent
	var landed []landing
	flying, flyingBytes := 0, 0
	backoff := s.cfg.CopyBackoffMin
	var again <-chan time.Time // not nil while there are failed ones
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.work:
		case <-again:
			waiting, failed, again = append(waiting, failed...), failed[:0], nil
		}
		s.mu.Lock()
		waiting = append(waiting, c.added...)
		clear(c.added)
		c.added = c.added[:0]
		landed, c.landed = c.landed, landed[:0]
		s.mu.Unlock()

		flying -= len(landed)
		for i := range landed {
			flyingBytes -= landed[i].weight()
		}
		if lost := s.settleLanded(landed, sink); len(lost) > 0 {
			failed = append(failed, lost...)
			if again == nil {
				again = time.After(backoff)
				backoff = min(2*backoff, s.cfg.CopyBackoffMax)
			}
		} else if len(landed) > 0 {
			backoff = s.cfg.CopyBackoffMin
		}
		clear(landed)

		sent := 0
		for ; sent < len(waiting) && flying < s.cfg.CopiesMax && flyingBytes < copyBytesMax && ctx.Err() == nil; sent++ {
			if out := waiting[sent]; s.stillNeeded(c, &out, sink) {
				flying++
				flyingBytes += out.weight()
				s.sendCopy(ctx, c, out, broker)
			}
		}
		rest := copy(waiting, waiting[sent:])
		clear(waiting[rest:])
		waiting = waiting[:rest]
	}
}

// sendCopy makes the broker's client tell c how the copy ends, from any goroutine.
func (s *Source) sendCopy(ctx context.Context, c *copier, out outgoingEvent, broker link) {
	copied := s.copyOf(&out)
	end := s.sending(ctx, out.message.Event, &copied)
	if !s.isDead(&out) {
		copied.seal(s.keysOfCopies())
	}
	broker.send(ctx, copied, func(err error) {
		end(err)
		s.mu.Lock()
		c.landed = append(c.landed, landing{out, err})
		s.mu.Unlock()
		wake(c.work)
	})
}

// stillNeeded brings a spilled event up to date. It reports false when its verdict has come
// meanwhile, and when the copy is not for c to send: an event that has gone round too often
// is known only now.
func (s *Source) stillNeeded(c *copier, out *outgoingEvent, sink Sink) bool {
	if !out.spilled {
		return true
	}
	handle := out.verdict.Handle
	s.mu.Lock()
	message, ok := s.ledger.Sending(handle)
	out.message = message
	if ok {
		if theirs := s.copierOf(out); theirs != c {
			s.ledger.NotCopied(handle)
			theirs.add(outgoingEvent{verdict: out.verdict, spilled: true})
			ok = false
		}
	}
	s.mu.Unlock()
	if !ok {
		return false
	}
	if newest := sink.Newest([]event.Handle{handle}, nil); newest[0] != nil {
		out.message.Event = newest[0]
	}
	return true
}

func (s *Source) copyOf(out *outgoingEvent) outgoing {
	m, v := out.message, &out.verdict
	switch {
	case v.Kind == event.Rejected:
		return deadLetterCopy(s.cfg.DeadLetterTopic, m, v, v.Reason)
	case s.roundsAreOver(out):
		return deadLetterCopy(s.cfg.DeadLetterTopic, m, v, tooManyRounds(m.Event.Round))
	case out.spilled:
		return spillCopy(s.cfg.RetryTopic, m, s.cfg.Spill.delay(m.Event.Round))
	}
	return retryCopy(s.cfg.RetryTopic, m, v)
}

// isDead reports whether the copy is a dead letter.
func (s *Source) isDead(out *outgoingEvent) bool {
	return out.verdict.Kind == event.Rejected || s.roundsAreOver(out)
}

func (s *Source) roundsAreOver(out *outgoingEvent) bool {
	return uint64(out.message.Event.Round) >= uint64(s.cfg.Spill.RoundsMax)
}

// settleLanded settles the events whose copies are safe and returns the others.
func (s *Source) settleLanded(landed []landing, sink Sink) (lost []outgoingEvent) {
	var retried, deadLettered int
	var spilled []event.Handle
	s.mu.Lock()
	for i := range landed {
		l := &landed[i]
		if l.err != nil {
			if l.spilled {
				s.ledger.NotCopied(l.verdict.Handle)
			}
			lost = append(lost, l.outgoingEvent)
			continue
		}
		s.acks, _ = s.ledger.Copied(l.verdict.Handle, s.acks)
		if l.spilled {
			spilled = append(spilled, l.verdict.Handle)
		}
		switch {
		case s.isDead(&l.outgoingEvent):
			deadLettered++
		case !l.spilled:
			retried++
		}
	}
	s.noteSettled()
	s.mu.Unlock()
	for i := range landed {
		s.noteCopy(&landed[i])
	}
	if len(spilled) > 0 {
		sink.Drop(spilled)
	}
	s.metrics.retried.Add(float64(retried))
	s.metrics.spilled.Add(float64(len(spilled)))
	s.metrics.deadLettered.Add(float64(deadLettered))
	if len(lost) > 0 {
		s.metrics.copyFailures.Add(float64(len(lost)))
		s.log.Warn("copies failed and will be sent again", "copies", len(lost), "error", firstError(landed))
	}
	return lost
}

func firstError(landed []landing) error {
	for _, l := range landed {
		if l.err != nil {
			return l.err
		}
	}
	return nil
}
