// Package appwire puts the two hot frames of the application's stream on the wire
// and takes them off it: Deliveries and Results.
//
// [Codec] is a gRPC codec that is wire-compatible with the generated messages of
// proto/ringfence/app/v1: whoever speaks those speaks with us. The hot frames are
// written and read by hand, between the wire and our own types, with one
// allocation a frame; every other frame, and every hot frame in a shape that our
// own writers do not produce, goes through the generated code. So a frame means
// the same whichever way it is read; a fuzz target holds that.
//
// # Memory
//
// A [FromRouter] gives each delivery to its [Receiver] while it reads the frame, so that
// only what the receiver makes of them lies in memory. Keys, payloads and other strings
// alias one copy of the frame, which lives as long as any of them. A [FromWorker] copies
// its few strings and gives the buffer back at once; it reuses its slice from one RecvMsg
// to the next, so the reader must be done with it by then.
package appwire
