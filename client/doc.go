// Package client is the Go SDK of Ringfence: the application's side of the stream
// between a router and the application beside it.
//
// A handler is a function. [Run] calls it for the events of a key one by one, and for
// many keys in parallel; no two handlers of one key run at the same time, on any machine of
// the group.
//
//	err := client.Run(ctx, "", func(ctx context.Context, e *client.Event) error {
//		return store.Apply(ctx, e.Key, e.Fence, e.Payload)
//	})
//
// # What a handler returns
//
// Nil means done: the event is acked. [RetryAfter] and any other error mean that the
// handler failed and the event is retried, after your delay or the router's back-off.
// [Reject] means that the event will never succeed: it goes to the dead letter topic. If an
// error wraps both, the outermost counts. A panic is a failure like any other error. [JSON]
// and [Proto] turn a function that takes the decoded payload into a handler; payloads that
// they cannot decode are rejected.
//
// # When the key is lost
//
// Keys move between machines. A handler that is running when its key moves may finish
// while the router still holds the lease. When the lease ends, the context is cancelled
// with the cause [ErrKeyLost], and from then on another machine may work on the key: stop
// at once, and write nothing. Deadlines are checked every 50 ms; the context's Err reads
// the clock itself, so call it before a write that must not be late. An error that such a
// handler returns counts as neither failure nor success; nil counts as success.
//
// A router may also have a timeout for handlers (handler.timeout, off by default). A
// handler that takes longer without [Event.Progress] is cancelled with the cause
// [ErrHandlerTimeout] and counts as failed.
//
// The context has no Deadline: its lease is renewed while the handler runs, so a handler
// may take minutes. [Event.LeaseUntil] returns the current end of the lease.
//
// Pass [Event.Fence] to your database with every write, and refuse a write whose fence is
// older than the newest one seen for that key. A lease cannot stop a process that is
// frozen between your last check and the write, while another process handles the key, on
// another machine or beside the same router; the fence can.
//
// # Calls, reservations and state
//
// [WithCall] registers the handler of a call, which runs for a key serially with the key's
// events; [Lane.Invoke] calls it, from any process. [Lane.Reserve] holds a key: no handler of
// it runs until [Reservation.Release]. [State] keeps what a handler has loaded in memory, for
// the next turn of the key, as long as nothing else can have changed it.
//
// # Around the handler
//
// [WithInterceptors] wraps every call of the handler; the first interceptor is the outermost.
// The span of [WithTraces] encloses all interceptors, and the [Hooks] of [WithHooks], which
// feed metrics, enclose the span. [WithReady] serves a readiness probe.
//
// # Errors
//
// A failure between the SDK and the router is an [*Error], and errors.Is tells its kind. Run
// returns only [ErrArgument] and [ErrDrainTimeout]. After all other kinds it reconnects; the log
// and [Hooks].Disconnected report them.
//
// # Concurrency
//
// Run blocks. Handlers run in at most [WithMaxInFlight] goroutines, which are started as
// needed and reused; one whose handler continues after its cancellation does not count. An [Event] belongs to its
// handler until the handler returns; its methods are safe for concurrent use.
package client
