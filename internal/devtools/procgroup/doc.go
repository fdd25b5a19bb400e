// Package procgroup runs the processes of a group on one machine: this binary, started again
// with hidden commands, each with free ports and settings of its own.
//
// A child ends when its standard input does, so no process outlives the parent, however the
// parent ends ([FollowParent]).
//
// # Concurrency
//
// A [Group] has one goroutine for each child, which ends with the child; [Group.StopAll]
// waits for all of them. Its methods are safe for concurrent use.
package procgroup
