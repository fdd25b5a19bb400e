// Package hotframe has the pieces that the hand-written codecs of hot frames share: those of
// forward, between routers, and those of appwire, to the application.
//
// A hot frame is a protobuf message with a receipt as field 1 and the message that carries the events
// or the answers as field 3. Writers put its fields in a fixed order and leave zero values out.
// Readers expect that order: each function takes one field off the front of a message, and
// returns the message as it is if another field is there. A message that our writers would
// encode differently (another order, an unknown field, a field that repeats or cannot be read)
// has something left over at its end; the codecs then leave the whole frame to the generated code.
//
// All functions are pure, except that [NewTables] takes memory from a pool that is safe for
// concurrent use.
package hotframe
