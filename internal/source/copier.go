package source

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/ring"
)

// outgoingEvent is an event whose copy is to be sent: a claimed or a spilled one.
type outgoingEvent struct {
	message event.Message // set for a spilled event when its copy is sent
	verdict event.Verdict // Failed, Rejected or Parked; for a spilled event only the handle counts
	spilled bool
	hop     bool   // the next copy of an event of the timer topic that is not due yet
	done    func() // called when the copy of an event that is not in the ledger is safe; nil for events of the ledger

	// Of a new event for the timer topic, which is sent again only if its first attempt was not answered.
	answer func(error)   // nil for other events
	asked  clock.Instant // the time of Send

	// after is the producer that has not answered an earlier copy, nil if there is none. The next copy is then sent
	// alone, by another producer, so that no other receipt is lost if the broker refuses it.
	after    *pulsarsend.Sender
	producer int // the number of that other one, less than loneMax

	late *atomic.Bool // a copy was confirmed after it had timed out; nil: none was sent yet
}

// isSafe reports whether an earlier copy was confirmed after it had timed out. A topic that accepts few copies, for
// example because of a publish rate, confirms many so late: if such confirmations did not count, each copy would be
// sent repeatedly, behind its own duplicates.
func (o *outgoingEvent) isSafe() bool { return o.late != nil && o.late.Load() }

// isTooLate reports whether the sender of a new event waits no longer.
func (o *outgoingEvent) isTooLate(now clock.Instant) bool {
	return o.answer != nil && now.Sub(o.asked) > senderWait
}

// weight is the approximate size of the copy of a sent event.
func (o *outgoingEvent) weight() int { return len(o.message.Event.Payload) }

// isTimer reports whether the copy is one for the timer topic.
func (o *outgoingEvent) isTimer() bool { return o.hop || o.answer != nil }

// landing is the end of one copy.
type landing struct {
	outgoingEvent
	err error
}

// copier queues the copies for one topic. Each topic has its own, so that a blocked topic
// does not delay copies for the other one.
type copier struct {
	work chan struct{} // capacity 1: there is something to do

	// Under the source's mutex.
	added  []outgoingEvent // to be sent
	landed []landing       // copies with an outcome
}

func newCopier() *copier { return &copier{work: make(chan struct{}, 1)} }

// add is called under the source's mutex.
func (c *copier) add(out outgoingEvent) {
	c.added = append(c.added, out)
	signal.Set(c.work)
}

// unanswered returns the answers to new events that were not sent, or whose outcomes are not noted. It is called under the
// source's mutex, when the goroutine has ended.
func (c *copier) unanswered() (answers []func(error)) {
	for i := range c.added {
		answers = append(answers, c.added[i].answer)
	}
	for i := range c.landed {
		answers = append(answers, c.landed[i].answer)
	}
	return slices.DeleteFunc(answers, func(answer func(error)) bool { return answer == nil })
}

// copierOf returns the copier for an event whose message is known.
func (s *Source) copierOf(out *outgoingEvent) *copier {
	switch {
	case s.isDead(out):
		return s.letters
	case out.isTimer():
		return s.timers
	case out.verdict.Kind == event.Parked:
		return s.parked
	}
	return s.retries
}

// copy is a copier's goroutine: it sends copies, settles the events whose copies are safe,
// and sends failed copies again. It returns when ctx ends; events whose copies are not
// safe by then return to the broker with all open ones.
//
// A copy that failed may still be in its topic. If it is sent again, the topic has it twice with one
// message id, by which the key's owner removes the duplicate.
func (s *Source) copy(ctx context.Context, c *copier, broker connection, sink Sink) {
	queue := copyQueue{copiesMax: s.cfg.CopiesMax}
	var landed []landing
	delays := backoff.Backoff{Min: s.cfg.CopyBackoffMin, Max: s.cfg.CopyBackoffMax}
	var again <-chan time.Time // not nil while there are failed ones
	for {
		select {
		case <-ctx.Done():
			s.mu.Lock()
			c.added = slices.Concat(queue.waiting, queue.lone, c.added)
			s.mu.Unlock()
			return
		case <-c.work:
		case <-again:
			again = nil
			queue.retry()
		}
		s.mu.Lock()
		queue.waiting = append(queue.waiting, c.added...)
		clear(c.added)
		c.added = c.added[:0]
		landed, c.landed = c.landed, landed[:0]
		s.mu.Unlock()

		for i := range landed {
			queue.land(&landed[i].outgoingEvent)
		}
		if lost := s.settleLanded(landed, sink); len(lost) > 0 {
			queue.fail(lost)
			if again == nil && len(queue.failed) > 0 {
				again = time.After(delays.Next())
			}
		} else if len(landed) > 0 {
			delays.Reset()
		}
		clear(landed)

		var ended []landing
		for _, l := range queue.takeEnded(clock.Now()) {
			if s.stillNeeded(c, &l.outgoingEvent, sink) {
				ended = append(ended, l)
			}
		}
		for ctx.Err() == nil {
			out, some := queue.next()
			if !some {
				break
			}
			switch {
			case !s.stillNeeded(c, &out, sink):
			case out.isSafe():
				ended = append(ended, landing{outgoingEvent: out})
			default:
				queue.fly(&out)
				s.sendCopy(ctx, c, out, broker)
			}
		}
		if len(ended) > 0 {
			s.settleLanded(ended, sink)
		}
	}
}

// sendCopy sends a copy. The result goes to c.landed, from any goroutine.
func (s *Source) sendCopy(ctx context.Context, c *copier, out outgoingEvent, broker connection) {
	copied := s.copyOf(&out)
	copied.after, copied.producer, copied.awaited = out.after, out.producer, out.answer != nil
	end := s.sending(ctx, out.message.Event, &copied)
	if !s.isDead(&out) {
		copied.seal(s.keysOfCopies())
	}
	if out.late == nil {
		out.late = new(atomic.Bool)
	}
	over := false
	broker.send(ctx, copied, func(err error) {
		if over {
			out.late.Store(true)
			if out.answer != nil {
				signal.Set(c.work)
			}
			return
		}
		over = true
		end(err)
		s.mu.Lock()
		ended := s.ended
		if !ended {
			c.landed = append(c.landed, landing{out, err})
		}
		s.mu.Unlock()
		if ended && out.answer != nil {
			out.answer(err)
		}
		signal.Set(c.work)
	})
}

// stillNeeded updates a spilled event before its copy is sent. It reports false when its
// verdict has come meanwhile, and when the copy belongs to the other copier: only now is
// it known whether the event exceeds RoundsMax.
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
	m, d := out.message, out.verdict.DetailOrZero()
	switch {
	case s.isDead(out):
		return deadLetterCopy(s.cfg.DeadLetterTopic, m, &d, reasonOf(&m, &out.verdict))
	case out.isTimer():
		return timerCopy(s.cfg.TimerTopic(), m, wall())
	case out.verdict.Kind == event.Parked:
		return parkedCopy(s.cfg.ParkingTopic(), m, &d)
	case out.spilled:
		return spillCopy(s.cfg.RetryTopic, m, s.cfg.Spill.delay(m.Event.Round))
	}
	return retryCopy(s.cfg.RetryTopic, m, &d)
}

// isDead reports whether the copy is a dead letter: also of an event that no other copy can carry.
func (s *Source) isDead(out *outgoingEvent) bool {
	if out.verdict.Kind == event.Rejected {
		return true
	}
	if out.answer != nil { // its sender has bounded its size
		return false
	}
	return headBytes(&out.message) > headMax || out.verdict.Kind != event.Parked && !out.isTimer() && s.roundsAreOver(out)
}

func (s *Source) roundsAreOver(out *outgoingEvent) bool {
	return uint64(out.message.Event.Round) >= uint64(s.cfg.Spill.RoundsMax)
}

// notLanded takes back the claim of a copy that failed, and reports whether it is to be sent again, and whether it was sent alone and not answered.
func (s *Source) notLanded(l *landing) (again, alone bool) {
	if l.spilled {
		s.ledger.NotCopied(l.verdict.Handle)
	}
	again = l.answer == nil
	if u := new(unanswered); errors.As(l.err, &u) {
		if l.after == nil {
			l.after, again = u.by, true
		} else {
			l.after, alone = refused, true
		}
	}
	return again, alone
}

// settleLanded settles the events whose copies are safe, answers the senders of new ones, and returns those that are to be sent again.
func (s *Source) settleLanded(landed []landing, sink Sink) (lost []outgoingEvent) {
	var retried, deadLettered, parked int
	var done []func()
	var spilled, givenUp []event.Handle
	var suspect *landing // was sent alone, and not answered
	s.mu.Lock()
	for i := range landed {
		l := &landed[i]
		if l.isSafe() {
			l.err = nil
		}
		if l.err != nil {
			again, alone := s.notLanded(l)
			if alone {
				suspect = l
			}
			if again {
				lost = append(lost, l.outgoingEvent)
				l.answer = nil // not yet
			}
			continue
		}
		if l.answer != nil { // it is not in the ledger
			continue
		}
		ended := true
		if l.done != nil {
			done = append(done, l.done)
		} else {
			s.acks, ended = s.ledger.Copied(l.verdict.Handle, s.acks)
		}
		if l.verdict.Kind == event.Parked {
			s.countParking(l.message.Event.Key, -1)
		}
		switch {
		case s.isDead(&l.outgoingEvent):
			deadLettered++
			if l.spilled {
				givenUp = append(givenUp, l.verdict.Handle)
			}
		case l.spilled:
			if ended { // otherwise it was done meanwhile, and counts as done
				spilled = append(spilled, l.verdict.Handle)
			}
		case l.hop:
		case l.verdict.Kind == event.Parked:
			parked++
		default:
			retried++
		}
	}
	s.noteSettled()
	s.mu.Unlock()
	for i := range landed {
		if l := &landed[i]; l.isTimer() && (l.err == nil || l.answer != nil) && !s.isDead(&l.outgoingEvent) {
			s.noteTimer(l)
		} else {
			s.noteCopy(l)
		}
	}
	for _, call := range done {
		call()
	}
	s.noteLate(landed)
	if len(spilled) > 0 {
		sink.Drop(spilled, event.Spilled)
	}
	if len(givenUp) > 0 {
		sink.Drop(givenUp, event.GivenUp)
	}
	s.metrics.retried.Add(float64(retried))
	s.metrics.spilled.Add(float64(len(spilled)))
	s.metrics.deadLettered.Add(float64(deadLettered))
	s.metrics.parked.Add(float64(parked))
	if len(lost) > 0 {
		s.metrics.copyFailures.Add(float64(len(lost)))
		s.log.Warn("copies failed and will be sent again", "copies", len(lost), "error", firstError(landed))
	}
	if suspect != nil {
		s.log.Warn("a copy that was sent alone is not answered: a policy of its topic may refuse it",
			"message_id", suspect.message.Event.ID.String(), "topic", s.copyOf(&suspect.outgoingEvent).topic, "payload_bytes", len(suspect.message.Event.Payload))
	}
	return lost
}

// noteLate reports letters that came into the parking topic after the unpark of their key had ended, or its park had expired.
func (s *Source) noteLate(landed []landing) {
	for i := range landed {
		l := &landed[i]
		if l.err == nil && l.verdict.Kind == event.Parked && !s.isDead(&l.outgoingEvent) && s.isAway != nil && !s.isAway(l.message.Event.Key) {
			s.metrics.parkedLate.Inc()
			s.log.Warn("an event reached the parking topic although its key is no longer parked: run router unpark KEY to bring it back",
				"message_id", l.message.Event.ID.String(), "key_hash", ring.HashOf(string(l.message.Event.Key)).String())
		}
	}
}

func firstError(landed []landing) error {
	for _, l := range landed {
		if l.err != nil {
			return l.err
		}
	}
	return nil
}
