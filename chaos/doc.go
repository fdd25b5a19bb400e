// Command chaos does to a real group of members, on a real Pulsar, what goes wrong
// in production, and then asks the applications' journals whether every promise held.
//
//	go run ./chaos --faults 20 --seed 1
//
// It needs Linux and root: every member lives with its application in a network
// namespace of its own. See docs/chaos.md.
//
// # How it is built
//
// What decides has no goroutine: [draw] makes the faults of a seed, [analyse] reads
// the journals, [judge] says what broke. Around them, a [group] of processes is kept
// running by one goroutine for each process, a [publisher] makes the load, and [run]
// goes through the faults.
package main
