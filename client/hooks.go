package client

import (
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// Hooks tell the application what the SDK does, for its metrics. Fields that are nil are not
// called. A hook must neither block nor panic: events and Pings wait for it.
type Hooks struct {
	// Started is called before the handler of an event and all interceptors, in the
	// goroutine of the handler: from many at once.
	Started func(e *Event)
	// Finished is called there once for each Started.
	Finished func(e *Event, r Result)
	// Connected is called when a session with the router stands, before its first event.
	// Connected, Disconnected and Window are called one at a time.
	Connected func(s Session)
	// Disconnected is called at the end of a session, and of an attempt that led to none.
	// err is an [*Error], or nil if the context of Run has ended.
	Disconnected func(err error)
	// Window is called when the number of events that are here has changed, about once for
	// each frame: held have been delivered and not been answered, limit is the most that
	// the router delivers. At the end of a session held becomes 0.
	Window func(held, limit int)
}

// Session describes a session with the router.
type Session struct {
	Node, Group string // the router's member name and group
	Worker      string // the router's name for this side, as in its logs
	InFlightMax int    // the most events that are here at once: [WithMaxInFlight], or the router's lower bound
}

// Result says how the handler of an event ended.
type Result struct {
	Kind     ResultKind
	Err      error         // as the handler returned it, or made of its panic; nil for ResultDone
	Duration time.Duration // of the handler and all interceptors
}

// ResultKind is the answer to the router.
type ResultKind uint8

// The kinds of answer to an event whose handler was called.
const (
	ResultDone      = ResultKind(event.ResultDone)      // the event is acked
	ResultRetry     = ResultKind(event.ResultRetry)     // it failed and is tried again
	ResultReject    = ResultKind(event.ResultReject)    // it goes to the dead letter topic
	ResultCancelled = ResultKind(event.ResultCancelled) // the context of the handler was cancelled: neither success nor failure
)

// String returns done, retry, reject or cancelled.
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
