package lane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// The errors of [Lane.Send]. After any other one it is not known whether the event was published.
var (
	// ErrNotSent says that the event was not published.
	ErrNotSent = errors.New("not published")
	// ErrTooManySends also means that it was not published: too many earlier events wait for the broker.
	ErrTooManySends = fmt.Errorf("%w: too many events of this router's applications wait for the broker", ErrNotSent)
	// errNoAnswer says that the broker has not answered.
	errNoAnswer = errors.New("the broker has not confirmed it in time")
)

// SendTimeout limits the wait for the broker's answer.
const SendTimeout = 30 * time.Second

// The results of sends, in metrics.
const (
	sendPublished = "published"
	sendRefused   = "refused"
	sendUnknown   = "unknown"
)

// Sending is an event that a sender wants to be published.
type Sending struct {
	Key        event.Key
	Payload    []byte
	Name       string
	Properties []event.Property
	ID         string        // of the sender's choice; "": one of the router's
	After      time.Duration // from now, or
	At         int64         // in Unix milliseconds; 0: After counts
}

// Published is an event that the broker has.
type Published struct {
	ID  event.MessageID
	Due int64 // Unix milliseconds
}

// Send publishes an event of a key, which its handler gets when it is due: at once, or later. It returns when the broker has it: until SendTimeout,
// or the end of ctx.
func (l *Lane) Send(ctx context.Context, s Sending) (Published, error) {
	p, err := l.send(ctx, &s)
	switch {
	case err == nil:
		l.metrics.sends.WithLabelValues(sendPublished).Inc()
	case errors.Is(err, ErrNotSent), errors.Is(err, ErrRequest):
		l.metrics.sends.WithLabelValues(sendRefused).Inc()
	default:
		l.metrics.sends.WithLabelValues(sendUnknown).Inc()
	}
	return p, err
}

func (l *Lane) send(ctx context.Context, s *Sending) (Published, error) {
	now := time.Now().UnixMilli() //nolint:forbidigo // timers follow the wall clock
	sent := event.Sent{Key: s.Key, Due: now, Name: s.Name}
	switch {
	case s.After != 0 && s.At != 0:
		return Published{}, fmt.Errorf("%w: after and at are both set: want one of them", ErrRequest)
	case len(s.ID) > event.SentIDMax:
		return Published{}, fmt.Errorf("%w: an id of %d bytes: want at most %d", ErrRequest, len(s.ID), event.SentIDMax)
	case s.After < 0 || s.After > event.SentAfterMax:
		return Published{}, fmt.Errorf("%w: due in %v: want at most %v", ErrRequest, s.After, event.SentAfterMax)
	case s.At != 0:
		sent.Due = max(0, s.At)
	default:
		sent.Due += s.After.Milliseconds()
	}
	if err := sent.Check(now, len(s.Payload), s.Properties); err != nil {
		return Published{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if !l.admitSend(len(s.Payload)) {
		return Published{}, ErrTooManySends
	}
	id := s.ID
	kind := "id"
	if id == "" {
		kind, id = "random", rand.Text()
	}
	e := &event.Event{
		ID: event.SentMessageID(s.Key, kind, id), Key: s.Key, Payload: s.Payload, PublishTime: now, Properties: sent.Properties(s.Properties),
	}
	if e.Payload == nil {
		e.Payload = []byte{} // no null value
	}
	answers := make(chan error, 1)
	err := l.publisher.Publish(e, func(err error) {
		l.endSend(len(s.Payload))
		answers <- err
	})
	if err != nil {
		l.endSend(len(s.Payload))
		return Published{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, SendTimeout, errNoAnswer)
	defer cancel()
	select {
	case err = <-answers:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return Published{ID: e.ID, Due: sent.Due}, err
}

// admitSend admits an event, if there is room. It has its room until the broker has answered, even if its sender waits no longer.
func (l *Lane) admitSend(bytes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sends >= l.config.SendsMax || !l.hasRoom(bytes) {
		return false
	}
	l.sends++
	l.bytes += bytes
	return true
}

// endSend frees the room of an event, whose broker has answered.
func (l *Lane) endSend(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sends--
	l.bytes -= bytes
}
