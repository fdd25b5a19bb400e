// Package membroker is a broker in memory: topics, SHARED subscriptions that behave like
// those of a stock Pulsar 4, and logs in total order. Tests and the demo use it where a
// real broker would only make them slow.
//
// It has these properties of Pulsar, on which the correctness of its users depends:
//
//   - An entry holds one or more events, is dispatched whole, round-robin to the
//     consumers that have permits, and costs as many permits as it has events; the
//     last entry may overdraw them.
//   - An entry is acked when all its events were acked during one delivery. Acks of
//     a part are forgotten when it is delivered again.
//   - A nack, the end of a consumer, or the unloading of a topic delivers the entry
//     again, whole, before new ones, and counts the redelivery.
//   - A consumer with too many unacked events gets no more until it acks; so does a subscription.
//   - A message may be held back until an instant of the wall clock.
//   - A subscription has one type; this one serves Shared only, but knows when a
//     consumer asks for another.
//
// # Concurrency
//
// All methods are safe for concurrent use. One mutex guards a [Broker]; nothing blocks under
// it. The only goroutines are a timer for delayed messages and those that gRPC starts for its
// streams.
package membroker
