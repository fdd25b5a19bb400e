package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
)

// Handler works on one event. ctx is cancelled when the key is lost. The documentation of
// the package explains this and the return values.
type Handler func(ctx context.Context, e *Event) error

// Interceptor returns a handler that does something before or after it calls next: it may
// change the context, the error, or decide not to call next. [Run] calls each interceptor once,
// so its setup is shared by all events; the handlers it returns are called from many goroutines
// concurrently.
type Interceptor func(next Handler) Handler

// Run connects to the router at endpoint (host:port, unix:///path, or "" for the value of
// [EndpointEnv], else [DefaultEndpoint]) and calls handler for every event until ctx ends.
// Whenever the session breaks it reconnects, without a limit of attempts.
//
// When ctx ends, Run requests no more events, waits for the running handlers, delivers their
// results, and returns nil, or an [*Error] of the kind [ErrDrainTimeout] if handlers ignored
// even the cancellation after the drain grace. It does the same before ctx ends, and returns an
// error of the kind [ErrRefused] too, if the router refuses one of the schedules, since it would
// do so each time. All other errors are of the kind [ErrArgument], and Run returns them before it
// connects, joined if there are several.
func Run(ctx context.Context, endpoint string, handler Handler, opts ...Option) error {
	o := defaults()
	for _, opt := range opts {
		opt(&o)
	}
	o.instrument()
	at, err := parseEndpoint(endpoint)
	if handler != nil && len(o.calls) > 0 {
		handler = o.withCalls(handler)
	}
	if handler != nil {
		handler = o.withFirings(handler)
	}
	handler, badHandler := intercept(handler, o.interceptors)
	if err = errors.Join(err, badHandler, o.validate()); err != nil {
		return err
	}
	o.warnOfPlainText(at)
	r := newRunner(ctx, at, handler, o)
	refused := r.connect(ctx)
	r.clock.Ended()
	return errors.Join(refused, r.stop())
}

// withCalls returns a handler of events and calls.
func (o *options) withCalls(handler Handler) Handler {
	return func(ctx context.Context, e *Event) error {
		if e.run.call != nil {
			return o.handleCall(ctx, e)
		}
		return handler(ctx, e)
	}
}

// intercept puts interceptors around a handler.
func intercept(handler Handler, interceptors []Interceptor) (Handler, error) {
	if handler == nil {
		return nil, badArgument("handler", " = nil")
	}
	for i, interceptor := range slices.Backward(interceptors) {
		if interceptor != nil {
			handler = interceptor(handler)
		}
		if interceptor == nil || handler == nil {
			return nil, badArgument("WithInterceptors", ": number %d is nil, or returned nil", i+1)
		}
	}
	return handler, nil
}

// awayMax bounds the delay that a router may ask for before the next stream: its clock or its settings may be wrong,
// and the next router at the endpoint did not ask for it.
const awayMax = time.Minute

// connect runs one stream after the other until ctx ends, or until the router refuses a schedule: that is the error.
func (r *runner) connect(ctx context.Context) error {
	// The router is on this machine, so a short delay is cheap and finds a restarted router soon.
	delays := backoff.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
	for ctx.Err() == nil {
		begun := r.clock.Now()
		worked, away, err := r.runStream(ctx)
		if ctx.Err() != nil {
			r.disconnected(nil)
			break
		}
		r.disconnected(err)
		if r.isOfSchedule(err) {
			r.log.Error("the router refuses a schedule: this worker ends", "endpoint", r.endpoint.address, "error", err)
			return err
		}
		if worked && r.clock.Now().Sub(begun) >= delays.Max { // a router may end each session right after its Welcome
			delays.Reset()
		}
		pause := max(min(away, awayMax), backoff.Jitter(delays.Next(), rand.Uint64())) //nolint:forbidigo,gosec // keeps the workers of one router apart; nothing else depends on it
		r.log.Warn("no stream to the router", "endpoint", r.endpoint.address, "error", err, "again_in", pause)
		_ = backoff.Sleep(ctx, pause) // ctx ends the loop
	}
	return nil
}

// patience is how long Run waits for handlers that were cancelled at the end of the
// drain grace, and for the router to take the last results.
const patience = time.Second

// stop waits for the handlers of all streams and ends the goroutines. No stream follows.
func (r *runner) stop() error {
	r.startGrace()
	defer r.endGrace()
	r.retire()
	done := make(chan struct{})
	var waiter sync.WaitGroup
	waiter.Go(func() { // outlives Run only if a handler does
		defer close(done)
		r.handlers.Wait()
		r.watches.Wait()
	})
	select {
	case <-done:
		return nil
	case <-r.hard.Done():
		if running := r.busy(); running > 0 {
			return &Error{Kind: ErrDrainTimeout, Err: fmt.Errorf("%d are still running", running)}
		}
		return nil // on a busy machine the goroutines end later than their handlers
	}
}
