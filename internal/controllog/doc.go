// Package controllog is the total order on which ownership is decided: one log of
// records that every member of a group appends to and reads in the same order.
//
// A [Log] performs the effects of an ownership machine that concern the log and returns the
// inputs that they cause. It implements no rule of the protocol: it opens a reader only on the
// machine's request, since only the machine knows whether a new reader is safe.
//
// It uses a [Transport], which moves opaque bytes:
//
//   - [Mem]: in this process.
//   - [Remote]: a log that another process of the same machine serves (the demo).
//   - [Pulsar]: one non-partitioned persistent topic.
//
// # Invariants
//
//   - Every reader sees the records in one order, each at its [event.Position], and misses none. A
//     record may stand in the log twice (producer retries). The machine of ownership relies on
//     neither: it checks positions.
//   - Unreadable bytes still count as a record at a position: they are delivered without
//     a body, so that every member skips the same record.
//   - Reading the log never waits for an append, and an append never waits for a reader.
//
// # Files
//
//	log.go        Log: effects in, inputs out
//	transport.go  Transport: the interface that a Log uses
//	watched.go    Watched: a transport that finds out that its log was replaced
//	read.go       Read and ReadOnce: one reader, for those that have no Log
//	codec.go      records to bytes and back, with encode.go and decode.go
//	mem.go, remote.go, pulsar.go   the transports
package controllog
