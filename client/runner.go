package client

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/tally"
)

// runner is the state of one Run: the pool of goroutines that handlers run in, and the
// streams.
//
// One lock guards the pool and the inboxes of all streams, so that a goroutine answers an
// event and takes the next one under one acquisition. It is held for short calls into the
// machine, never while a handler runs.
type runner struct {
	options
	endpoint endpoint
	handler  Handler
	base     context.Context         //nolint:containedctx // of all handlers: ctx of Run, but not ended by it
	cut      context.CancelCauseFunc // ends base
	hard     context.Context         //nolint:containedctx // of all streams: ends when Run stops waiting
	giveUp   context.CancelFunc      // ends hard
	stopping func() bool             // whether the context of Run has ended
	grace    sync.Once               // see startGrace
	handlers sync.WaitGroup          // goroutines of the pool
	states   *states
	watches  sync.WaitGroup // one for each stream that has running handlers

	graceTimer, patienceTimer *time.Timer // of the drain grace, and of the patience after it; set by startGrace

	failed, lateTimers counted // what is logged once a second

	mu      sync.Mutex
	live    *stream    // the stream whose deliveries start; nil while disconnected
	work    *sync.Cond // wakes one parked goroutine for work, or all at the end
	parked  int        // goroutines of the pool that wait for work
	pool    int        // goroutines of the pool
	running int        // handlers
	late    int        // running handlers that were cancelled for good: they take no place from others
	waking  bool       // a woken goroutine has not taken the lock yet; it will wake the next
	retired bool       // goroutines end when they have no work left
}

func newRunner(ctx context.Context, at endpoint, handler Handler, o options) *runner {
	r := &runner{options: o, endpoint: at, handler: handler, stopping: func() bool { return ctx.Err() != nil }}
	r.work, r.states = sync.NewCond(&r.mu), &states{max: o.stateMax}
	r.base, r.cut = context.WithCancelCause(context.WithoutCancel(ctx))
	r.hard, r.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

// startGrace starts the timers of the drain grace. Only the first call has an effect.
func (r *runner) startGrace() {
	r.grace.Do(func() {
		r.graceTimer = time.AfterFunc(r.drainGrace, func() { r.cut(ErrDrainTimeout) })
		r.patienceTimer = time.AfterFunc(r.drainGrace+patience, r.giveUp)
	})
}

// endGrace stops the timers and cancels all contexts of Run. The grace must have begun.
func (r *runner) endGrace() {
	r.graceTimer.Stop()
	r.patienceTimer.Stop()
	r.cut(context.Canceled)
	r.giveUp()
}

// retire makes the goroutines of the pool end when they have no work left.
func (r *runner) retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired = true
	r.work.Broadcast()
}

// busy returns the number of running handlers.
func (r *runner) busy() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

// wakeOne wakes or starts one goroutine if there is work for it. The lock is held. Only
// one goroutine is being woken at a time: it wakes the next before it starts a handler. So
// handlers that block spread over as many goroutines as there are events, within
// microseconds, and handlers that return at once run in a few goroutines, without a
// goroutine switch for each event.
func (r *runner) wakeOne() {
	if r.waking || r.live == nil || !r.live.inbox.Startable() {
		return
	}
	switch {
	case r.parked > 0:
		r.waking = true
		r.work.Signal()
	case r.pool < r.maxInFlight+min(r.late, r.pool):
		r.waking = true
		r.pool++
		r.handlers.Go(r.handle)
	}
}

// leftLate notes that running handlers were cancelled for good, and lets others start in their places. The lock is held.
func (r *runner) leftLate(lost []*Event) {
	if len(lost) > 0 {
		r.late += len(lost)
		r.states.lose(lost)
		r.wakeOne()
	}
}

// handle is one goroutine of the pool.
func (r *runner) handle() {
	defer r.leave()
	var result event.Result
	for e, began := r.next(nil, nil, 0); e != nil; e, began = r.next(e, &result, began) {
		r.call(e, &result)
	}
}

// leave takes a goroutine out of the pool, also when a handler ends it with
// runtime.Goexit, as a test's Fatal does.
func (r *runner) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pool--
	r.wakeOne()
	now, _ := r.fast()
	r.tell(now)
}

// tell lets the live stream send its pending results and receipt. The lock is held.
func (r *runner) tell(now clock.Instant) {
	if r.live != nil {
		r.live.tell(now)
	}
}

// next reports the result of the event that has just ended; it is nil in a goroutine that was
// just started. It returns the next event, or nil if the goroutine has to end. began is when
// the handler of the ended event began, by CLOCK_BOOTTIME; the returned time is that of the
// next one.
//
// One reading of the clock serves both events: a handler ends before its result is sent, and begins after its delivery has come.
func (r *runner) next(ended *Event, result *event.Result, began time.Duration) (*Event, time.Duration) {
	now, boot := r.fast() // before every start: the machine may have been asleep
	if ended != nil && ended.run.stream.intervals {
		result.Ran = event.Interval{Start: began, Length: max(0, boot-began)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ended != nil {
		r.answer(ended, result)
	} else {
		r.waking = false
	}
	for {
		if r.pool-r.late > r.maxInFlight { // its handler was late, and another goroutine is in its place
			return nil, 0
		}
		if r.live != nil {
			if e := r.live.inbox.Take(now); e != nil {
				r.running++
				r.wakeOne()
				r.tell(now)
				return e, boot
			}
		}
		r.tell(now)
		if r.retired {
			return nil, 0
		}
		r.parked++
		r.work.Wait()
		r.parked--
		r.waking = false
		now, boot = r.fast()
	}
}

// answer gives the result of an event to its stream. The lock is held.
func (r *runner) answer(e *Event, result *event.Result) {
	r.running--
	if e.run.stream.inbox.Lost(&e.run.item) {
		r.late--
		r.states.returned(e)
	}
	e.run.stream.inbox.End(&e.run.item, result)
}

// call runs the handler of an event and stores its result.
func (r *runner) call(e *Event, result *event.Result) {
	*result = event.Result{}
	var err error
	if r.hooks.Finished != nil {
		begun := time.Now() //nolint:forbidigo // how long the handler takes, for a metric
		defer func() {
			r.hooks.Finished(e, Result{Kind: ResultKind(result.Kind), Err: err, Duration: time.Since(begun)}) //nolint:forbidigo // for a metric
		}()
	}
	if r.propagator != nil {
		end := r.trace(e)
		defer func() { end(*result) }()
	}
	returned := false
	defer func() {
		if returned {
			return
		}
		r.states.ended(e, false)
		// A panic, or runtime.Goexit; after the latter this goroutine ends.
		if thrown := recover(); thrown != nil {
			if n := r.failed.more(r.clock.Now()); n > 0 {
				r.log.Error("handler panicked", "message_id", e.ID.String(), "attempt", e.Attempt, "panic", panicText(thrown), "stack", string(debug.Stack()), "failures", n)
			}
			err = panicError(thrown)
			*result = r.resultOf(e, err)
			return
		}
		err = errors.New("the handler ended its goroutine")
		*result = r.resultOf(e, err)
		r.logFailure(e, err, result.Kind)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.answer(e, result)
	}()
	if r.hooks.Started != nil {
		r.hooks.Started(e)
	}
	r.states.begun(e)
	err = r.handler(&e.run, e)
	if err == nil && e.run.timers != nil {
		err = r.sendTimers(e)
	}
	done := r.states.done(e, err)
	if err == nil {
		_ = e.run.end(context.Canceled) // an earlier cause does not matter: the work is done
		result.Kind = event.ResultDone
	} else {
		*result = r.resultOf(e, err) // calls Error of the handler's error, which may panic
		r.logFailure(e, err, result.Kind)
	}
	if e.run.call != nil {
		callResult(e, err, result)
	}
	r.states.ended(e, done)
	returned = true
}

// counted counts what happens until it is logged, at most once a second.
type counted struct {
	mu    sync.Mutex
	tally tally.Tally
}

// more counts one more, and returns how many are to be logged now, 0 if it is too early.
func (c *counted) more(now clock.Instant) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, _ := c.tally.Add(now, 1, time.Second)
	return n
}

// logFailure logs a failure that the handler has not foreseen, by the type of its error: the text may hold parts of the event.
func (r *runner) logFailure(e *Event, err error, kind event.ResultKind) {
	retry, failure := (*RetryError)(nil), (*CallFailure)(nil)
	if kind != event.ResultRetry || errors.As(err, &retry) || errors.Is(err, errNoHandler) || e.run.call != nil && errors.As(err, &failure) {
		return
	}
	if n := r.failed.more(r.clock.Now()); n > 0 {
		r.log.Warn("handler failed", "message_id", e.ID.String(), "attempt", e.Attempt, "error_type", innermostType(err), "failures", n)
	}
}

// innermostType returns the type of what an error wraps.
func innermostType(err error) string {
	for range 100 {
		inner := errors.Unwrap(err)
		if inner == nil {
			break
		}
		err = inner
	}
	return fmt.Sprintf("%T", err)
}

// panicText returns what may be logged of a panic: the text of an error of the runtime, which holds nothing of an event, else the type.
func panicText(thrown any) (text string) {
	text = fmt.Sprintf("a value of the type %T", thrown)
	if err, ok := thrown.(runtime.Error); ok {
		defer func() { _ = recover() }() // it may be a type of the application
		text = err.Error()
	}
	return text
}

// panicError returns the error for a panic. It does not panic, which would end the process, even if the value panics when its text is asked for.
func panicError(thrown any) (err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("panic: a value of the type %T, whose text panics", thrown)
		}
	}()
	return fmt.Errorf("panic: %v", thrown)
}

// resultOf turns a handler's error into the answer to the router. An error after a
// cancellation is not a failure, nor is an event that the handler of a stopping worker gives back.
func (r *runner) resultOf(e *Event, err error) event.Result {
	cause := e.run.end(context.Canceled)
	cancelled := errors.Is(cause, ErrKeyLost) || errors.Is(cause, ErrHandlerTimeout) || errors.Is(cause, ErrCallerGone) || errors.Is(cause, ErrDrainTimeout)
	if cancelled || errors.Is(err, ErrDrainTimeout) && r.stopping() {
		return event.Result{Kind: event.ResultCancelled}
	}
	result := event.Result{Kind: event.ResultRetry, Reason: err.Error()}
	if says, ok := errors.AsType[verdict](err); ok {
		says.tell(&result)
	}
	return result
}

// cancel cancels the contexts of running handlers with a cause.
func (r *runner) cancel(cut []*Event, cause error) {
	for _, e := range cut {
		r.log.Warn("handler cancelled", "message_id", e.ID.String(), "attempt", e.Attempt, "error", cause)
		_ = e.run.end(cause) // it returns the cause, not a failure
	}
}

// cancelSlow cancels handlers that the router has taken back one by one: since they took too long, or since the callers of their calls have gone.
func (r *runner) cancelSlow(cut []*Event, timedOut bool) {
	for _, e := range cut {
		cause := ErrHandlerTimeout
		if e.run.call != nil && !timedOut {
			cause = ErrCallerGone
		}
		r.cancel([]*Event{e}, cause)
	}
}

// cutReason shortens an error text to n bytes.
func cutReason(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
