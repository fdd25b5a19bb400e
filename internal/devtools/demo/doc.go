// Package demo shows on one machine what Ringfence is for: the same load runs first
// on plain SHARED consumers and then through three routers, of which one is killed
// and started again, and the applications' own journals say what happened.
//
// # Processes
//
// Every application, router and broker is a process: this binary, started again
// with a hidden command. A child ends when its standard input does, so nothing is
// left behind when the parent ends, however it ends ([procgroup.FollowParent]).
//
//	router demo             load, faults, live table, verdict
//	├─ demo broker          events and control log, in memory (not with --pulsar)
//	├─ demo plain    × 3    applications that consume SHARED directly   (first part)
//	├─ demo member   × 3    `router run`, on that broker                (second part)
//	└─ demo app      × 3    applications beside them
//
// # What is measured
//
// The numbers of a [Result] come from the journals of the applications and from the
// list of what was published, through [journal.Check] and [journal.MeasureWaits];
// none is the router's opinion. The live table shows what the members say of themselves.
//
// # Files
//
//	demo.go       Run: the two parts, one after the other
//	group.go      the second part: members, faults, the end of the drain
//	load.go       which events are published when
//	broker.go     where to: the broker process, or a Pulsar
//	children.go   what the children do
//	view.go       the live table
//	verdict.go    what it comes to
package demo
