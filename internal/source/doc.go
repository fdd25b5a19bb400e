// Package source reads events from a SHARED subscription and settles each of them exactly
// once: by ack, or by a copy to the retry, dead letter or parking topic.
//
// [Ledger] is a pure machine that tracks open events and the entries that they keep
// unacked at the broker: for each entry a set of its open events. [Source] drives it with a real broker
// ([NewPulsar], which reads with package entries) or with an in-memory one
// ([NewMem]); both meet the same contract, which package sourcetest checks.
//
// # Invariants
//
//   - An entry is acked only after all its events were settled here.
//   - A retry or dead letter is settled only after its copy is safe in its topic.
//   - Every event that was handed on is settled exactly once, so that the number of
//     unsettled events returns to 0; duplicate verdicts are ignored.
//   - Nothing relies on batch-index acks: Pulsar may deliver an entry again, whole,
//     at any time. An event that is still open here is not handed on twice.
//
// # Concurrency
//
// [Source.Run] owns all goroutines: one reads and calls the sink, one acks, one for each of
// the four topics for copies (retry, dead letter, parking, timer) sends them, one spills, one
// publishes gauges, and some follow limits. Calls of the client that take no context may
// outlive Run; their results are closed. [Source.Settle], [Source.Drain] and [Source.Stats]
// are safe for concurrent use and never wait for the broker, except Drain, which waits for
// settlements. One mutex guards the ledger. It is taken once per batch and for each copy, and
// never held across a call to the broker or the sink.
package source
