// Package dev runs a group on one machine to develop an application against: members,
// the user's own application beside each, and events.
//
// # Processes
//
// Each of them is a process: this binary, started again with a hidden command.
//
//	router dev              events, restarts, prefixed output, the drain at the end
//	├─ demo broker          events and control log, in memory (not with --pulsar)
//	├─ demo member   × N    `router run`, on that broker
//	└─ dev app       × N    starts the user's command, and restarts it when it ends
//	   or dev exec   × N    acts as the application: runs the user's command for each event
//
// The last two are wrappers: they end the user's processes when this process ends, however it
// ends.
//
// # Concurrency
//
// [Run] blocks, and owns every goroutine and every process. [RunCommand] and [RunExec] run in
// the children; they block too.
package dev
