// Package demo shows the purpose of Ringfence on one machine: the same load runs first on plain
// SHARED consumers and then through three routers, one of which is killed and restarted. The
// applications' own journals decide the result.
//
// # Processes
//
// Every application, router and broker is a process: this binary, started again with a hidden
// command. A child ends when its standard input does, so no process outlives the parent,
// however the parent ends ([procgroup.FollowParent]).
//
//	router demo             load, faults, live table, verdict
//	├─ demo broker          events and control log, in memory (not with --pulsar)
//	├─ demo plain    × 3    applications that consume SHARED directly   (first part)
//	├─ demo member   × 3    `router run`, on that broker                (second part)
//	└─ demo app      × 3    applications beside them
//
// # What is measured
//
// The numbers of a [Result] come from the applications' journals and from the list of published
// events, through [journal.Check] and [journal.MeasureWaits]; none comes from a router. The
// live table shows the members' own reports.
//
// # Files
//
//	demo.go       Run: the two parts, one after the other
//	group.go      the second part: members, faults, the end of the drain
//	load.go       publishes events, and records their times
//	broker.go     where load.go publishes: the broker process, or a Pulsar broker
//	children.go   the code that runs in the child processes
//	view.go       the live table
//	verdict.go    the result
package demo
