// Package wire is the codec of Pulsar's binary protocol, as a reader of entries needs it: frames and commands, entries with their metadata,
// batches, compression and chunks. It has no goroutine, clock or socket.
//
// # Layout
//
// All integers outside of protobuf are big-endian. A frame is
//
//	size (4) | command size (4) | command | entry
//
// where size counts what follows it, and only a Message command is followed by an entry. An entry is
//
//	[0x0e02 | size (4) | broker entry metadata] [0x0e01 | CRC32C (4)] metadata size (4) | metadata | payload
//
// where the checksum covers what follows it. The payload of a batch is, uncompressed, one event after another:
//
//	size (4) | single message metadata | payload
//
// # Input from the network
//
// Every byte is hostile until checked. Nothing is allocated for a declared size or count before the bytes that are there, or a limit of the
// caller, bound it. What cannot be read ends in a [BrokenError] with one of a closed set of reasons.
//
// # Memory
//
// Frames, entries and events alias the bytes that they were parsed from. Message frames, entries without compression and acks are parsed
// and written without allocating.
package wire
