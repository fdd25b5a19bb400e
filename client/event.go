package client

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/internal/inbox"
)

// Event is one event, as the producer sent it, and what the router knows of it. Its
// strings and its payload share memory with other events: copy what you keep for
// long.
type Event struct {
	// Key is what makes events belong together. It may hold any bytes.
	Key string
	// Payload is what the producer sent. It is yours to write to.
	Payload []byte
	// Properties are the producer's, in its order.
	Properties []Property
	// Topic is the full name of the topic that the event was first sent to.
	Topic string
	// ID names the event, through all retries.
	ID MessageID
	// PublishTime is when it was sent, by the producer's clock.
	PublishTime time.Time
	// EventTime is what the producer says it is about, zero when it says nothing.
	EventTime time.Time
	// Attempt counts how often a handler was given this event, from 1. Only failures
	// of handlers count, not moves of the key.
	Attempt int
	// Redelivery is how often Pulsar had delivered the event before.
	Redelivery int
	// FencingToken only grows for a key, with every change of its owner. It is 0 if the
	// routers run with ownership.mode gossip, which cannot order owners.
	FencingToken int64

	run delivery
}

// Property is one property of an event.
type Property struct{ Name, Value string }

// MessageID is Pulsar's name of an event.
type MessageID struct {
	Ledger, Entry  int64
	Batch          int // index in the producer's batch, -1 when there was none
	TopicPartition int // of the topic, -1 when it is not partitioned
}

// String formats the id as Pulsar's tools do: ledger:entry:partition:batch.
func (m MessageID) String() string {
	return event.MessageID{Ledger: m.Ledger, Entry: m.Entry, Batch: int32(m.Batch), TopicPartition: int32(m.TopicPartition)}.String()
}

// Property returns the value of the first property called name.
func (e *Event) Property(name string) (value string, ok bool) {
	for i := range e.Properties {
		if e.Properties[i].Name == name {
			return e.Properties[i].Value, true
		}
	}
	return "", false
}

// Traceparent returns the event's W3C trace context, or "": that of this very delivery if
// the router traces the event, else what the producer sent along. With the option
// [Traces] the handler's context carries it already.
func (e *Event) Traceparent() string {
	for i := range e.Properties {
		if strings.EqualFold(e.Properties[i].Name, "traceparent") {
			return e.Properties[i].Value
		}
	}
	return ""
}

// LeaseUntil returns until when the handler may go on as things stand; while the
// key stays here it moves on all the time. It is for planning only (whether to begin
// another chunk of work): what cuts a handler is its context. It is zero for an
// event that no router delivered.
func (e *Event) LeaseUntil() time.Time {
	s := e.run.stream
	if s == nil {
		return time.Time{}
	}
	left := s.deadlineOf(e).Sub(s.runner.hooks.Now())
	return time.Now().Add(left) //nolint:forbidigo // wall time, for the reader; the lease clock decides
}

// Progress tells the router that the work on this event goes on, so that a timeout
// of single events, if the router has one, starts anew. It does not block. It returns
// the cause if ctx is cancelled.
func (e *Event) Progress(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s := e.run.stream; s != nil {
		s.progress(e)
	}
	return nil
}

// delivery is the SDK's own part of an event: its state in the inbox of its stream.
type delivery struct {
	stream *stream // nil for an event that no router delivered
	ctx    handlerContext
	item   inbox.Item[Event] // guarded by the runner's lock, but for what never changes
}

// handlerContext is the context of one handler. It costs nothing until somebody
// looks at it, which most handlers of small work never do: a standard context
// stands behind it from the first call of Done or Value on.
type handlerContext struct {
	base context.Context //nolint:containedctx // this is a context, and base its parent: that of all handlers, without a deadline

	mu     sync.Mutex
	std    context.Context //nolint:containedctx // what stands behind this context, nil until it is needed
	cancel context.CancelCauseFunc
	cause  error // why it was cancelled, nil while it is not
}

// Deadline reports that there is none: drivers copy a deadline once, and would cut
// every handler at the first lease.
func (*handlerContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *handlerContext) Done() <-chan struct{} { return c.standard().Done() }

// Value implements context.Context. It makes context.Cause work, and lets contexts
// that are derived from this one be cancelled without a goroutine.
func (c *handlerContext) Value(key any) any { return c.standard().Value(key) }

// Err implements context.Context.
func (c *handlerContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.std != nil:
		return c.std.Err()
	case c.cause != nil:
		return context.Canceled
	}
	return c.base.Err()
}

// derive puts base, which comes from the base of before, behind the context. Call it
// before the handler has the context.
func (c *handlerContext) derive(base context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = base
}

func (c *handlerContext) standard() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.std == nil {
		c.std, c.cancel = context.WithCancelCause(c.base)
		if c.cause != nil {
			c.cancel(c.cause)
		}
	}
	return c.std
}

// end cancels the context, and returns the cause for which it is cancelled, which
// is an earlier one if it was already.
func (c *handlerContext) end(cause error) error {
	c.mu.Lock()
	if c.cause == nil {
		if c.cause = cause; c.base.Err() != nil {
			c.cause = context.Cause(c.base)
		}
	}
	cause, cancel := c.cause, c.cancel
	c.mu.Unlock()
	if cancel != nil {
		cancel(cause) // the first cause stays
	}
	return cause
}
