// Package forward brings every event to its owner, and the owner's word back.
//
// The consumer node of an event holds it in its [Table] until there is a final
// verdict. The table says who gets it: the local mailbox, without hop or copy, or a
// peer by way of one stream. Whatever goes wrong on the way (the owner dies, the
// ownership moves, a key's mailbox is full, nobody answers) ends in the same place:
// the event is still held, and is sent again.
//
// # Invariant
//
// Every held event is in exactly one place (see [Place]), so it is never under way
// twice on one live stream; and it is settled exactly once: by the first final
// verdict of a peer that ever had it, or by [Table.Drop].
//
// # Pieces
//
//	table.go    Table: hold, take, settle, route (pure: no goroutine, clock or lock)
//	shelf.go    finds a held event by its handle
//	held.go     the lists that it is made of; table_moves.go: the ways between them
//	pool.go     Pool: a Table behind a mutex, and one outbound stream for each peer
//	server.go   Server: the inbound streams of others (events in, verdicts out)
//	link.go     what both ends of a stream have in common: receipts, pings, silence
//	hello.go    who may talk to whom
//	proof.go    what an incarnation signs, so that another cannot speak in its name (pure)
//	codec.go    the two hot frames by hand, all others by plain protobuf: codec_events.go,
//	            decode_events.go, codec_verdicts.go, of what wire.go and varint.go bring
//
// # Concurrency
//
// A Table belongs to its caller. Pool and Server are safe for concurrent use. Each
// stream has exactly two goroutines, one that sends and one that receives. Pool.Run
// and Server.Run block until their context ends, and return when every goroutine
// that they started has ended. No lock is held while [Sink], [Acceptor] or
// [Evidence] is called. They are called by the goroutines of the streams and must be
// quick: meanwhile the stream hears nothing, and after Config.DeadAfter it is dead.
package forward
