// Package bridge hands events to an application by HTTP, for applications without an SDK. It is
// a worker of a router, built on the Go SDK, whose handler sends each event as a CloudEvent in
// binary mode and reads the verdict from the response.
//
//	router ─ stream of the SDK ─▶ bridge ─ POST, one request for each event ─▶ application
//
// The SDK keeps the deadlines. When one passes, the request is cut: the bridge closes its
// connection. Nothing stops an application that continues to work then, so a bridge promises
// less than an SDK; the fence in the request lets the application's database refuse the
// late write.
//
// An application that accepts no connections has not failed: the event waits, and after
// [Config.AbsenceMax] the worker drains, so that the keys go to other members.
package bridge
