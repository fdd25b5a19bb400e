package client

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership/inbox"
	"github.com/ringfence/router/internal/wire/appwire"
)

// Event is one event as the producer sent it, with the router's data about its delivery.
// Its strings and its payload share memory with other events: copy those that you keep
// for long.
type Event struct {
	// Key is the event's key: events with one key are handled one at a time. It may hold
	// any bytes.
	Key string
	// Payload holds the producer's bytes. The handler may write to it.
	Payload []byte
	// Properties are the producer's, in its order.
	Properties []Property
	// Topic is the full name of the topic that the event was first sent to.
	Topic string
	// ID names the event, through all retries.
	ID MessageID
	// PublishTime is the time of sending, by the producer's clock.
	PublishTime time.Time
	// EventTime is the time that the producer assigned to the event, zero if none.
	EventTime time.Time
	// Method is the name of the handler that a caller calls, for a call; "" for an event. Interceptors and hooks see calls as events with a
	// Method; its ID, Topic and times have no meaning.
	Method string
	// Timer is set for an event that a router published: a timer, or an event of [Lane.Send]. Its ID is none of Pulsar's.
	Timer *Timer
	// Attempt is 1 for the first delivery and grows with each failure of a handler, not
	// with moves of the key.
	Attempt int
	// Redelivery counts Pulsar's earlier deliveries of the event.
	Redelivery int
	// SchemaVersion is the version of the payload's schema in Pulsar's registry for Topic,
	// nil if the producer gave none.
	SchemaVersion []byte
	// Fence is greater than that of any earlier delivery of the key. Pass it to your
	// database with every write.
	Fence Fence
	// FencingToken is Fence.Token, for a database that keeps one number for each key. The
	// number refuses writes of former owners of the key, but not writes of an earlier
	// delivery by the same owner.
	FencingToken int64

	run handlerContext
}

// Property is one property of an event.
type Property struct{ Name, Value string }

// MessageID is Pulsar's id of an event.
type MessageID struct {
	Ledger, Entry  int64
	Batch          int // index in the producer's batch, -1 without a batch
	TopicPartition int // -1 if the topic is not partitioned; after the topic has moved to another cluster plus a multiple of 1<<17, which names that
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

// Traceparent returns the event's W3C trace context, or "": that of this delivery if the
// router traces the event, else the producer's. With the option [WithTraces] the handler's
// context carries it already.
func (e *Event) Traceparent() string {
	return carrier(e.Properties).Get("traceparent")
}

// LeaseUntil returns the current end of the handler's lease, which is renewed as long as
// the key stays here. Use it only for planning, such as whether to begin another chunk of
// work: the context is the signal to stop. It is zero for an event that no router delivered.
func (e *Event) LeaseUntil() time.Time {
	s := e.run.stream
	if s == nil {
		return time.Time{}
	}
	left := s.deadlineOf(e).Sub(s.runner.clock.Now())
	return time.Now().Add(left) //nolint:forbidigo // wall time, for the reader; the lease clock decides
}

// Progress tells the router that the handler is still working on this event, which
// restarts the handler timeout if the router has one. It does not block. It returns the
// cause if ctx is cancelled.
func (e *Event) Progress(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s := e.run.stream; s != nil {
		s.progress(e)
	}
	return nil
}

// handlerContext is the SDK's part of an event: its state in the inbox of its stream, and
// the context of its handler. The context allocates a standard context at the first call of
// Done or Value, which most small handlers never make.
type handlerContext struct {
	stream     *stream // of the event; its runner has the parent context; nil if no router delivered the event
	state      atomic.Pointer[contextState]
	call       *call             // nil: it is an event
	firing     *appwire.Firing   // of a schedule; nil: it is none
	timers     *timers           // that the handler has set, nil: none
	generation uint64            // see State; 0: the router did not say
	item       inbox.Item[Event] // its mutable fields are guarded by the runner's lock
}

// contextState is an immutable state of a handler's context: with a standard context, or
// ended before one was made.
type contextState struct {
	std    context.Context //nolint:containedctx // the standard context behind the handler's, nil if none was made
	cancel context.CancelCauseFunc
	cause  error // why the context has ended, if std is nil
}

// returned is shared by all contexts whose handler returned before a standard context was made.
var returned = &contextState{cause: context.Canceled}

// Deadline reports that there is none: drivers copy a deadline once, and would cut
// every handler at the first lease.
func (*handlerContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *handlerContext) Done() <-chan struct{} { return c.standard().Done() }

// Value implements context.Context. It makes context.Cause work, and lets contexts
// that are derived from this one be cancelled without a goroutine.
func (c *handlerContext) Value(key any) any {
	if key == (handlingKey{}) {
		return c.item.Of
	}
	return c.standard().Value(key)
}

// handlingKey is the key of the event that a context handles.
type handlingKey struct{}

// Err implements context.Context. It reads the lease clock, so it reports a passed deadline
// even before the watch does, as when the process has just thawed. Contexts derived from
// this one learn of the end by Done only.
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

// over reports whether the handler has returned.
func (c *handlerContext) over() bool {
	s := c.state.Load()
	if s == nil {
		return false
	}
	cause := s.cause
	if s.std != nil {
		cause = context.Cause(s.std)
	}
	return cause == context.Canceled //nolint:errorlint // this very value
}

// derive puts base, a child of the runner's base, behind the context. Call it before the
// handler gets the context.
func (c *handlerContext) derive(base context.Context) { c.standardOf(base) }

func (c *handlerContext) standard() context.Context { return c.standardOf(c.stream.runner.base) }

// standardOf returns the standard context behind this one, and makes it a child of base if
// there is none yet.
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
		cancel(nil) // another goroutine was faster
	}
}

// end cancels the context with cause, and returns the cause of the first cancellation.
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
