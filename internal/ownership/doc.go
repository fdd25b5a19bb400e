// Package ownership decides whether this member may act for a partition.
//
// It is pure: no goroutine, clock, lock, log line, socket or random source of its own. Inputs
// go into [Machine.Step] with the instant at which they happened; effects come out; the same
// inputs give the same effects.
//
// # Invariant
//
// For one partition, at any instant, at most one member of the group has an open
// gate and a valid lease, and no delivery of an earlier tenure runs then. Fencing
// tokens of a partition only ever grow. See [Lease.MayDispatch] (rule 6, where
// exclusivity is decided for one delivery) and mayAcquire (rule 5, where a gate opens).
//
// # Files
//
//	record.go   the six records of the control log
//	state.go    the replicated state, and the effect of each record on it: the same on every member
//	machine.go  the local rules: Step, the tail, leases, depositions, deadlines of others
//	peers.go    when the other members were heard
//	status.go   pictures of a machine
//	gate.go     gates: acquire (rule 5), dispatch (rule 6), revoke and drain
//	takenover.go  owners that have not read that others took over their partitions
//	beat.go     when a Beat is sent, and its content (rule 1)
//	propose.go  proposals of epochs: by whom, with which members, when
//	leave.go    how a member leaves the group
//	join.go     Hello, Snap and Genesis; contiguity, reopening, LOST
//	reserved.go the entries of covered reservations: the effect of takes, drops and a Genesis on them (rule 9)
//	cover.go    when a reservation is covered, and which keys wait for their holder
//	prefix.go   detects members that have read another log
//	anchor.go   the subscription that keeps the broker from trimming the log
//	step.go     inputs and effects
//	token.go    the fencing token
//
// # Transcripts
//
// Each file in testdata/transcripts shows one scenario on a page: the first group, a join, a handoff
// of busy keys, a takeover, a pause, a leave, a deleted log.
//
// # Driving a Machine
//
// One goroutine owns a machine. For each input it takes the present instant (for a
// record: after the record is in hand), calls Step, and performs the effects in
// their order before the next Step. These are the driver's duties:
//
//   - [SetGates] and [Revoke] take effect before the next effect is performed: no
//     dispatch under the old gate may begin later, and the revocation is in every
//     stream's queue before any Pong that is computed from a later [SetLease].
//   - Each Revoke is answered at once, as the very next input, by [Drained] with its Seq
//     and the partitions on which nothing runs (possibly none); the remaining
//     partitions follow when their last delivery is over.
//   - [Append] is sent at once; its result is reported by [AppendDone].
//   - Step is called at [Machine.Next] at the latest, with [Tick] if nothing else came.
//   - A machine begins with all gates closed, those of Config.Running draining, and
//     Revoke counts from 1 again: answers to an earlier machine's Revokes are dropped.
//   - After [Lost] the driver makes a new machine with a new incarnation; after [Exit]
//     and [Left] it does not. All three end the machine: Step then does nothing.
package ownership
