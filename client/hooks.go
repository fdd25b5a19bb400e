package client

import (
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// Hooks report the SDK's activity to the application, for its metrics. Nil fields are
// skipped. A hook must neither block nor panic: events and Pings wait for it.
type Hooks struct {
	// Started is called before all interceptors and the handler of an event, in the
	// handler's goroutine. Many calls may run concurrently.
	Started func(e *Event)
	// Finished is called once for each Started, in the same goroutine.
	Finished func(e *Event, r Result)
	// Connected is called when a session with the router is established, before its first
	// event. Connected, Disconnected and Window are called one at a time.
	Connected func(s Session)
	// Disconnected is called at the end of a session, and after a failed attempt to
	// establish one. err is an [*Error], or nil if the context of Run has ended.
	Disconnected func(err error)
	// Window is called when the number of unanswered events has changed, about once for
	// each frame: held is that number, limit is its maximum. At the end of a session held
	// becomes 0.
	Window func(held, limit int)
}

// Session describes a session with the router.
type Session struct {
	Node, Group string // the router's member name and group
	Worker      string // the router's name for this worker, as in its logs
	InFlightMax int    // the most unanswered events: [WithMaxInFlight], or the router's lower bound
}

// Result says how the handler of an event ended.
type Result struct {
	Kind     ResultKind
	Err      error         // the handler's error, or one made of its panic; nil for ResultDone
	Duration time.Duration // of the handler and all interceptors
}

// ResultKind is the kind of answer that the router gets about an event.
type ResultKind uint8

// The kinds for an event, or a call, whose handler was called.
const (
	ResultDone      = ResultKind(event.ResultDone)      // the event is acked
	ResultRetry     = ResultKind(event.ResultRetry)     // the handler failed; the event is retried
	ResultReject    = ResultKind(event.ResultReject)    // the event goes to the dead letter topic
	ResultCancelled = ResultKind(event.ResultCancelled) // the handler's context was cancelled: neither success nor failure

	ResultNotStarted = ResultKind(event.ResultNotStarted) // a call of a method without a handler
)

// String returns done, retry, reject, cancelled or not_started.
func (k ResultKind) String() string { return event.ResultKind(k).String() }

func (o *options) connected(s Session) {
	if o.hooks.Connected != nil {
		o.hooks.Connected(s)
	}
	if o.ready != nil {
		o.ready(true)
	}
}

func (o *options) disconnected(err error) {
	if o.ready != nil {
		o.ready(false)
	}
	if o.hooks.Disconnected != nil {
		o.hooks.Disconnected(err)
	}
}
