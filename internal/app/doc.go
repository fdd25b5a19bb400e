// Package app hands deliveries to the workers of the application beside this node
// and takes back their results.
//
// A worker is one stream, dialled by the application. Each worker has an [Outstanding], the
// pure machine that tracks the deliveries given to the worker, their deadlines, and their ends:
// the router's half of rule 7 of the ownership protocol. [Server] is the gRPC shell around
// them.
//
// # Invariant
//
// A delivery is over only when it was answered on its own stream, when it was never
// sent, or when the lease of the last Pong that could move its deadline has expired
// and the delivery is forced to end or its stream is broken.
//
// # Concurrency
//
// A worker has two goroutines: its reader, which hands results to the mailboxes, and its writer
// (the gRPC handler itself), which pulls deliveries from them as fast as the worker takes them.
// Both use the Outstanding under the session's mutex, which is held only for calls of the
// machine, and never across a call to the mailboxes. Only the writer decides the order of
// frames; [Server.Revoke] only marks the frames to send, so it never blocks.
package app
