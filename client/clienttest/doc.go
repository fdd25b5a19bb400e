// Package clienttest is a router in memory: it tests a handler through the real SDK and a
// real stream, without a router process or a broker.
//
//	r := clienttest.NewRouter(t)
//	r.Start(handler)
//	d := r.Deliver(&client.Event{Key: "user-7", Payload: []byte("hello")})
//	if got := d.Outcome(); got.Kind != clienttest.Done {
//		t.Errorf("outcome = %v, want done", got)
//	}
//
// Events of one key are given to the handler one at a time, in the order of
// [Router.Deliver]; different keys run concurrently. The router retries nothing: it records
// the outcome, and [Delivery.Redeliver] makes the next attempt. [Router.Lose] moves a key to
// another machine while its handler runs, [Router.Expire] lets the lease run out, and
// [Router.Disconnect] breaks the stream. With [WithHandlerTimeout] handlers that take too
// long are cancelled. Leases last for an hour of the router's own clock, which Lose and
// Expire move forward, so a slow test machine cancels nothing by accident.
//
// What a handler gets by [client.State] is kept for the next turn of the key, until Lose, Expire or
// Disconnect, a reservation, or a turn at another worker.
//
// [Router.Lane] calls handlers and reserves keys. A holder whose key moves away by Lose, or whose
// lease runs out by Expire, has lost it; one whose connection breaks comes back.
//
// # Concurrency
//
// All methods are safe for concurrent use. A Router stops at the end of its test, and also
// works in a testing/synctest bubble.
package clienttest
