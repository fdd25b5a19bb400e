// Package sim runs whole clusters in one event loop, from one seed, and checks the router's
// promises: at most one handler per key at a time, no lost event, every event settled, one true
// outcome of every call, tokens that never fall, and progress once faults stop.
//
// It runs the production machines: ownership.Machine, mailbox.Mailboxes, forward.Table,
// source.Ledger, app.Server with its sessions, internal/ownership/inbox of the SDK, and
// internal/pipeline, which joins them. Network, clocks, the control log, the broker and the
// handlers are simplified versions, and event-loop code replaces production's goroutines: the
// node of this package calls the machines in the same order as internal/node, internal/source
// and forward do.
//
// # Contents of every run
//
// Each router has two or three workers in separate processes, and more than half of the workers
// run on separate hosts. A worker may be lost or frozen alone; its writes after thawing are
// checked against newer handlers of the same tenure, too. The hardware counter of a host is off
// by up to 1 % and changes its rate every 5 to 60 s; NTP steers the other clocks. Mailboxes
// have two to four shards. Records are encoded as they land in the log, and decoded from there.
// Routers with different settings try to join, and start at the same moment as the group's; none
// may take part, and no member of a running group may exit because of them. A log may be lost
// and restart on lower ledgers: the generation rises only after a router has requested it at
// its exit, and an operator stops all routers for that. A member may read a record that differs
// from the other members' record, and a Beat may have a wrong prefix hash.
//
// Callers on the hosts of the routers make calls, about as many as batches are published: half of
// them with an id, which some repeat, at the same node or another one, while the first is under way
// or later; with timeouts from 50 ms to 20 s, and some give up sooner. A call without an id must run
// at most once; a call must never run if all its callers were told that it has not run; and each caller gets
// one outcome that agrees with what the handlers did. In some runs every third router is of a release without calls,
// and every ninth worker has no handlers of calls.
//
// Some features are in a part of the seeds only. Modulo 4: 2 has operators, who hold, release, skip, park and unpark, and nothing may begin
// that an act forbids, once the member has read the act; in 3 workers drain, handlers have a timeout, some of them hang, and some events kill their worker; in even ones the broker says where its topic
// ends. Modulo 3: in 1 it takes acks of single events. Modulo 5: in 2 applications declare schedules. In TestFailingFirings their handlers reject and put off
// many firings. TestClockJumps breaks the assumption about clocks.
//
// Not simulated: trimming of the acts topic, the claims topic (a router knows the claims as of the start of its
// incarnation), routers that write older log versions, and two groups on one subscription.
//
// # Determinism
//
// One random source from the seed; one queue of events, ties broken by creation order; no
// decision depends on map order; no real clock.
package sim
