package client

import (
	"errors"
	"time"
)

// ErrKeyLost is the cause with which the context of a handler is cancelled when its
// key is lost: context.Cause(ctx) tells. Another handler may work on the key now.
var ErrKeyLost = errors.New("client: the key is lost")

// ErrHandlerTimeout is the cause with which the context of a handler is cancelled
// that took longer than the router's handler.timeout without [Event.Progress]. It
// counts as a failure, and once the handler has returned the event is tried again.
var ErrHandlerTimeout = errors.New("client: the handler took longer than its timeout")

// ErrDrainTimeout is the cause with which the contexts of handlers are cancelled
// that did not end within the [DrainGrace]. Run returns it if they ignore that too.
var ErrDrainTimeout = errors.New("client: handlers did not end within the drain grace")

// RetryAfter says that the event failed with err and should be tried again after d,
// instead of after the router's own back-off; that is what d <= 0 stands for. The
// key waits meanwhile. It returns nil if err is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryError{err: err, after: max(d, 0)}
}

type retryError struct {
	err   error
	after time.Duration
}

func (e *retryError) Error() string { return e.err.Error() }
func (e *retryError) Unwrap() error { return e.err }

// Reject says that the event will never succeed. It goes to the dead letter topic,
// with reason beside it.
func Reject(reason string) error { return &rejectError{reason: reason} }

type rejectError struct{ reason string }

func (e *rejectError) Error() string { return e.reason }
