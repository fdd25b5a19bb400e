// Package sim runs whole clusters in one event loop, from one seed, and checks what
// the router promises: at most one handler per key at a time, nothing lost, every
// event settled, tokens that never fall, and progress once faults stop.
//
// The machines are those of production: ownership.Machine, mailbox.Mailboxes,
// forward.Table, source.Ledger, app.Server with its sessions, internal/ownership/inbox of the SDK,
// and internal/pipeline, which joins them. Network, clocks, the control log, the
// broker and the handlers are toys, and so are the loops that production has
// goroutines for: the node of this package calls the machines in the order in which
// internal/node, internal/source and forward do.
//
// # What every run has
//
// Each router has two or three workers, processes of their own, and more than half of them run on
// hosts of their own. A worker may be lost or frozen alone; what it writes after it thawed is judged
// against newer handlers of the same tenure, too. The hardware counter of a host is off by up to 1 %
// and changes its rate every 5 to 60 s; NTP steers the other clocks. Mailboxes have two to four
// shards. Records are encoded as they land in the log, and decoded from there. Routers whose
// settings differ from the group's try to join, and start at the same moment as the others; none
// may take part, and no member of a running group may end because of them. A log may be lost and
// begin anew on lower ledgers: no generation rises unless a router has asked for it as it exited, and
// an operator stops all routers for it. A member may read another record than everybody else, and a
// Beat may have a wrong prefix hash.
//
// Not simulated: the claims topic (a router knows what the claims said when its incarnation began),
// routers that write older log versions, and two groups on one subscription.
//
// # Determinism
//
// One random source from the seed; one queue of events, ties broken by the order of
// their making; no order of a map decides anything; no real clock.
package sim
