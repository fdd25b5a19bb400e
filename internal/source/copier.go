package source

import (
	"context"
	"time"

	"github.com/ringfence/router/internal/event"
)

// outgoingEvent is an event that waits for its copy to be sent: a claimed one, or one
// that is spilled.
type outgoingEvent struct {
	message Message       // of a spilled one only from when it is sent
	verdict event.Verdict // Failed or Rejected; of a spilled one the handle is all that counts
	spilled bool
}

// landing is the end of one copy.
type landing struct {
	outgoingEvent
	err error
}

// copy is the copier's goroutine: it sends copies, settles the events whose copies
// are safe, and sends failed ones again. It returns when ctx ends; events whose
// copies are not safe by then go back to the broker with everything else.
//
// A copy that failed may be in its topic all the same. Sent again it is there
// twice, under one message id, by which its owner knows it.
func (s *Source) copy(ctx context.Context, broker link, sink Sink) {
	var waiting, failed []outgoingEvent
	var landed []landing
	flying := 0
	backoff := s.cfg.CopyBackoffMin
	var again <-chan time.Time // not nil while there are failed ones
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.toCopy:
		case <-again:
			waiting, failed, again = append(waiting, failed...), failed[:0], nil
		}
		s.mu.Lock()
		waiting = append(waiting, s.copies...)
		clear(s.copies)
		s.copies = s.copies[:0]
		landed, s.landed = s.landed, landed[:0]
		s.mu.Unlock()

		flying -= len(landed)
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

		for len(waiting) > 0 && flying < s.cfg.CopiesMax {
			n := min(len(waiting), s.cfg.CopiesMax-flying)
			batch := s.stillNeeded(waiting[:n], sink)
			for _, out := range batch {
				c := s.copyOf(&out)
				end := s.sending(ctx, out.message.Event, &c)
				broker.send(ctx, c, func(err error) { end(err); s.land(out, err) })
			}
			flying += len(batch)
			rest := copy(waiting, waiting[n:])
			clear(waiting[rest:])
			waiting = waiting[:rest]
		}
	}
}

// stillNeeded leaves out, in place, spilled events whose verdicts have come meanwhile,
// and brings the others up to date.
func (s *Source) stillNeeded(batch []outgoingEvent, sink Sink) []outgoingEvent {
	needed := batch[:0]
	var spilled []event.Handle
	s.mu.Lock()
	for _, out := range batch {
		if out.spilled {
			var ok bool
			if out.message, ok = s.ledger.Sending(out.verdict.Handle); !ok {
				continue
			}
			spilled = append(spilled, out.verdict.Handle)
		}
		needed = append(needed, out)
	}
	s.mu.Unlock()
	if len(spilled) == 0 {
		return needed
	}
	newest := sink.Newest(spilled, nil)
	for i := range needed {
		if out := &needed[i]; out.spilled {
			if ev := newest[0]; ev != nil {
				out.message.Event = ev
			}
			newest = newest[1:]
		}
	}
	return needed
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

// land is called by the broker's client, from any goroutine.
func (s *Source) land(out outgoingEvent, err error) {
	s.mu.Lock()
	s.landed = append(s.landed, landing{out, err})
	s.mu.Unlock()
	wake(s.toCopy)
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
