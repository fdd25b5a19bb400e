// Package lane takes calls: requests for the handler of a key, from the application beside this node or from any other process. It gives
// each a handle and sends it to the owner of the key; the caller waits for the answer.
//
// [Lane] is the part that all protocols share. [Service] serves gRPC, on the listener of the application's streams, and [Handler] serves
// HTTP. A call is not durable: it lives as long as its caller waits, and then as long as its handler runs.
//
// # Concurrency
//
// All methods are safe for concurrent use. A waiting caller costs a place in a map, a timer, and the goroutine that it came with.
package lane
