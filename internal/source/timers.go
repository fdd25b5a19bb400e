package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
)

// Events that routers publish themselves wait for their time in the timer topic: the broker delays each copy by an hour at most, and a member that
// gets a copy too early publishes the next copy before it acks the first. So apart from keeping the messages, the broker
// needs no setting that lasts longer than an hour: neither time to live nor limits of delays nor holes in the acks matter.

// HopMax is the longest delay of one copy in the timer topic.
const HopMax = time.Hour

const (
	// earlyMax is the time that an event may be held here until it is due: Pulsar delivers in ticks of a second, mostly one
	// tick too early.
	earlyMax = 3 * time.Second

	// senderWait is how long a sender waits for the answer (lane.SendTimeout).
	senderWait = 30 * time.Second

	// sendTimeout is the time after which a new event that the broker has not confirmed is sent again, alone; the
	// second time it has failed. So an event that has lost its receipt together with a refused one is confirmed while
	// its sender still waits.
	sendTimeout = senderWait / 3

	// undelayedPause is the time that a copy that the broker did not delay is held before it is copied again.
	undelayedPause = 10 * time.Second
)

// The errors of [Source.Send].
var (
	// ErrNoTimers says that the timer topic is not read, so that events in it might never come back.
	ErrNoTimers  = errors.New("the timer topic is not read")
	errTimersOff = errors.New("pulsar.timers is false")
	// errEnded says that the source ended before the broker had confirmed an event: it may be published or not.
	errEnded = errors.New("source: no longer consuming")
)

// Send publishes an event to the timer topic, from which any member receives it when it is due. Send calls answer once, from
// another goroutine: without an error when the broker has confirmed the event. After an error of Send itself nothing was
// published; after an error that answer gets, the event may have been published.
func (s *Source) Send(e *event.Event, answer func(error)) error {
	if !signal.IsClosed(s.ready) {
		return errNotReady
	}
	if err := s.broker.timers(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoTimers, err)
	}
	own := *e
	own.Topic, own.Round = s.cfg.TimerTopic(), 1
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	s.queueCopy(outgoingEvent{message: event.Message{Event: &own, Key: textOf(own.Key)}, answer: answer, asked: clock.Now()})
	return nil
}

// textOf returns the text that stands for a key as the key of a message, which must be UTF-8: the event has its real key
// in a property.
func textOf(key event.Key) string { return strings.ToValidUTF8(string(key), "\uFFFD") }

// timerCopy makes the copy that comes back when the event is due, or in HopMax if that is earlier. now is in Unix
// milliseconds.
func timerCopy(topic string, m event.Message, now int64) outgoing {
	c := newCopy(topic, m, &event.Detail{}, m.Event.Round, m.Event.LastError)
	if sent, err := event.ParseSent(m.Event.Properties); err == nil {
		c.delay = min(HopMax, time.Duration(max(0, sent.Due-now))*time.Millisecond)
	}
	return c
}

// isTimely reports whether a copy that claims to come from an event that a router published has the properties of such
// an event. Without copy keys, any producer of the topic could seal an event that is due in a thousand years.
func isTimely(e *event.Event, now int64) bool {
	id, err := event.ParseMessageID(property(e, PropertyMessageID))
	if err != nil || !id.IsSent() {
		return true
	}
	sent, err := event.ParseSent(e.Properties)
	latest := now + (event.SentAfterMax + HopMax).Milliseconds()
	if sent.Firing != nil { // the next 29 February may be eight years away
		latest = event.FiringDueMax
	}
	return err == nil && sent.Due <= latest
}

// held is an event that came before it was due.
type held struct {
	entry *event.Entry // with one event
	until int64        // Unix milliseconds: the time of the next check
	due   int64        // Unix milliseconds
}

// wall returns Unix milliseconds.
func wall() int64 {
	return time.Now().UnixMilli() //nolint:forbidigo // timers follow the wall clock; no lease depends on it
}

// early returns until when an event from the timer topic is held, the zero held if it is due. published is the time of its
// newest copy. Both times are in Unix milliseconds.
func (s *Source) early(e *event.Event, published, now int64) held {
	if !e.ID.IsSent() {
		return held{}
	}
	sent, err := event.ParseSent(e.Properties)
	if err != nil || sent.Due <= now {
		return held{}
	}
	h := held{until: now, due: sent.Due}
	rest := sent.Due - now
	switch {
	case rest <= earlyMax.Milliseconds():
		h.until = sent.Due
	case now < published+(HopMax-earlyMax).Milliseconds():
		h.until = min(sent.Due, now+undelayedPause.Milliseconds())
		s.metrics.timersUndelayed.Inc()
		if !s.undelayed {
			s.undelayed = true // logged once
			s.log.Error("the broker delivers timers at once instead of when they are due (delayedDeliveryEnabled is off, or a policy of the topic forbids delays): each timer is copied every few seconds until it is due",
				"topic", s.cfg.TimerTopic(), "every", undelayedPause)
		}
	}
	return h
}

// hold keeps an event until it is due. The reader's goroutine calls it.
func (s *Source) hold(h held) {
	at, _ := slices.BinarySearchFunc(s.holding, h, func(a, b held) int { return cmp.Compare(a.until, b.until) })
	s.holding = slices.Insert(s.holding, at, h)
}

// due appends the held events that are due to batch, and publishes copies of those that are not yet. The reader's goroutine calls it.
func (s *Source) due(batch []*event.Entry) []*event.Entry {
	if len(s.holding) == 0 {
		return batch
	}
	now, n := wall(), 0
	for ; n < len(s.holding) && s.holding[n].until <= now; n++ {
		if h := &s.holding[n]; h.due <= now {
			s.mu.Lock()
			s.ledger.due(h.entry.First)
			s.mu.Unlock()
			batch = append(batch, h.entry)
		} else {
			s.hop(h.entry)
		}
	}
	s.holding = slices.Delete(s.holding, 0, n)
	s.metrics.timersHeld.Set(float64(len(s.holding)))
	return batch
}

// hop publishes the next copy of an event that is due much later, and settles this copy when the next one is confirmed.
func (s *Source) hop(e *event.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var claims []Claimed
	s.acks, claims, _ = s.ledger.Settle([]event.Verdict{{Handle: e.First, Kind: event.Failed}}, s.acks)
	for _, c := range claims {
		s.queueCopy(outgoingEvent{message: c.Message, verdict: c.Verdict, hop: true})
	}
}

// untilDue returns a context that ends at the next check of a held event. The reader's goroutine calls it.
func (s *Source) untilDue(ctx context.Context) (context.Context, context.CancelFunc) {
	if len(s.holding) == 0 {
		return ctx, func() {}
	}
	left := min(s.holding[0].until-wall(), earlyMax.Milliseconds()) // if the clock is set, that is noticed soon
	return context.WithTimeout(ctx, time.Duration(max(1, left))*time.Millisecond)
}

// answer counts the end of a new event, and tells it to its sender.
func (s *Source) answer(r *copyResult) {
	end := "confirmed"
	if r.err != nil {
		end = "failed"
	}
	s.metrics.timersSent.WithLabelValues(end).Inc()
	r.answer(r.err)
}
