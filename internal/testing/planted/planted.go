// Package planted names the bugs that the simulator must find: one switch for each
// mutation that the protocol's verification plan numbers.
//
// Production code has no switches. The unified diffs in the folder patches insert them where
// the rule that each breaks is implemented, as
//
//	if planted.On(planted.NoWait) { … }
//
// Command overlay, in the folder of that name, applies the patches to copies of the files and
// builds with the copies. In such a build a test of internal/testing/sim turns one
// bug on by Plant, and a process starts with the bug that the variable
// RINGFENCE_PLANTED names. CONTRIBUTING.md says how to change a patch.
package planted

import (
	"fmt"
	"os"
	"slices"
)

// Overlaid reports whether this build has the switches: a patch makes it true.
const Overlaid = false

// Bug is one planted bug, by its number.
type Bug uint8

// None is no bug.
const None Bug = 0

// known has the name and the effect of each bug.
var known = []struct{ name, does string }{{name: "none"}}

func bug(name, does string) Bug {
	known = append(known, struct{ name, does string }{name, does})
	return Bug(len(known) - 1)
}

// The bugs, in the order and by the numbers of the verification plan. Those after NoReaderReopen break rule 8 (ADR 0014), and
// those after WithheldIsAcquired the rules that keep a group one group (ADR 0030). SlewedClock and UnshrunkRemaining break the
// rules about clocks (ADR 0025). SameToken breaks the fence of a delivery (ADR 0024).
// Those after CopyForged break the promises about calls (ADR 0048), and those after VisitBesideEvent about reservations (ADR 0049). Those after
// ResumeAnyID break the promises about schedules and timers (ADR 0051), as RejectedIsRun does, and those after TimerAckedEarly about covered reservations (ADR 0052).
// StateOverReservation breaks the promise about the state of a key (ADR 0050).
var (
	NoWait                 = bug("no_wait", "acquire without waiting for earlier owners")
	DrainRace              = bug("drain_race", "acquire when the deadline has passed, without a confirming Beat (attack 34)")
	PrevOnly               = bug("prev_only", "remember only the latest deposed tenure (attack 4)")
	ReleaseUnaware         = bug("release_unaware", "a Beat that has not read the deposition releases (attack 6)")
	SameName               = bug("same_name", "a tenure of another incarnation of the same name counts as one's own (attack 9)")
	AckTime                = bug("ack_time", "the lease counts from the answer, not from the sending (attack 3)")
	StaleRead              = bug("stale_read", "the answer to an append renews the lease, without any read (attacks 1, 2)")
	NoSelfDrain            = bug("no_self_drain", "acquire while an own delivery of an earlier tenure runs (attack 8)")
	SuspendClock           = bug("suspend_clock", "leases run on a clock that stops in a suspend (attack 11)")
	DriftNoMargin          = bug("drift_no_margin", "a new owner waits for the lease without the margin for clock drift, W = L (attack 13)")
	PongPerStream          = bug("pong_per_stream", "a Pong also extends the deadlines of revoked deliveries (attack 37)")
	ForcedRelease          = bug("forced_release", "a forced delivery is over before its deadline has passed (attack 41)")
	AdoptNoWait            = bug("adopt_no_wait", "an adopter does not wait for deliveries from before its Hello (attack 9)")
	AnyStart               = bug("any_start", "any Beat with an open gate ends the wait for unknown earlier owners, ANY (attack 35)")
	DrainGenesis           = bug("drain_genesis", "a Genesis leaves draining deliveries extendable (attack 36)")
	AppIgnoresDeadline     = bug("app_ignores_deadline", "a handler continues after its deadline (attack 14)")
	GenesisKeepsOwner      = bug("genesis_keeps_owner", "a gate stays open through a Genesis that leaves the partition here (attack 36)")
	ExtendPassed           = bug("extend_passed", "a Pong extends a deadline that has passed")
	RemainingInDelivery    = bug("remaining_in_delivery", "the deadline counts from the arrival of the router's frame (attack 40)")
	RevokeAfterPong        = bug("revoke_after_pong", "the Pong goes out before the Revoke (attack 38)")
	LostWithoutRevoke      = bug("lost_without_revoke", "a router that is LOST revokes no deliveries (attack 39)")
	BrokenStreamIsOver     = bug("broken_stream_is_over", "the deliveries of a broken stream are over at once")
	SDKMonotonic           = bug("sdk_monotonic", "the SDK's clock stops in a suspend (attack 42)")
	LeaseShrinks           = bug("lease_shrinks", "a Beat announces a shorter lease than its sender uses (attack 27)")
	LmaxForConfig          = bug("lmax_for_config", "after a Genesis, a router waits for its own lease instead of the longest one (attack 27)")
	SnapAnyHello           = bug("snap_any_hello", "a router adopts a Snap for a Hello that its reader has not read back (attack 43)")
	DrainingIsGateState    = bug("draining_is_gate_state", "a Beat lists only draining gates, not waiting gates on which a delivery still runs")
	HeardBeforeRead        = bug("heard_before_read", "a Beat counts as heard before it is read")
	DlFalls                = bug("dl_falls", "a later Beat lowers a deadline")
	NoContiguity           = bug("no_contiguity", "holes in the log are ignored (attack 23)")
	ApplyDuringCheck       = bug("apply_during_check", "apply a record while its ledger change is being checked")
	NoAnchor               = bug("no_anchor", "the anchor follows the newest record (attack 23)")
	AcquiredWithoutApplied = bug("acquired_without_applied", "a Beat acquires a tenure whose epoch its sender had not read")
	NoCAS                  = bug("no_cas", "an epoch need not follow the current one (attack 18)")
	LocalTable             = bug("local_table", "each member computes the table, instead of reading it (attack 28)")
	CutNotAtomic           = bug("cut_not_atomic", "a Beat lists partitions that drained before its newest record was applied")
	ReleaseByName          = bug("release_by_name", "a release counts for every incarnation of the name (attack 5)")
	TokenIsEpochNumber     = bug("token_is_epoch_number", "tokens start again at each Genesis (attack 25)")
	LowerLedgerIsDuplicate = bug("lower_ledger_is_duplicate", "records of a lower ledger are dropped as duplicates")
	RangeCheckedLocally    = bug("range_checked_locally", "a position that is too large for a token still makes an epoch")
	OlderGenRemains        = bug("older_gen_stays", "a node of an older generation remains a member (attack 52)")
	MembersOnlyPropose     = bug("members_only_propose", "a node that is not a member does not propose (attack 44)")
	CountBursts            = bug("count_bursts", "each Beat of a burst counts as an interval of silence (attack 45)")
	ErrorIsLost            = bug("error_is_lost", "a failed contiguity check makes a router LOST (attack 46)")
	ColdByWallTime         = bug("cold_by_wall_time", "a cold start begins after a fixed time, even if no Hello has come back (attack 47)")
	LostAfter30s           = bug("lost_after_30s", "a router is LOST after 30 s without a Beat of its own (attack 48)")
	SilentByPosition       = bug("silent_by_position", "a stuck reader with a working producer is not silent (attack 7)")
	DivergedWithoutBase    = bug("diverged_without_base", "views from before the adoption of a state are compared (attack 49)")
	ChainOverGenesis       = bug("chain_over_genesis", "the view hash continues over a Genesis (attack 49)")
	JoinOnHello            = bug("join_on_hello", "a router joins before its application is connected (attack 50)")
	ReplaceAtOnce          = bug("replace_at_once", "a joining member takes the name of a member that sends Beats (attack 10)")
	LastMemberEpoch        = bug("last_member_epoch", "an epoch lists no ready member (attack 51)")
	UnawareBeatMovesDl     = bug("unaware_beat_moves_dl", "Beats that do not know of the deposition move deadlines (attack 7)")
	NoConfirmingBeat       = bug("no_confirming_beat", "no confirming Beat is sent")
	ConfirmOnRelease       = bug("confirm_on_release", "a release needs a confirming Beat too")
	CountsSurvivePause     = bug("counts_survive_pause", "counts continue after a pause (attack 53)")
	NoReaderReopen         = bug("no_reader_reopen", "a stuck reader is not reopened")
	NothingWithheld        = bug("nothing_withheld", "a gate opens even for keys that its old owner names as busy")
	WithheldIsAcquired     = bug("withheld_is_acquired", "a partition counts as acquired although keys are withheld")
	IdentityIgnored        = bug("identity_ignored", "a router joins a group with other settings")
	IdentityGenesisWins    = bug("identity_genesis_wins", "a late Genesis with other settings replaces the group")
	LowerTokensAllowed     = bug("lower_tokens_allowed", "a Genesis is made and followed although its tokens are lower than earlier ones")
	PassedGenesisForgotten = bug("passed_genesis_forgotten", "a joining router adopts a Genesis although it has passed over an earlier one")
	FloorTrusted           = bug("floor_trusted", "a router that remembers tokens makes a Genesis without reading the log")
	FloorUntold            = bug("floor_untold", "other routers' knowledge of earlier tokens is ignored")
	SlewedClock            = bug("slewed_clock", "leases run on a clock that NTP slews (ADR 0025)")
	UnshrunkRemaining      = bug("unshrunk_remaining", "a worker whose clock NTP slews gets the whole remaining time")
	PrefixUnjudged         = bug("prefix_unjudged", "a router continues although it has read a different log than the other routers")
	IdentityClaim          = bug("identity_claim", "a claim of a group with other settings counts as the router's own")
	WindowForged           = bug("window_forged", "ids of finished events are accepted from any sender, for any partition (ADR 0027)")
	SameToken              = bug("same_token", "all deliveries of a tenure have one fence (ADR 0024)")
	CopyForged             = bug("copy_forged", "any message that names an event as its original counts as that event (ADR 0028)")
	CallResentAfterBreak   = bug("call_resent_after_break", "a call without an id is sent again after the stream broke on which it was sent")
	CallRelayed            = bug("call_relayed", "a call is sent through a third member, or to a member whose release does not support calls")
	CancelledIsNotRun      = bug("cancelled_is_not_run", "a call whose handler was cancelled counts as not run")
	StartedAfterTimeout    = bug("started_after_timeout", "a call begins after its timeout")
	VisitBesideEvent       = bug("visit_beside_event", "a call begins while another delivery of its key runs")
	ReservationNotBusy     = bug("reservation_not_busy", "a Beat does not name the key of a reservation that drains")
	RenewedAfterRevoke     = bug("renewed_after_revoke", "a reservation is renewed although its key was taken back for good")
	ValidFromAnswer        = bug("valid_from_answer", "a holder counts its permission from the answer, not from its request")
	ExpiredEarly           = bug("expired_early", "an owner frees a reserved key a second before the lease behind the last renewal has passed")
	ResumeAnyID            = bug("resume_any_id", "a request to resume a reservation that the owner does not know starts a new one")
	ArmedAfterHandler      = bug("armed_after_handler", "a firing runs before the next firing of its schedule is confirmed")
	FiredEarly             = bug("fired_early", "a firing that comes before its time runs at once")
	RearmedAnew            = bug("rearmed_anew", "a firing that did not come is published again under another id")
	FiringForgotten        = bug("firing_forgotten", "an owner does not remember which firings it has run")
	TimerAckedEarly        = bug("timer_acked_early", "a timer that waits for longer than an hour is acked before its next copy is confirmed")
	CoveredAtSend          = bug("covered_at_send", "a reservation counts as covered as soon as its take is sent")
	ExpiryFromTake         = bug("expiry_from_take", "the time that a key waits for its holder counts from the reading of the take, not from the opening of the gate")
	DroppedAtTakeover      = bug("dropped_at_takeover", "a new owner withholds no key that the control log says is reserved")
	TakeOutOfOrder         = bug("take_out_of_order", "a take counts although its sender had not read the entry that it replaces")
	DropOutOfOrder         = bug("drop_out_of_order", "a drop counts although its sender had not read the entry that it removes")
	GenesisForgetsReserved = bug("genesis_forgets_reserved", "a Genesis lists no reservations")
	BaseSkipped            = bug("base_skipped", "a Genesis counts although a take lies between what its author has read and itself")
	ResumedByAnybody       = bug("resumed_by_anybody", "any reservation may begin on a key that waits for its holder")
	RejectedIsRun          = bug("rejected_is_run", "a rejected firing counts as run before it is a dead letter")
	StateOverReservation   = bug("state_over_reservation", "the generation of a key does not grow when the key is reserved")
)

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
	if !Overlaid || name == "" || name == "none" {
		return None
	}
	for b := range All {
		if b.String() == name {
			fmt.Fprintf(os.Stderr, "the bug %s is planted in this process: it breaks promises of a router\n", name)
			return b
		}
	}
	fmt.Fprintf(os.Stderr, "RINGFENCE_PLANTED = %q, want one of %v\n", name, slices.Collect(All))
	os.Exit(2)
	return None
}

// String returns the name that the verification plan gives the bug.
func (b Bug) String() string { return known[b].name }

// Does describes the effect of the bug.
func (b Bug) Does() string { return known[b].does }

// All yields every bug in the order of its number, without None.
func All(yield func(Bug) bool) {
	for b := None + 1; int(b) < len(known) && yield(b); b++ {
	}
}
