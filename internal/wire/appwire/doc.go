// Package appwire encodes and decodes the two hot frames of the application's stream:
// Deliveries and Results.
//
// [Codec] is a gRPC codec that is wire-compatible with the generated messages of
// proto/ringfence/app/v1. Hand-written code converts the hot frames between the wire and
// the types of this package, with one allocation a frame; the generated code handles all
// other frames, and hot frames that these writers would encode differently. Both decoders
// return the same result for a frame; a fuzz target checks this.
//
// # Memory
//
// A [FromRouter] passes each delivery to its [Receiver] while it reads the frame, so that
// deliveries need no memory of their own. Keys, payloads and other strings
// alias one copy of the frame, which lives as long as any of them. A [FromWorker] copies
// its few strings and gives the buffer back at once; it reuses its slice from one RecvMsg
// to the next, so the reader must be done with it by then.
package appwire
