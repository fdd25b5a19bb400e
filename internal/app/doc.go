// Package app hands deliveries to the workers of the application beside this node
// and takes back their results.
//
// A worker is one stream, dialled by the application. For each there is an [Outstanding],
// the pure machine that knows what was given to the worker, until when it may work
// on it, and what is over: rule 7 of the ownership protocol, the router's half.
// [Server] is the gRPC shell around them.
//
// # Invariant
//
// A delivery is over only when it was answered on its own stream, when it never
// went out, or when the lease behind the last Pong that could move its deadline has
// passed and it is forced or its stream is broken.
//
// # Concurrency
//
// A worker has two goroutines: its reader, which hands results to the mailboxes,
// and its writer (the gRPC handler itself), which pulls deliveries out of them as
// fast as the worker takes them. Both reach the Outstanding under the session's mutex,
// which is held only for calls of the machine, and never across one to the
// mailboxes. The writer alone decides the order of frames; [Server.Revoke] only
// marks what it has to say, so it never blocks.
package app
