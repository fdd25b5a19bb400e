// Package membroker is an in-memory broker: topics, SHARED subscriptions that behave like
// those of a stock Pulsar 4, and logs in total order. Tests and the demo use it where a
// real broker would only slow them down.
//
// It implements these properties of Pulsar, on which the correctness of its users depends:
//
//   - An entry holds one or more events, is dispatched whole, round-robin to the
//     consumers that have permits, and costs as many permits as it has events; the
//     last entry may overdraw them.
//   - An entry is acked when all its events were acked during one delivery. Acks of
//     only some of its events are forgotten when the entry is delivered again.
//   - The end of a consumer, or the unloading of a topic, delivers the entry
//     again, whole, before new ones, and counts the redelivery.
//   - A consumer with too many unacked events gets no more until it acks; so does a subscription.
//   - A message may be held back until an instant of the wall clock.
//   - A subscription has one type. This broker implements only Shared, and detects
//     consumers that request another type.
//
// # Concurrency
//
// All methods are safe for concurrent use. One mutex guards a [Broker]; nothing blocks under
// it. The only goroutines are a timer for delayed messages and those that gRPC starts for its
// streams.
package membroker
