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
// A [FromRouter] owns its bytes: keys, payloads and other strings alias one buffer,
// which lives as long as any of them. A [FromWorker] copies its few strings and
// gives the buffer back at once. Both reuse their slices from one RecvMsg to the
// next, so the reader must be done with them by then.
package appwire
