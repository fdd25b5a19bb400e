// Command attack attacks a built router over its sockets and files, as a stranger in
// the cluster, in the pod or at a browser would, and says which attacks it held.
//
//	make attack ROUTER=bin/router
//	go run ./attack --router bin/router --only 5,10
//	go run ./attack --router bin/router --under-load --for 60s
//
// The attacks are those that broke the release of 23 November 2026 (commit 07a84d1);
// docs/security.md lists them. Each one has a router of its own, on loopback addresses
// of its own, and a verdict: held, broken, or not tried, which fails the run as well. The
// suite looks at the router as a stranger does, and beside that at its log, its metrics
// and at what Linux tells of its process. It gives each router only those settings that the
// binary knows, so that releases before and after a defence can be compared.
//
// With --under-load the attacks go on for a while against one of three routers that
// handle 1,000 events a second, first each attack alone and then all together, and the
// journals of the applications tell whether anything was lost or handled twice at once.
//
// It needs Linux and a broker: PULSAR_URL and PULSAR_ADMIN_URL, or `make attack`, which
// starts one.
package main
