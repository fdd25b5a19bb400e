package source

import (
	"context"
	"time"

	"github.com/ringfence/router/internal/event"
)

// outgoingEvent is a claimed event that waits for its copy to be sent.
type outgoingEvent struct {
	message Message
	verdict event.Verdict // Failed or Rejected
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
func (s *Source) copy(ctx context.Context, broker link) {
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
		if lost := s.settleLanded(landed); len(lost) > 0 {
			failed = append(failed, lost...)
			if again == nil {
				again = time.After(backoff)
				backoff = min(2*backoff, s.cfg.CopyBackoffMax)
			}
		} else if len(landed) > 0 {
			backoff = s.cfg.CopyBackoffMin
		}
		clear(landed)

		n := min(len(waiting), s.cfg.CopiesMax-flying)
		for _, out := range waiting[:n] {
			broker.send(ctx, s.copyOf(out), func(err error) { s.land(out, err) })
		}
		flying += n
		rest := copy(waiting, waiting[n:])
		clear(waiting[rest:])
		waiting = waiting[:rest]
	}
}

func (s *Source) copyOf(out outgoingEvent) outgoing {
	if out.verdict.Kind == event.Rejected {
		return deadLetterCopy(s.cfg.DeadLetterTopic, out.message, &out.verdict)
	}
	return retryCopy(s.cfg.RetryTopic, out.message, &out.verdict)
}

// land is called by the broker's client, from any goroutine.
func (s *Source) land(out outgoingEvent, err error) {
	s.mu.Lock()
	s.landed = append(s.landed, landing{out, err})
	s.mu.Unlock()
	wake(s.toCopy)
}

// settleLanded settles the events whose copies are safe and returns the others.
func (s *Source) settleLanded(landed []landing) (lost []outgoingEvent) {
	var retried, deadLettered int
	s.mu.Lock()
	for _, l := range landed {
		if l.err != nil {
			lost = append(lost, l.outgoingEvent)
			continue
		}
		s.acks, _ = s.ledger.Copied(l.verdict.Handle, s.acks)
		if l.verdict.Kind == event.Rejected {
			deadLettered++
		} else {
			retried++
		}
	}
	s.noteSettled()
	s.mu.Unlock()
	s.metrics.retried.Add(float64(retried))
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
