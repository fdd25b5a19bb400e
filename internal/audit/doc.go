// Package audit judges whether handlers of one key have overlapped, from the times at which they began and ended.
//
// It is pure: no goroutine, clock, lock or log line. [Auditor] compares the handlings of each key that it is told of,
// from any process, in any order. [Remote] converts instants of another machine to the clock of this one, with the
// uncertainty that remains between two clocks. [Inversions] counts how often the events of a key began in another order than that
// of their topic partition.
//
// # Verdicts
//
// Two handlings of a key overlap, do not overlap, or are undecided. They overlap only if they do so for every reading of
// the clocks that the uncertainty allows; so an overlap is never invented. Whatever cannot be decided is counted by its
// reason: the clocks of two machines do not agree that well, the earlier handlings are forgotten, or a report is not
// plausible.
//
// # Memory
//
// An Auditor allocates its memory once. The newest handlings are kept one by one, in a ring. Of those that left the ring
// it knows, by groups of keys, when the last one ended: a handling that began before that instant cannot be compared
// with all others, and is counted as undecided, unless it overlaps with one that is kept.
package audit
