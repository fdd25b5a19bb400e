// Command attack attacks a built router over its sockets and files, as an outsider in the
// cluster, in the pod or at a browser would, and reports which attacks the router repelled.
//
//	make attack ROUTER=bin/router
//	go run ./attack --router bin/router --only 5,10
//	go run ./attack --router bin/router --under-load --for 60s
//
// The attacks are those that broke the release of 23 November 2026 (commit 07a84d1);
// docs/security.md lists them. Each attack has its own router on its own loopback addresses,
// and a verdict: held, broken, or not tried, which fails the run as well. The suite observes
// the router as an outsider does, and also reads its log, its metrics and Linux's data about
// its process. It gives each router only settings that the binary knows, so that releases
// before and after a defence can be compared.
//
// With --under-load the attacks run for --for against one of three routers that handle 1,000
// events a second, first each attack alone and then all together. The applications' journals
// show whether events were lost or handled concurrently.
//
// It needs Linux and a broker: PULSAR_URL and PULSAR_ADMIN_URL, or `make attack`, which
// starts one.
package main
