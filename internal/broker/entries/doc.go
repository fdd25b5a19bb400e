// Package entries reads whole entries over Apache Pulsar's binary protocol: it looks up the broker of a topic partition, subscribes, hands
// on the entries as the producers wrote them, and acks entries on request.
//
// No entry is acked without a request. An unreadable entry (a broken checksum, an unknown compression) arrives as bytes with the reason,
// and the chunks of a message that stays incomplete go back to the broker.
//
// # Invariants
//
//   - Every entry of the subscription is delivered until it is acked, despite failing connections and brokers. An entry that was handed
//     on but not acked before a reconnect is redelivered.
//   - A reader, which has no durable subscription, receives each entry from its [Start] on once, in the order of the topic partition.
//   - A consumer holds entries of at most Permits events that were not taken, and the few entries that a broker sends beyond its permits;
//     a broker that exceeds them further loses its connection. The permits of all taken entries return to the broker.
//   - The broker's input is checked before use: lengths before memory is allocated, counts before arithmetic. A broker that sends invalid
//     data loses its connection, and the client reconnects.
//
// # Concurrency
//
// [Client], [Consumer] and [Queue] are safe for concurrent use; a [Delivered] belongs to its receiver.
//
// Each connection has three goroutines: one reads, parses and decompresses, and pushes entries to the queue; one writes; one sends pings
// and ends a silent connection. The reader never blocks on the queue or on writes: the queue takes all entries that permits allow, and
// writes only add to a bounded buffer. Each consumer has a goroutine that reconnects, and a timer that sends acks and permits after at
// most AckDelayMax. Each attempt to dial has a goroutine, which several consumers may wait for. Client.Close waits for all goroutines,
// for little longer than CloseTimeout. Calls of the authentication provider take no context and run on separate goroutines, which Close does not wait for.
//
// Locks are taken in the order consumer, client, connection, queue, and never held while waiting.
package entries
