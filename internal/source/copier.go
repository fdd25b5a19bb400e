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
)

// outgoingEvent is an event whose copy is to be sent: a claimed or a spilled one.
type outgoingEvent struct {
	message event.Message // set for a spilled event when its copy is sent
	verdict event.Verdict // Failed, Rejected or Parked; for a spilled event only the handle counts
	spilled bool          // its copy goes without a verdict, see Spill
	hop     bool          // the next copy of an event of the timer topic that is not due yet
	done    func()        // called when the copy of an event that is not in the ledger is safe; nil for events of the ledger

	// Of a new event for the timer topic, which is sent again only if its first attempt was not answered.
	answer func(error)   // nil for other events
	asked  clock.Instant // the time of Send

	// after is the producer that has not answered an earlier copy, nil if there is none. The next copy is then sent
	// alone, by another producer, so that no other receipt is lost if the broker refuses it.
	after    *pulsarsend.Sender
	producer int           // number of that other producer in outlets.alone, from 0
	delay    time.Duration // of the newest copy

	confirmedLate *atomic.Bool // whether a copy was confirmed after it had timed out; nil: none was sent yet
}

// isSafe reports whether an earlier copy was confirmed after it had timed out. A topic that accepts few copies, for
// example because of a publish rate, confirms many so late: if such confirmations did not count, each copy would be
// sent repeatedly, behind its own duplicates.
func (o *outgoingEvent) isSafe() bool { return o.confirmedLate != nil && o.confirmedLate.Load() }

// isTooLate reports whether the sender of a new event waits no longer.
func (o *outgoingEvent) isTooLate(now clock.Instant) bool {
	return o.answer != nil && now.Sub(o.asked) > senderWait
}

// weight is the approximate size of the copy of a sent event.
func (o *outgoingEvent) weight() int { return len(o.message.Event.Payload) }

// copyResult is the end of one attempt to send a copy.
type copyResult struct {
	outgoingEvent
	err error
}

// copier queues the copies for one topic. Each topic has its own, so that a blocked topic
// does not delay copies for the others.
type copier struct {
	topic string
	work  chan struct{} // capacity 1: there is something to do

	// Under the source's mutex.
	added   []outgoingEvent // that the copier's goroutine has not taken in yet
	results []copyResult    // that the copier's goroutine has not taken in yet
}

func newCopier(topic string) *copier { return &copier{topic: topic, work: make(chan struct{}, 1)} }

// add is called under the source's mutex.
func (c *copier) add(out outgoingEvent) {
	c.added = append(c.added, out)
	signal.Set(c.work)
}

// unanswered returns the answer functions of new events whose senders still wait: the copy was not sent, or its result
// not taken in. It is called under the source's mutex, when the copier's goroutine has ended.
func (c *copier) unanswered() (answers []func(error)) {
	for i := range c.added {
		answers = append(answers, c.added[i].answer)
	}
	for i := range c.results {
		answers = append(answers, c.results[i].answer)
	}
	return slices.DeleteFunc(answers, func(answer func(error)) bool { return answer == nil })
}

// copyKind decides the topic of a copy, and what becomes of its event when it is safe.
type copyKind uint8

// The kinds of copies.
const (
	copyRetry   copyKind = iota // comes back from the retry topic after the delay of the verdict
	copySpilled                 // comes back from the retry topic; there is no verdict, see Spill
	copyLetter                  // goes to the dead letter topic
	copyParked                  // goes to the parking topic
	copyHop                     // the next copy of an event of the timer topic that is not due yet
	copySent                    // a new event for the timer topic
)

// kindOf returns the kind of the copy of an event whose message is known. It is a dead letter if the event was rejected,
// or no other copy can carry it, or it was copied too often.
func (s *Source) kindOf(out *outgoingEvent) copyKind {
	switch {
	case out.answer != nil: // its sender has bounded its size
		return copySent
	case out.verdict.Kind == event.Rejected, headBytes(&out.message) > headMax:
		return copyLetter
	case out.hop:
		return copyHop
	case out.verdict.Kind == event.Parked:
		return copyParked
	case uint64(out.message.Event.Round) >= uint64(s.cfg.Spill.RoundsMax):
		return copyLetter
	case out.spilled:
		return copySpilled
	}
	return copyRetry
}

// copierOf returns the copier for an event whose message is known.
func (s *Source) copierOf(out *outgoingEvent) *copier {
	switch s.kindOf(out) {
	case copyLetter:
		return s.letters
	case copyParked:
		return s.parked
	case copyHop, copySent:
		return s.timers
	default:
		return s.retries
	}
}

// queueCopy passes an event whose message is known to its copier. The caller holds the lock.
func (s *Source) queueCopy(out outgoingEvent) { s.copierOf(&out).add(out) }

// copy is a copier's goroutine: it sends copies, settles the events whose copies are safe,
// and sends failed copies again. It returns when ctx ends; events whose copies are not
// safe by then return to the broker with all open ones.
//
// A copy that failed may still be in its topic. If it is sent again, the topic has it twice with one
// message id, by which the key's owner removes the duplicate.
func (s *Source) copy(ctx context.Context, c *copier, broker connection, sink Sink) {
	queue := copyQueue{copiesMax: s.cfg.CopiesMax}
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
		results := c.results
		c.added, c.results = nil, nil
		s.mu.Unlock()

		for i := range results {
			queue.end(&results[i].outgoingEvent)
		}
		if lost := s.settleCopied(results, sink); len(lost) > 0 {
			queue.fail(lost)
			if again == nil && len(queue.failed) > 0 {
				again = time.After(delays.Next())
			}
		} else if len(results) > 0 {
			delays.Reset()
		}

		var ended []copyResult
		for _, r := range queue.takeEnded(clock.Now()) {
			if s.stillNeeded(c, &r.outgoingEvent, sink) {
				ended = append(ended, r)
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
				ended = append(ended, copyResult{outgoingEvent: out})
			default:
				queue.begin(&out)
				s.sendCopy(ctx, c, out, broker)
			}
		}
		if len(ended) > 0 {
			s.settleCopied(ended, sink)
		}
		if needed := queue.needed(); needed < queue.made {
			broker.release(c.topic, needed)
			queue.made = needed
		}
	}
}

// sendCopy sends a copy, and does not wait for its result, which goes to c.results from any goroutine.
func (s *Source) sendCopy(ctx context.Context, c *copier, out outgoingEvent, broker connection) {
	copied := s.copyOf(&out)
	copied.after, copied.producer, copied.awaited = out.after, out.producer, out.answer != nil
	out.delay = copied.delay
	end := s.sending(ctx, out.message.Event, &copied)
	if s.kindOf(&out) != copyLetter {
		copied.seal(s.copyKeys())
	}
	if out.confirmedLate == nil {
		out.confirmedLate = new(atomic.Bool)
	}
	over := false
	broker.send(ctx, copied, func(err error) {
		if over {
			out.confirmedLate.Store(true)
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
			c.results = append(c.results, copyResult{out, err})
		}
		s.mu.Unlock()
		if ended && out.answer != nil {
			out.answer(err)
		}
		signal.Set(c.work)
	})
}

// stillNeeded prepares a spilled event for its copy: it claims the event in the ledger, and fetches its newest version
// from the sink. It reports false if no copy is to be sent here: the verdict has come meanwhile, or the copy belongs to
// another copier, to which it is passed on, since only now is it known whether the event exceeds RoundsMax.
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

// copyOf makes the copy that the verdict on an event demands.
func (s *Source) copyOf(out *outgoingEvent) outgoing {
	m, d := out.message, out.verdict.DetailOrZero()
	switch s.kindOf(out) {
	case copyLetter:
		return deadLetterCopy(s.cfg.DeadLetterTopic, m, &d, reasonOf(&m, &out.verdict))
	case copyParked:
		return parkedCopy(s.cfg.ParkingTopic(), m, &d)
	case copyHop, copySent:
		return timerCopy(s.cfg.TimerTopic(), m, wall())
	case copySpilled:
		d.Delay, d.Reason = s.cfg.Spill.delay(m.Event.Round), m.Event.LastError
	}
	return retryCopy(s.cfg.RetryTopic, m, &d)
}

// copyFailed takes back the claim of a copy that failed, and reports whether it is to be sent again, and whether it was sent alone and not answered.
func (s *Source) copyFailed(r *copyResult) (again, alone bool) {
	if r.spilled {
		s.ledger.NotCopied(r.verdict.Handle)
	}
	again = r.answer == nil
	if u := new(unanswered); errors.As(r.err, &u) {
		if r.after == nil {
			r.after, again = u.by, true
		} else {
			r.after, alone = refused, true
		}
	}
	return again, alone
}

// settleCopied settles the events whose copies are safe, answers the senders of new ones, and returns those that are to be sent again.
func (s *Source) settleCopied(results []copyResult, sink Sink) (lost []outgoingEvent) {
	var done []func()
	var spilled, givenUp []event.Handle
	var suspect *copyResult // was sent alone, and not answered
	s.mu.Lock()
	for i := range results {
		r := &results[i]
		if r.isSafe() {
			r.err = nil
		}
		if r.err != nil {
			again, alone := s.copyFailed(r)
			if alone {
				suspect = r
			}
			if again {
				lost = append(lost, r.outgoingEvent)
				r.answer = nil // its sender waits for the next attempt
			}
			continue
		}
		kind := s.kindOf(&r.outgoingEvent)
		if kind == copySent { // it is not in the ledger
			continue
		}
		ended := true
		if r.done != nil {
			done = append(done, r.done)
		} else {
			s.acks, ended = s.ledger.Copied(r.verdict.Handle, s.acks)
		}
		if r.verdict.Kind == event.Parked {
			s.countParking(r.message.Event.Key, -1)
		}
		switch kind {
		case copyLetter:
			s.metrics.deadLettered.Inc()
			if r.spilled {
				givenUp = append(givenUp, r.verdict.Handle)
			}
		case copySpilled:
			if ended { // otherwise it was done meanwhile, and counts as done
				s.metrics.spilled.Inc()
				spilled = append(spilled, r.verdict.Handle)
			}
		case copyParked:
			s.metrics.parked.Inc()
		case copyRetry:
			s.metrics.retried.Inc()
		}
	}
	s.noteSettled()
	s.mu.Unlock()
	for i := range results {
		s.noteCopy(&results[i])
	}
	for _, call := range done {
		call()
	}
	if len(spilled) > 0 {
		sink.Drop(spilled, event.Spilled)
	}
	if len(givenUp) > 0 {
		sink.Drop(givenUp, event.GivenUp)
	}
	if len(lost) > 0 {
		s.metrics.copyFailures.Add(float64(len(lost)))
		s.log.Warn("copies failed and will be sent again", "copies", len(lost), "error", firstError(results))
	}
	if suspect != nil {
		s.log.Warn("a copy that was sent alone is not answered: a policy of its topic may refuse it",
			"message_id", suspect.message.Event.ID.String(), "topic", s.copyOf(&suspect.outgoingEvent).topic, "payload_bytes", len(suspect.message.Event.Payload))
	}
	return lost
}

func firstError(results []copyResult) error {
	for _, r := range results {
		if r.err != nil {
			return r.err
		}
	}
	return nil
}
