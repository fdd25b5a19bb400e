// Command chaos injects production faults into a real group of members on a real Pulsar, and
// then checks every promise against the applications' journals.
//
//	go run ./chaos --faults 20 --seed 1
//
// It needs Linux and root: every member shares a network namespace with its application only. See
// docs/chaos.md.
//
// # Structure
//
// The deciding parts have no goroutine: [draw] derives the faults from a seed, [analyse] reads
// the journals, [judge] lists the broken promises. Around them, one goroutine per process keeps a
// [group] of processes running, a [publisher] generates the load, and [run] injects the faults.
package main
