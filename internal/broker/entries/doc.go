// Package entries reads whole entries from Apache Pulsar's binary protocol: it looks up the broker of a topic partition, subscribes,
// hands on the entries as the producers wrote them, and acks what it is told to.
//
// Nothing is acked unasked. An entry that cannot be read (a broken checksum, an unknown compression) arrives as bytes with the
// reason, and the chunks of a message that does not become whole go back to the broker.
//
// # Invariants
//
//   - Every entry of the subscription arrives until it is acked, whatever becomes of connections and brokers. It may arrive more
//     than once: an entry that was handed on before a reconnect and is not acked yet arrives again after it.
//   - A consumer holds entries of at most Permits events that were not taken, and the few that a broker sends beyond its permits; one
//     that does so without end loses its connection. The permits of all that is taken return to the broker.
//   - What a broker says is checked before it is believed: lengths before memory is allocated for them, counts before they are
//     counted with. A broker that talks nonsense loses its connection, and is connected to again.
//
// # Concurrency
//
// [Client], [Consumer] and [Queue] are safe for concurrent use; a [Delivered] belongs to its receiver.
//
// Each connection has three goroutines: one reads, parses and decompresses, and pushes entries to the queue; one writes; one sends
// pings and ends a connection that is silent. The reader waits for nobody: the queue takes all that permits allow, and writes only
// add to a bounded buffer. Each consumer has a goroutine that sends acks and permits after at most AckDelayMax, and reconnects.
// Dialing has a goroutine for each attempt, which several consumers may wait for. Client.Close waits for all of these, for
// CloseTimeout and a moment at most. Calls of the authentication provider take no context and run on goroutines of their own, which
// are not waited for.
//
// Locks are taken in the order consumer, client, connection, queue, and never held while something is waited for.
package entries
