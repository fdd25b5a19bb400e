// Package forward sends every event to its owner and returns the owner's verdict.
//
// The consumer node of an event holds it in its [Table] until there is a final verdict. The
// table chooses the recipient: the local mailbox, without a network hop or copy, or a peer,
// through one stream. After every failure (the owner dies, ownership moves, a key's mailbox is full, a peer
// does not answer) the table still holds the event, and sends it again.
//
// # Invariant
//
// Every held event is in exactly one place (see [Place]), so it is never in flight twice on one
// live stream. It is settled exactly once: by [Table.Drop], or by the first final verdict of a peer
// that has received it (for a reservation, of the peer that has it now). If others have taken a key
// over from a peer, that peer may keep a copy without a receiver for its verdict (see
// [Table.TakenOver]): the copy cannot run there.
//
// A key's events from the source are sent in the order in which they came. Those that wait
// are in two places at most, in order in each: the queue of their owner's lane, and behind it
// the wait of their key, which a refusal begins. The queue's events up to
// wait.passing are earlier than all in the wait; the others join it when Take reaches them.
//
// Events that came in one entry are held together: as a record of the entry, with a set of its events for each
// lane. So a verdict on many of them takes a few operations on words, and no memory is needed for an event
// on its usual way.
//
// # Pieces
//
//	table.go    Table: hold, take, settle, route (pure: no goroutine, clock or lock)
//	moves.go    what a call of the table asks its caller to do
//	routes.go   lanes of peers, which of them owns a partition, and third members for owners that cannot be reached
//	waits.go    pauses of keys after refusals: full, delayed, refused
//	releases.go releases of reservations that wait for an owner to confirm them
//	record.go   an entry of which events are held, and what few events have besides
//	queue.go    where these events are: queued or sent, by lane, or waiting
//	pool.go     Pool: a Table behind a mutex, and the peers that it has
//	peer.go     the outbound stream to a peer: events out, verdicts in
//	server.go   Server: accepts the streams of peers
//	inbound.go  one inbound stream: events in, verdicts out
//	link.go     the part that both ends of a stream share: receipts, pings, timeouts
//	hello.go    Hello frames and their checks
//	proof.go    the signature by which an incarnation authenticates its stream (pure)
//	codec.go    hand-written codec of the two hot frames, of internal/wire/hotframe's pieces:
//	            codec_events.go, decode_events.go, codec_verdicts.go; and decode_any.go,
//	            which leaves all other frames, and other encodings, to the generated code
//	codec_renewals.go  renewals of reservations, and the answers to them, to their messages and back
//
// # Concurrency
//
// A Table belongs to its caller. Pool and Server are safe for concurrent use. Each
// stream has exactly two goroutines, one that sends and one that receives. Pool.Run
// and Server.Run block until their context ends, and return when every goroutine
// that they started has ended. No lock is held while [Sink], [Acceptor] or
// [Evidence] is called. The goroutines of the streams call them, so they must be quick:
// during a call the stream receives nothing, and after Config.DeadAfter the peer ends it.
package forward
