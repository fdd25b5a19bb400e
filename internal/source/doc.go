// Package source carries events from a SHARED subscription into the router, and
// brings each one to its single end there: ack, retry copy or dead letter copy.
//
// [Ledger] is a pure machine that knows which events are open and which entries
// they keep open at the broker. [Source] drives it with a real broker
// ([NewPulsar], the only user of Pulsar's consumer) or with one in memory
// ([NewMem]); both keep the same contract, which package sourcetest checks.
//
// # Invariants
//
//   - An entry is acked only after every event of it was settled here.
//   - A retry or dead letter is settled only after its copy is safe in its topic.
//   - Every event that was handed on has exactly one end, so that the number of
//     unsettled events returns to 0; verdicts that come twice are ignored.
//   - Nothing relies on batch-index acks: Pulsar may deliver an entry again, whole,
//     at any time. An event of it that is still open here is not handed on twice.
//
// # Concurrency
//
// [Source.Run] owns all goroutines: one reads and calls the sink, one acks (the
// client blocks in Ack while it is disconnected), one makes copies for each of the two
// topics for them, one publishes gauges. Calls of the client that take no context may
// outlive it; what they make is undone. [Source.Settle], [Source.Done], [Source.Drain] and
// [Source.Stats] are safe for concurrent use and never wait for the broker, except
// Drain, which waits for settlements. The ledger stands under one mutex that is never
// held across a call to the broker or the sink; it is taken once per batch, and for each
// copy.
package source
