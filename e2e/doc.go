// Package e2e holds the end-to-end tests, and nothing else: they run router and application
// processes on a real Pulsar, make members join, leave and die, and judge only by the applications'
// journals. Run them with `make e2e`.
package e2e
