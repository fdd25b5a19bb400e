// Package prove runs proofs: `router prove`, which injects faults into a second group beside the user's, and judges what its handlers did.
//
// Every router with prove.enabled has a [Host]. While a proof runs, the host has two child processes: a router, of the same binary
// and settings but with a group, topics and ports of its own, and an application with a built-in handler. It publishes events to the
// topic of the proof, and kills, stops and drains its children when it is told to. The command ([Conduct]) tells the hosts what to
// do by way of the admin endpoint of one router, collects the records of what was published and handled, and gives them to [Judge].
//
//	router prove ─ HTTP ─▶ router ═ peer port ═▶ the other routers
//	                         │ Host                   │ Host
//	                         ├─▶ proof's router ══════├─▶ proof's router     (a group of their own)
//	                         └─▶ built-in handler     └─▶ built-in handler
//
// The user's events and application are in other processes and another group: the proof never sees them. ADR 0045 says what a proof
// shows, and what it does not.
//
// # Concurrency
//
// A [Host] is safe for concurrent use; each proof has goroutines of its own, which end with it. [Judge], [HTML] and [JSON] are pure.
package prove
