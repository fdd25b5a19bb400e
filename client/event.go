package client

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership/inbox"
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
	// SchemaVersion is the version of the payload's schema, as Pulsar's registry numbers the
	// schemas of Topic, nil when the producer gave none.
	SchemaVersion []byte
	// Fence is greater than that of any earlier delivery of the key. Pass it to your
	// database with every write.
	Fence Fence
	// FencingToken is Fence.Token, for a database that keeps one number for each key. It
	// refuses writes of former owners of the key, and not those of an earlier delivery
	// by the same owner.
	FencingToken int64

	run handlerContext
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
// [WithTraces] the handler's context carries it already.
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
	left := s.deadlineOf(e).Sub(s.runner.clock.Now())
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

// handlerContext is the SDK's own part of an event: its state in the inbox of its stream,
// and the context of its handler. The context costs nothing until somebody looks at it,
// which most handlers of small work never do: a standard context stands behind it from the
// first call of Done or Value on.
type handlerContext struct {
	stream *stream // that the event came on, whose runner has the parent; nil if no router delivered it
	state  atomic.Pointer[contextState]
	item   inbox.Item[Event] // guarded by the runner's lock, but for what never changes
}

// contextState is what became of a handler's context: somebody has looked, or it has
// ended before anybody did. It does not change; a standard context outlives its end.
type contextState struct {
	std    context.Context //nolint:containedctx // what stands behind the handler's context, nil when nobody has looked
	cancel context.CancelCauseFunc
	cause  error // without std: why it has ended
}

// returned is the end of nearly all handlers' contexts.
var returned = &contextState{cause: context.Canceled}

// Deadline reports that there is none: drivers copy a deadline once, and would cut
// every handler at the first lease.
func (*handlerContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *handlerContext) Done() <-chan struct{} { return c.standard().Done() }

// Value implements context.Context. It makes context.Cause work, and lets contexts
// that are derived from this one be cancelled without a goroutine.
func (c *handlerContext) Value(key any) any { return c.standard().Value(key) }

// Err implements context.Context. It asks the lease clock: nobody who asks goes on after
// the deadline, also where nothing has cut the handler yet because the process has just
// thawed. Contexts that are derived from this one know of it by Done only.
func (c *handlerContext) Err() error {
	if err := c.ended(); err != nil || !c.stream.overdue(&c.item) {
		return err
	}
	_ = c.end(ErrKeyLost) // it returns the cause, not a failure
	return c.ended()
}

// ended returns the error of a context that has ended.
func (c *handlerContext) ended() error {
	switch s := c.state.Load(); {
	case s == nil:
		return c.stream.runner.base.Err()
	case s.std != nil:
		return s.std.Err()
	}
	return context.Canceled
}

// derive puts base, which comes from the base of before, behind the context. Call it
// before the handler has the context.
func (c *handlerContext) derive(base context.Context) { c.standardOf(base) }

func (c *handlerContext) standard() context.Context { return c.standardOf(c.stream.runner.base) }

// standardOf returns the context that stands behind this one. If there is none yet, it
// becomes a child of base.
func (c *handlerContext) standardOf(base context.Context) context.Context {
	for {
		before := c.state.Load()
		if before != nil && before.std != nil {
			return before.std
		}
		std, cancel := context.WithCancelCause(base)
		if before != nil {
			cancel(before.cause)
		}
		if c.state.CompareAndSwap(before, &contextState{std: std, cancel: cancel}) {
			return std
		}
		cancel(nil) // somebody was faster
	}
}

// end cancels the context, and returns the cause for which it is cancelled, which
// is an earlier one if it was already.
func (c *handlerContext) end(cause error) error {
	for {
		switch s := c.state.Load(); {
		case s == nil:
			if c.stream.runner.base.Err() != nil {
				cause = context.Cause(c.stream.runner.base)
			}
			if ended := endedBy(cause); c.state.CompareAndSwap(nil, ended) {
				return cause
			}
		case s.std == nil:
			return s.cause
		default:
			s.cancel(cause) // the first cause stays
			return context.Cause(s.std)
		}
	}
}

func endedBy(cause error) *contextState {
	if cause == context.Canceled { //nolint:errorlint // this very value
		return returned
	}
	return &contextState{cause: cause}
}
