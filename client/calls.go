package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/wire/appwire"
)

// Call is a request for a handler of a key, which its caller waits for.
type Call struct {
	// Key is the key. While the handler runs, no event and no other call of it is handled.
	Key string
	// Method is the name that the handler is registered under, see [WithCall].
	Method string
	// Payload is the argument. The handler may write to it.
	Payload []byte
	// ID is the caller's id of the call, "" if it gave none. Only a call with an id may run twice, with two fences.
	ID string
	// Deadline is the time at which the caller stops waiting, by this machine's clock. The context of the handler is cancelled then.
	Deadline time.Time
	// Fence is greater than that of any earlier delivery of the key, event or call. Pass it to your database with every write.
	Fence Fence

	event *Event
}

// After is [Event.After]: the timer is published before the caller gets its reply.
func (c *Call) After(d time.Duration, name string, payload []byte) { c.event.After(d, name, payload) }

// Progress is [Event.Progress]: it restarts the handler timeout of the router, but not the timeout of the caller.
func (c *Call) Progress(ctx context.Context) error { return c.event.Progress(ctx) }

// CallHandler answers one call. ctx is cancelled with the cause [ErrKeyLost] when the key is lost, with [ErrCallerGone] when the caller stops
// waiting, and with [ErrHandlerTimeout] when the handler takes longer than the router's handler.timeout without [Call.Progress]: then the caller is told that the call
// may have run. An error fails the call: the router does not retry it. The caller gets its text, and the code of a [CallFailure].
// A reply of more than 1 MiB fails the call.
type CallHandler func(ctx context.Context, c *Call) (reply []byte, err error)

// WithCall registers the handler of a method: 1 to 64 bytes of A-Z, a-z, 0-9, '.', '_' and '-'. All workers of a group should
// register the same methods, since a call goes to the worker of its key, whatever methods that has. Panics, interceptors, hooks and
// traces are as for events.
func WithCall(method string, handler CallHandler) Option {
	return func(o *options) {
		if o.calls == nil {
			o.calls = make(map[string]CallHandler)
		}
		if _, again := o.calls[method]; again || handler == nil || !event.IsMethod(method) {
			o.badCalls = append(o.badCalls, method)
			return
		}
		o.calls[method] = handler
	}
}

// ErrCallerGone is the cause with which the context of a call's handler is cancelled when its caller has stopped waiting. The result of
// the handler is then discarded.
var ErrCallerGone = errors.New("client: the caller is no longer waiting")

// CallFailure is an error with a code for the caller.
type CallFailure struct {
	Code string // up to 64 bytes; longer ones are dropped
	Err  error
}

// FailCall returns err with a code for the caller, nil if err is nil.
func FailCall(code string, err error) error {
	if err == nil {
		return nil
	}
	return &CallFailure{Code: code, Err: err}
}

// Error returns the text of Err.
func (f *CallFailure) Error() string { return f.Err.Error() }

// Unwrap returns Err.
func (f *CallFailure) Unwrap() error { return f.Err }

// call is the SDK's part of a call.
type call struct {
	id       string
	deadline time.Time
	path     []partition.KeyHash
	reply    []byte
}

// fillCall makes a call of an event.
func (s *stream) fillCall(e *Event, c *appwire.Call) {
	e.Method = c.Method
	e.run.call = &call{id: c.ID, deadline: time.Now().Add(c.Timeout), path: c.Path} //nolint:forbidigo // wall time, for the handler
}

// errNoHandler means that no handler is registered for a method.
var errNoHandler = errors.New("client: no handler is registered for this method")

// handleCall is the Handler of calls, behind the interceptors.
func (o *options) handleCall(ctx context.Context, e *Event) (err error) {
	c := e.run.call
	handler := o.calls[e.Method]
	if handler == nil {
		return errNoHandler
	}
	reply, err := handler(ctx, &Call{Key: e.Key, Method: e.Method, Payload: e.Payload, ID: c.id, Deadline: c.deadline, Fence: e.Fence, event: e})
	if err == nil && len(reply) > event.CallPayloadMax {
		return FailCall(event.CodeTooLarge, fmt.Errorf("a reply of %d bytes: want at most %d", len(reply), event.CallPayloadMax))
	}
	c.reply = reply
	return err
}

// callResult completes the result of a call.
func callResult(e *Event, err error, result *event.Result) {
	switch {
	case err == nil:
		if reply := e.run.call.reply; len(reply) > 0 {
			result.Reply = &event.CallReply{Payload: reply}
		}
	case result.Kind == event.ResultCancelled:
	case errors.Is(err, errNoHandler):
		*result = event.Result{Kind: event.ResultNotStarted, Reason: err.Error(), Reply: &event.CallReply{Code: event.CodeNoHandler}}
	default:
		var failure *CallFailure
		if errors.As(err, &failure) && len(failure.Code) <= event.CallCodeMax {
			result.Reply = &event.CallReply{Code: failure.Code}
		}
	}
}
