// Package e2e holds the end-to-end tests: router and application processes on a real Pulsar,
// members that are killed, join and leave, and the applications' journals as the only evidence.
// It holds only tests; run them with `make e2e`.
package e2e
