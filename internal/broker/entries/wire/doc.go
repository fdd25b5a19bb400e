// Package wire is the codec of Pulsar's binary protocol for readers of entries: frames and commands, entries with their metadata, batches,
// compression and chunks. It has no goroutine, clock or socket.
//
// # Layout
//
// All integers outside of protobuf are big-endian. A frame is
//
//	size (4) | command size (4) | command | entry
//
// where size counts the bytes after it, and only a Message command is followed by an entry. An entry is
//
//	[0x0e02 | size (4) | broker entry metadata] [0x0e01 | CRC32C (4)] metadata size (4) | metadata | payload
//
// where the checksum covers the bytes after it. The uncompressed payload of a batch is a sequence of events:
//
//	size (4) | single message metadata | payload
//
// # Input from the network
//
// Every byte is hostile until checked. A declared size or count is checked against the bytes present or a limit of the caller before memory
// is allocated for it. Unreadable input returns a [BrokenError] with one of a closed set of reasons.
//
// # Memory
//
// Frames, entries and events alias the bytes that they were parsed from. Message frames, entries without compression and acks are parsed
// and written without allocating.
package wire
