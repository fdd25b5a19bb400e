// Package mailbox keeps the events of the keys that this member owns, and hands
// them to the application's workers: one event of a key at a time, different keys
// side by side.
//
// [Boxes] is pure: no goroutine, clock, lock or log line. Its inputs are calls
// with events, results, gates and the current instant; its outputs are verdicts
// and the names of workers to wake. The same calls give the same output. [Mailboxes] spreads
// partitions over several Boxes, each behind a mutex of its own.
//
// # The path of an event
//
// Accept queues an event behind the other events of its key, or answers at once: the
// event finished recently (Done), this node does not own the partition (NotOwner,
// NotYet), or there is no room (Overloaded). An event that is already here is joined:
// both senders get the same verdict. Take gives the first event of a ready key to a
// worker; from then on the key is busy until Finish has the result. A failed event stays
// first in its key until its retry is due, or leaves with the verdict Failed.
//
// Workers pull. Output.Wake names the workers for which keys became ready. A worker without
// room at that moment calls Take again when it has room.
//
// # Invariant
//
// At most one delivery of a key runs at a time, whatever workers, gates and results
// do. Every accepted (sender, handle) gets exactly one final or refusing verdict, unless
// its sender's stream ends first. A key without events costs nothing.
//
// # Files
//
// accept.go takes events in or refuses them, take.go gives them to workers, and finish.go
// turns results into verdicts, which output.go addresses to their senders. ready.go files
// each key with events under the reason why it waits; gates.go, workers.go and credits.go
// change these reasons: a gate moves, a worker starts or stops, a full mailbox has room
// again. hold.go makes keys on hold wait; park.go sends the events of parked keys to the
// parking topic, and runs the letters that come back first; skip.go sends events that an
// operator skips to the dead letter topic. window.go and spans.go hold the ids of events that
// are here or have finished, handover.go passes those of finished events from owner to owner,
// and copies.go distinguishes events that claim one id. actor.go has the items of a key and
// their queue, ages.go the age of the oldest event, unpin.go bounds the frames that waiting events keep in
// memory, and prefetch.go overlaps cache misses. visits.go has calls and reservations,
// visitors.go their turns among the events of a key, reservations.go the grants and the
// holders that come back, and replies.go the answers to repeats. slab.go, table.go and
// queue.go are containers.
//
// # What a call costs
//
// The cost of a call grows with its own events, results or partitions, not with the
// number of keys. There are two exceptions. When a worker starts or stops, all ready keys are
// reassigned. A duplicate has to find the event that it joins: in its key, in its
// partition if another member finished it, and among all events if the same id arrived
// under two keys.
package mailbox
