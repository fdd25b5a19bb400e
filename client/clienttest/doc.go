// Package clienttest is a router in memory: it lets you test a handler, with the
// real SDK and the real stream between, without a router process or a broker.
//
//	r := clienttest.NewRouter(t)
//	r.Start(handler)
//	d := r.Deliver(&client.Event{Key: "user-7", Payload: []byte("hello")})
//	if got := d.Outcome(); got.Kind != clienttest.Done {
//		t.Errorf("outcome = %v, want done", got)
//	}
//
// Events of one key are given to the handler one at a time, in the order of
// [Router.Deliver]; other keys run beside them. Nothing is tried again by itself: the
// outcome is recorded, and [Delivery.Redeliver] plays the router's next attempt.
// [Router.Lose] moves a key to another machine under the handler's feet,
// [Router.Expire] lets the lease run out, and [Router.Disconnect] breaks the stream.
// With [WithHandlerTimeout] handlers that take too long are cancelled.
// Leases last for an hour of the router's own clock, which Lose and Expire move
// ahead, so a slow test machine cancels nothing by accident.
//
// # Concurrency
//
// All methods are safe for concurrent use. A Router stops at the end of its test; it
// works inside a testing/synctest bubble too.
package clienttest
