package client

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/event"
)

// The causes with which the context of a handler is cancelled; context.Cause returns them.
var (
	// ErrKeyLost: the lease on the key has ended. Another handler may work on the key now.
	ErrKeyLost = errors.New("client: the key is lost")
	// ErrHandlerTimeout: the handler took longer than the router's handler.timeout without
	// [Event.Progress]. It counts as a failure: the event is retried once the handler has
	// returned. Or an operator has skipped the event (router skip): it goes to the dead letter
	// topic, unless the handler returns nil.
	ErrHandlerTimeout = errors.New("client: the handler took longer than its timeout")
	// ErrDrainTimeout: the handler did not end within the [WithDrainGrace]. It is also the
	// kind of the [Error] that Run returns if handlers ignore the cancellation too. A handler
	// that has done nothing yet may return it once the context of Run has ended: the event goes
	// back to the router at once, and it counts as no failure.
	ErrDrainTimeout = errors.New("client: handlers did not end within the drain grace")
)

// The other kinds of an [Error]. Run returns ErrArgument at once. All kinds below it end one
// session, and Run reconnects: [Hooks].Disconnected and the log report them.
var (
	// ErrArgument: an argument or option of Run is out of range; [Error].Argument names it.
	ErrArgument = errors.New("client: bad argument")
	// ErrUnreachable: there is no router at the endpoint, TLS failed, or the router is stopping.
	ErrUnreachable = errors.New("client: cannot reach the router")
	// ErrUnauthenticated: the token file cannot be read, or the router refuses its token.
	ErrUnauthenticated = errors.New("client: no valid token")
	// ErrVersion: the router and this SDK have no protocol version in common.
	ErrVersion = errors.New("client: no common protocol version")
	// ErrTooManyWorkers: the router already serves app.workers_max workers.
	ErrTooManyWorkers = errors.New("client: the router has too many workers")
	// ErrRefused: the router refused the session for another reason, given by the cause.
	ErrRefused = errors.New("client: the router refused the session")
	// ErrGoAway: the router ended the session in order, because it is stopping.
	ErrGoAway = errors.New("client: the router ended the session")
	// ErrSilent: the router sent nothing for 10 s, though it answers Pings every 0.2 s.
	ErrSilent = fmt.Errorf("client: the router has been silent for %v; it, its machine or the network may be down", silenceMax)
	// ErrBroken: an established session broke.
	ErrBroken = errors.New("client: the session broke")
)

// Error is a failure that the SDK reports, as opposed to a failure of a handler. errors.Is
// matches its kind and its cause.
type Error struct {
	Kind     error  // ErrArgument, ErrUnreachable, …, or ErrDrainTimeout
	Argument string // with ErrArgument: "endpoint", "handler", or the name of the option; else ""
	Err      error  // the cause, or nil
}

// Error returns the kind and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Kind.Error()
	}
	return e.Kind.Error() + ": " + e.Err.Error()
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// badArgument returns the error for an argument of Run; its text begins with the argument's name.
func badArgument(argument, format string, values ...any) error {
	return &Error{Kind: ErrArgument, Argument: argument, Err: fmt.Errorf(argument+format, values...)}
}

// refusal returns the error for a session that ended with err before its Welcome.
func refusal(err error) error {
	kind := ErrRefused
	switch status.Code(err) {
	case codes.Unavailable:
		kind = ErrUnreachable
	case codes.Unauthenticated:
		kind = ErrUnauthenticated
	case codes.FailedPrecondition:
		kind = ErrVersion
	case codes.ResourceExhausted:
		kind = ErrTooManyWorkers
	}
	return &Error{Kind: kind, Err: err}
}

// verdict is an error that says what becomes of the event. Of several in a tree of errors the outermost counts, as in the other SDKs: who
// wrapped the error knew it.
type verdict interface {
	error
	tell(result *event.Result)
}

func (*RejectError) tell(result *event.Result)  { result.Kind = event.ResultReject }
func (e *RetryError) tell(result *event.Result) { result.After = e.After }

// RetryAfter says that the event failed with err and should be retried after d; d <= 0
// means after the router's own back-off. The key waits meanwhile. It returns nil if err is
// nil, else a [*RetryError].
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &RetryError{Err: err, After: max(d, 0)}
}

// RetryError is the error of [RetryAfter]. Its text is that of Err.
type RetryError struct {
	Err   error
	After time.Duration // 0: the router's own back-off
}

// Error returns the text of Err.
func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RetryError) Unwrap() error { return e.Err }

// Reject says that the event will never succeed. The event goes to the dead letter topic,
// with the text of the handler's error as a property. Reject returns nil if err is nil, else
// a [*RejectError].
func Reject(err error) error {
	if err == nil {
		return nil
	}
	return &RejectError{Err: err}
}

// RejectError is the error of [Reject]. Its text is that of Err.
type RejectError struct{ Err error }

// Error returns the text of Err.
func (e *RejectError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RejectError) Unwrap() error { return e.Err }
