// Package client is the Go SDK of Ringfence: your side of the stream between a
// router and the application beside it.
//
// A handler is a function. [Run] calls it for one event after the other of a key,
// and for many keys at once; no two handlers of one key run at the same time, on
// any machine of the group.
//
//	err := client.Run(ctx, "", func(ctx context.Context, e *client.Event) error {
//		return store.Apply(ctx, e.Key, e.Fence, e.Payload)
//	})
//
// # What a handler returns
//
// Nil means done: the event leaves Pulsar. [RetryAfter] and any other error mean
// that it failed and is to be tried again, after your delay or the router's own
// back-off. [Reject] means that it will never succeed: it goes to the dead letter
// topic. A panic is a failure like any other error. [JSON] and [Proto] make a handler of
// a function that takes the decoded payload; what they cannot decode is rejected.
//
// # When the key is lost
//
// Keys move between machines. A handler that is running when its key moves may
// finish, as long as the router can vouch for it. When it cannot any more, the
// context is cancelled with the cause [ErrKeyLost], and from then on another machine
// may work on the key: stop at once, and write nothing. The context is looked at every
// 50 ms; its Err asks the clock itself, so ask it before a write that must not be late. What such a handler returns,
// unless it is nil, counts as neither failure nor success.
//
// A router may have a timeout for handlers too (handler.timeout, off by default). One
// that takes longer without [Event.Progress] is cancelled at once, with the cause
// [ErrHandlerTimeout], and has failed.
//
// The context has no Deadline: the lease behind it is renewed while the handler
// runs, so a handler may take minutes. [Event.LeaseUntil] tells how far it reaches
// right now.
//
// Pass [Event.Fence] to your database with every write, and refuse a write whose
// fence is older than the newest one seen for that key. That covers what no lease
// can: a process that was frozen between your last check and the write. Another
// process has handled the key meanwhile, on another machine or beside the same router.
//
// # Around the handler
//
// [WithInterceptors] puts code around every call of the handler: the first interceptor is the
// outermost. Outside of all of them are, from the inside out, the span of [WithTraces] and the
// [Hooks] of [WithHooks], which feed metrics. [WithReady] serves a readiness probe.
//
// # Errors
//
// What goes wrong between the SDK and the router is an [*Error], and errors.Is tells its kind.
// Run returns only [ErrArgument] and [ErrDrainTimeout]: it connects again after all others, which
// the log and [Hooks].Disconnected have.
//
// # Concurrency
//
// Run blocks. Handlers run in at most [WithMaxInFlight] goroutines, which exist while
// there is work for them and are kept for the next. An [Event] belongs to its
// handler until that returns; its methods are safe for concurrent use.
package client
