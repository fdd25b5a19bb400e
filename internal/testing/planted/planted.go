// Package planted names the bugs that the simulator must find: one switch for each
// mutation that the protocol's verification plan numbers.
//
// Production code has no switches. They stand in the unified diffs of the folder patches,
// at the place of the rule that each breaks, as
//
//	if planted.On(planted.NoWait) { … }
//
// Command overlay, in the folder of that name, applies the patches to copies of the files and
// builds with the copies. In such a build a test of internal/testing/sim turns one
// bug on by Plant, and a process begins with the bug that the variable
// RINGFENCE_PLANTED names. CONTRIBUTING.md says how to change a patch.
package planted

import (
	"fmt"
	"os"
	"slices"
)

// Overlaid reports whether this build has the switches: a patch makes it true.
const Overlaid = false

// Bug is one planted bug. Zero is none.
type Bug uint8

// The bugs, in the order and by the numbers of the verification plan; those after
// NoReaderReopen break rule 8 (ADR 0014), and those after WithheldIsAcquired what makes a group one group (ADR 0030);
// SlewedClock and UnshrunkRemaining break the rules about clocks (ADR 0025). SameToken breaks the fence of a delivery (ADR 0024).
const (
	None                   Bug = iota
	NoWait                     // acquire without waiting for anybody
	DrainRace                  // acquire when the deadline has passed, unconfirmed (attack 34)
	PrevOnly                   // remember only the latest deposed tenure (attack 4)
	ReleaseUnaware             // a Beat that has not read the deposition releases (attack 6)
	SameName                   // a tenure of another incarnation of the same name counts as one's own (attack 9)
	AckTime                    // the lease counts from the answer, not from the sending (attack 3)
	StaleRead                  // the answer to an append renews the lease, whatever was read (attacks 1, 2)
	NoSelfDrain                // acquire while an own delivery of an earlier tenure runs (attack 8)
	SuspendClock               // leases run on a clock that stops in a suspend (attack 11)
	DriftNoMargin              // W = L (attack 13)
	PongPerStream              // a Pong moves revoked deliveries too (attack 37)
	ForcedRelease              // a forced delivery is over before its deadline has passed (attack 41)
	AdoptNoWait                // an adopter does not wait for what ran before its Hello (attack 9)
	AnyStart                   // any Beat with an open gate ends ANY (attack 35)
	DrainGenesis               // a Genesis leaves draining deliveries extendable (attack 36)
	AppIgnoresDeadline         // a handler goes on after its deadline (attack 14)
	GenesisKeepsOwner          // a gate stays open through a Genesis that leaves the partition here (attack 36)
	ExtendPassed               // a Pong extends a deadline that has passed
	RemainingInDelivery        // the deadline counts from the arrival of what the router said (attack 40)
	RevokeAfterPong            // the Pong goes out before the Revoke (attack 38)
	LostWithoutRevoke          // LOST revokes nothing (attack 39)
	BrokenStreamIsOver         // the deliveries of a broken stream are over at once
	SDKMonotonic               // the SDK's clock stops in a suspend (attack 42)
	LeaseShrinks               // others are told a shorter lease than is used (attack 27)
	LmaxForConfig              // after a Genesis wait for one's own lease, not for the longest (attack 27)
	SnapAnyHello               // adopt a Snap for a Hello that this reader has not read back (attack 43)
	DrainingIsGateState        // only gates that drain are listed, not those that wait with a delivery running
	HeardBeforeRead            // a Beat is heard before it is in hand
	DlFalls                    // a later Beat lowers a deadline
	NoContiguity               // holes in the log are read over (attack 23)
	ApplyDuringCheck           // apply a record while its ledger change is being checked
	NoAnchor                   // the anchor follows the newest record (attack 23)
	AcquiredWithoutApplied     // a Beat acquires a tenure that its sender had not read of
	NoCAS                      // an epoch needs not follow the current one (attack 18)
	LocalTable                 // everybody computes the table, instead of reading it (attack 28)
	CutNotAtomic               // a Beat lists what drained before its newest record was applied
	ReleaseByName              // a release counts for every incarnation of the name (attack 5)
	TokenIsEpochNumber         // tokens count from the Genesis on (attack 25)
	LowerLedgerIsDuplicate     // records of a lower ledger are dropped as duplicates
	RangeCheckedLocally        // a position that fits no token makes an epoch all the same
	OlderGenRemains            // a node of an older generation stays (attack 52)
	MembersOnlyPropose         // who is no member does not propose (attack 44)
	CountBursts                // bursts of Beats count for silence (attack 45)
	ErrorIsLost                // a failed contiguity check is LOST (attack 46)
	ColdByWallTime             // a cold start after a time, whether or not Hellos come back (attack 47)
	LostAfter30s               // LOST after 30 s without an own Beat (attack 48)
	SilentByPosition           // a stuck reader with a working producer is not silent (attack 7)
	DivergedWithoutBase        // views of the time before the adoption are compared (attack 49)
	ChainOverGenesis           // the view hash goes on over a Genesis (attack 49)
	JoinOnHello                // join before an application is there (attack 50)
	ReplaceAtOnce              // a joining member takes the name of a member that beats (attack 10)
	LastMemberEpoch            // an epoch without a ready member (attack 51)
	UnawareBeatMovesDl         // Beats that do not know of the deposition move deadlines (attack 7)
	NoConfirmingBeat           // no confirming Beat is sent
	ConfirmOnRelease           // a release needs a confirming Beat too
	CountsSurvivePause         // counts go on after a pause (attack 53)
	NoReaderReopen             // a stuck reader is not opened again
	NothingWithheld            // a gate opens for the keys, too, that its old owner names as busy
	WithheldIsAcquired         // a partition counts as acquired although keys are withheld
	IdentityIgnored            // a router joins a group whose settings are not its own
	IdentityGenesisWins        // a Genesis of other settings that comes late replaces the group
	LowerTokensAllowed         // a Genesis is made and obeyed though its tokens are lower than earlier ones
	PassedGenesisForgotten     // a joining router adopts a Genesis although another one, passed over, came first
	FloorTrusted               // a router that remembers tokens makes a Genesis without asking what the log holds
	FloorUntold                // what other routers know of earlier tokens is not heeded
	SlewedClock                // leases run on a clock that NTP slews (ADR 0025)
	UnshrunkRemaining          // a worker whose clock NTP slews is told the whole remaining time
	PrefixUnjudged             // who has read another log than the others goes on
	IdentityClaim              // a claim of a group with other settings is taken for one's own
	WindowForged               // ids of finished events are taken in from anybody, wherever they are (ADR 0027)
	SameToken                  // all deliveries of a tenure have one fence (ADR 0024)
	CopyForged                 // a copy counts as the event that it says it is of (ADR 0028)
)

var names = [...]string{
	"none",
	"no_wait",
	"drain_race",
	"prev_only",
	"release_unaware",
	"same_name",
	"ack_time",
	"stale_read",
	"no_self_drain",
	"suspend_clock",
	"drift_no_margin",
	"pong_per_stream",
	"forced_release",
	"adopt_no_wait",
	"any_start",
	"drain_genesis",
	"app_ignores_deadline",
	"genesis_keeps_owner",
	"extend_passed",
	"remaining_in_delivery",
	"revoke_after_pong",
	"lost_without_revoke",
	"broken_stream_is_over",
	"sdk_monotonic",
	"lease_shrinks",
	"lmax_for_config",
	"snap_any_hello",
	"draining_is_gate_state",
	"heard_before_read",
	"dl_falls",
	"no_contiguity",
	"apply_during_check",
	"no_anchor",
	"acquired_without_applied",
	"no_cas",
	"local_table",
	"cut_not_atomic",
	"release_by_name",
	"token_is_epoch_number",
	"lower_ledger_is_duplicate",
	"range_checked_locally",
	"older_gen_stays",
	"members_only_propose",
	"count_bursts",
	"error_is_lost",
	"cold_by_wall_time",
	"lost_after_30s",
	"silent_by_position",
	"diverged_without_base",
	"chain_over_genesis",
	"join_on_hello",
	"replace_at_once",
	"last_member_epoch",
	"unaware_beat_moves_dl",
	"no_confirming_beat",
	"confirm_on_release",
	"counts_survive_pause",
	"no_reader_reopen",
	"nothing_withheld",
	"withheld_is_acquired",
	"identity_ignored",
	"identity_genesis_wins",
	"lower_tokens_allowed",
	"passed_genesis_forgotten",
	"floor_trusted",
	"floor_untold",
	"slewed_clock",
	"unshrunk_remaining",
	"prefix_unjudged",
	"identity_claim",
	"window_forged",
	"same_token",
	"copy_forged",
}

// present is the planted bug. None is the only one in a build without the switches.
var present = fromEnvironment()

// On reports whether a bug is planted.
func On(b Bug) bool { return Overlaid && present == b }

// Present returns the planted bug, None if there is none.
func Present() Bug { return present }

// Plant makes b the one planted bug; None ends it. No machine may run meanwhile. In a
// build without the switches it ends the process: a hunt for a bug that is not there
// would prove nothing.
func Plant(b Bug) {
	if !Overlaid {
		fmt.Fprintln(os.Stderr, "no bug can be planted in this build: go run ./internal/testing/planted/overlay test …")
		os.Exit(2)
	}
	present = b
}

// fromEnvironment returns the bug that RINGFENCE_PLANTED names, before anything runs. A
// name that is none ends the process: an experiment without its bug would prove
// nothing.
func fromEnvironment() Bug {
	name := os.Getenv("RINGFENCE_PLANTED")
	if !Overlaid || name == "" {
		return None
	}
	i := slices.Index(names[:], name)
	if i < 0 {
		fmt.Fprintf(os.Stderr, "RINGFENCE_PLANTED = %q, want one of %q\n", name, names[:])
		os.Exit(2)
	}
	fmt.Fprintf(os.Stderr, "the bug %s is planted in this process: it breaks promises of a router\n", name)
	return Bug(i)
}

// String returns the name that the verification plan gives the bug.
func (b Bug) String() string { return names[b] }

// All yields every bug in the order of its number, without None.
func All(yield func(Bug) bool) {
	for b := None + 1; int(b) < len(names) && yield(b); b++ {
	}
}
