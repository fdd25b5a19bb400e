// Package mailbox keeps the events of the keys that this member owns, and hands
// them to the application's workers: one event of a key at a time, different keys
// side by side.
//
// [Boxes] is pure: no goroutine, clock, lock or log line. Calls with events,
// results, gates and the present instant go in; verdicts and names of workers to
// wake come out; the same calls give the same output. [Mailboxes] spreads
// partitions over several Boxes, each behind a mutex of its own.
//
// # The way of an event
//
// Accept queues it behind the other events of its key, or says at once why not: it
// was done lately (Done), the partition is not ours (NotOwner, NotYet), there is no
// room (Overloaded). An event that is here already is joined: both senders get the
// same verdict. Take hands the first event of a ready key to a worker; from then on
// the key is busy until Finish has the result. A failed event stays first in its key
// and is held there until its retry is due, or leaves with the verdict Failed.
//
// Workers pull. Output.Wake names the workers for which keys became ready; one that
// had no room then calls Take again by itself when it has.
//
// # Invariant
//
// At most one delivery of a key runs at a time, whatever workers, gates and results
// do. Every accepted (sender, handle) gets exactly one final or refusing verdict, if
// its sender lives to hear it. A key without events costs nothing.
//
// # What a call costs
//
// A call costs what its own events, results or partitions cost, never something for
// every key. Only a worker that comes or goes makes the ready keys be assigned anew, and
// an event that joins looks for the one that is here: in its key, in its partition if it
// was done elsewhere, and through all that is here if the same id came under two keys.
package mailbox
