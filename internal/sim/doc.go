// Package sim runs whole clusters in one event loop, from one seed, and checks what
// the router promises: at most one handler per key at a time, nothing lost, every
// event settled, tokens that never fall, and progress once faults stop.
//
// The machines are those of production: ownership.Machine, mailbox.Mailboxes,
// forward.Table, source.Ledger, app.Server with its desks, internal/inbox of the SDK,
// and internal/pipeline, which joins them. Network, clocks, the control log, the
// broker and the handlers are toys, and so are the loops that production has
// goroutines for: the node of this package calls the machines in the order in which
// internal/node, internal/source and forward do.
//
// # Determinism
//
// One random source from the seed; one queue of events, ties broken by the order of
// their making; no order of a map decides anything; no real clock.
package sim
