package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/client/internal/hook"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// runner is one Run: the pool of goroutines that handlers run in, and the streams.
//
// One lock guards the pool and the inboxes of all streams, so that a goroutine
// answers the events of a [claim] and takes the next at once. It is held for a few lines of
// the machine for each, and never while a handler runs.
type runner struct {
	options
	endpoint endpoint
	handler  Handler
	hooks    hook.Hooks
	log      *slog.Logger
	base     context.Context //nolint:containedctx // of all handlers: ctx of Run, but not ended by it
	cut      context.CancelCauseFunc
	hard     context.Context //nolint:containedctx // of all streams: ends when Run waits no longer
	giveUp   context.CancelFunc
	grace    sync.Once
	ends     [2]*time.Timer // of the grace, and of the patience after it; set by startGrace
	handlers sync.WaitGroup // goroutines of the pool
	watches  sync.WaitGroup // one for every stream that has handlers

	mu      sync.Mutex
	live    *stream    // the one whose deliveries start, nil while there is none
	work    *sync.Cond // a parked goroutine is wanted, or all of them
	parked  int
	pool    int
	running int
	waking  bool     // one goroutine is on its way to the lock: it will wake the next
	claims  []*claim // those with events that have not started; none unless waking
	retired bool
}

func newRunner(ctx context.Context, at endpoint, handler Handler, o options) *runner {
	r := &runner{options: o, endpoint: at, handler: handler, hooks: hook.From(ctx), log: o.log}
	r.work = sync.NewCond(&r.mu)
	r.base, r.cut = context.WithCancelCause(context.WithoutCancel(ctx))
	r.hard, r.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

// startGrace begins the drain, when ctx has ended. Only the first call counts.
func (r *runner) startGrace() {
	r.grace.Do(func() {
		r.ends[0] = time.AfterFunc(r.drainGrace, func() { r.cut(ErrDrainTimeout) })
		r.ends[1] = time.AfterFunc(r.drainGrace+patience, r.giveUp)
	})
}

// endGrace lets go of what Run holds. The grace must have begun.
func (r *runner) endGrace() {
	for _, timer := range r.ends {
		timer.Stop()
	}
	r.cut(context.Canceled)
	r.giveUp()
}

// retire lets the goroutines of the pool end when they have nothing to do.
func (r *runner) retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired = true
	r.work.Broadcast()
}

// busy returns how many handlers run.
func (r *runner) busy() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recall()
	return r.running
}

// wakeOne gets one more goroutine to look for work, if there is any. The lock is
// held. One at a time is on its way: it wakes the next before it starts a handler.
// So handlers that block spread over as many goroutines as there are events, within
// microseconds, and handlers that return at once are run by a few, without a switch
// of goroutines for each event.
func (r *runner) wakeOne() {
	if r.waking || len(r.claims) == 0 && (r.live == nil || !r.live.inbox.Startable()) {
		return
	}
	switch {
	case r.parked > 0:
		r.waking = true
		r.work.Signal()
	case r.pool < r.maxInFlight:
		r.waking = true
		r.pool++
		r.handlers.Go(r.handle)
	}
}

// handle is one goroutine of the pool.
func (r *runner) handle() {
	defer r.leave()
	var h claim
	for woken := true; r.next(&h, woken); woken = false {
		for more := true; more; more = h.advance(&r.hooks) {
			r.call(&h)
		}
	}
}

// leave takes a goroutine out of the pool. It does so too when a handler ends it with
// runtime.Goexit, as the Fatal of a test does.
func (r *runner) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pool--
	r.wakeOne()
	r.tell(r.hooks.Starting())
}

// tell lets the live stream say what has gathered. The lock is held.
func (r *runner) tell(now clock.Instant) {
	if r.live != nil {
		r.live.tell(now)
	}
}

// next answers the events of a claim whose handlers have returned, and fills it again. It
// returns false if the goroutine has to end.
func (r *runner) next(h *claim, woken bool) bool {
	now := r.hooks.Starting() // before every start: a machine that was asleep must not begin
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release(h)
	for {
		if woken {
			r.waking = false
			r.recall()
		}
		if r.live != nil && r.fill(h, now) {
			r.wakeOne()
			r.tell(now)
			return true
		}
		r.tell(now)
		if r.retired {
			return false
		}
		r.parked++
		r.work.Wait()
		r.parked--
		woken = true
		now = r.hooks.Starting()
	}
}

// call runs the handler of the event whose turn it is and notes its result.
func (r *runner) call(h *claim) {
	e, result := h.events[h.now], &h.results[h.now]
	if r.propagator != nil {
		end := r.trace(e)
		defer func() { end(*result) }()
	}
	returned := false
	defer func() {
		if returned {
			return
		}
		// A panic, or runtime.Goexit; after the latter this goroutine ends.
		if thrown := recover(); thrown != nil {
			r.log.Error("handler panicked", "message_id", e.ID.String(), "attempt", e.Attempt, "panic", thrown, "stack", string(debug.Stack()))
			*result = r.resultOf(e, fmt.Errorf("panic: %v", thrown))
			return
		}
		*result = r.resultOf(e, errors.New("the handler ended its goroutine"))
		r.mu.Lock()
		defer r.mu.Unlock()
		r.release(h)
	}()
	err := r.handler(&e.run, e)
	if err == nil {
		_ = e.run.end(context.Canceled) // whatever it says: the work is done
		result.Kind = event.ResultDone
	} else {
		*result = r.resultOf(e, err) // calls Error of what the handler returned, which may panic
	}
	returned = true
}

// resultOf turns a failure of a handler into the answer to the router. A handler that was
// cut has not failed, whatever it says.
func (r *runner) resultOf(e *Event, err error) event.Result {
	cause := e.run.end(context.Canceled)
	if errors.Is(cause, ErrKeyLost) || errors.Is(cause, ErrHandlerTimeout) || errors.Is(cause, ErrDrainTimeout) {
		return event.Result{Kind: event.ResultCancelled}
	}
	if reject := (*rejectError)(nil); errors.As(err, &reject) {
		return event.Result{Kind: event.ResultReject, Reason: reject.reason}
	}
	result := event.Result{Kind: event.ResultRetry, Reason: err.Error()}
	if retry := (*retryError)(nil); errors.As(err, &retry) {
		result.After = retry.after
	}
	return result
}

// cancel cuts the handlers of deliveries for a cause.
func (r *runner) cancel(cut []*Event, cause error) {
	for _, e := range cut {
		r.log.Warn("handler cancelled", "message_id", e.ID.String(), "attempt", e.Attempt, "error", cause)
		_ = e.run.end(cause) // it returns the cause, not a failure
	}
}

// cutReason shortens an error text to n bytes.
func cutReason(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
