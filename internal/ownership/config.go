package ownership

import (
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/base/setting"
)

// Config is the constant input of a machine. One Config is one incarnation.
type Config struct {
	Group      string
	Name       string // stable over restarts, unique in the group
	Inc        Incarnation
	Gen        uint32 // generation of fencing tokens set by an operator, 1 … GenMax; 0: none
	HashID     string // ring.HashID
	Partitions int    // ring.Partitions
	GRPCAddr   string
	GossipAddr string
	Version    string // build, for people

	Identity   identity.Identity // settings on which the group must agree; nil: nothing is compared
	Topics     []string          // configured topics: full names, ascending; empty: not announced
	PublicKey  string            // Ed25519, of this incarnation; empty: none
	LogVersion uint32            // the highest version that this router writes, LogVersionMin … LogVersionMax

	// HadGroup says that a group has worked on the subscription before, with fencing tokens of generation HadGen at
	// most, as far as is known at the start. Then no Genesis is made on a control topic that never held a record of a
	// group, unless Gen is higher: its tokens could be lower than those that sinks have seen.
	HadGroup bool
	HadGen   uint32
	// Memory is the knowledge of the earlier incarnation of this process. A Genesis is made or obeyed only if its
	// token is greater than Memory's Floor.
	Memory Memory

	Timing Timing

	Seed uint64 // of the only random choice: the jitter before a Genesis

	// Running holds the partitions on which deliveries of an earlier incarnation of
	// this process may still run. They are reported by Drained with Seq 0.
	Running Set

	// Place decides which member should own each partition: for sorted names, it returns
	// the index of the owner of every partition. It must be a pure function.
	Place func(names []string) ([]uint16, error)
}

// Timing holds every duration of the protocol that is not a constant of the log version.
type Timing struct {
	Lease       time.Duration `above:"0" max:"4s"` // L: how long a member may act after it has sent a Beat that it reads back; the same for all members
	BeatEvery   time.Duration `above:"0"`          // R: interval between two Beats of a member
	BeatSpacing time.Duration `above:"0"`          // shortest interval between two Beats if something changed
	Guard       time.Duration `above:"0"`          // G: last part of a lease, in which nothing is dispatched

	DrainTimeout time.Duration `above:"0"` // time from a deposition to the forced end of its deliveries
	AppAbsence   time.Duration `above:"0"` // how long a member without an application keeps its partitions

	RankDelay      time.Duration `above:"0"` // delay before a proposal, times the rank of the member
	ProposeSpacing time.Duration `above:"0"` // shortest interval between two proposals of a member
	JoinSettle     time.Duration `above:"0"` // how long a proposal waits for further joining members
	NameInUseAfter time.Duration `above:"0"` // how long another incarnation may send Beats under this member's name before this member exits
	RemovedBackoff time.Duration `above:"0"` // delay before a removed member joins again; doubled by each further removal
	RemovedMax     time.Duration `above:"0"` // longest delay after a removal

	HelloEvery     time.Duration `min:"100ms" max:"1m"` // interval between two attempts to join
	HelloSlow      time.Duration `min:"100ms" max:"1m"` // interval between two attempts to join an active group, or without an application
	HelloLostAfter time.Duration `min:"100ms"`          // time without reading an own Hello back, after which the reader is replaced
	SnapDelay      time.Duration `above:"0"`            // delay before a Snap, times the rank of the member

	CheckTimeout time.Duration `min:"100ms"` // timeout of a contiguity check, which is then repeated with a longer one
	ReopenAfter  time.Duration `above:"0"`   // time without reading an own Beat back, after which the reader is replaced
	LostAfter    time.Duration `above:"0"`   // time without reading an own Beat back, after which the incarnation ends
	AnchorEvery  time.Duration `min:"1s"`    // interval between two moves of the anchor, up to which the broker may trim the control log
	AnchorBehind time.Duration `above:"0"`   // age of the position that the anchor is moved to
}

// DefaultTiming moves a dead member's partitions in about two seconds.
func DefaultTiming() Timing {
	return Timing{
		Lease:          2 * time.Second,
		BeatEvery:      500 * time.Millisecond,
		BeatSpacing:    20 * time.Millisecond,
		Guard:          100 * time.Millisecond,
		DrainTimeout:   30 * time.Second,
		AppAbsence:     5 * time.Second,
		RankDelay:      150 * time.Millisecond,
		ProposeSpacing: 300 * time.Millisecond,
		JoinSettle:     300 * time.Millisecond,
		NameInUseAfter: 30 * time.Second,
		RemovedBackoff: 2 * time.Second,
		RemovedMax:     time.Minute,
		HelloEvery:     500 * time.Millisecond,
		HelloSlow:      time.Second,
		HelloLostAfter: time.Second,
		SnapDelay:      200 * time.Millisecond,
		CheckTimeout:   300 * time.Millisecond,
		ReopenAfter:    5 * time.Second,
		LostAfter:      5 * time.Minute,
		AnchorEvery:    time.Minute,
		AnchorBehind:   10 * time.Minute,
	}
}

// FastTiming halves the default lease, for machines that are never short of CPU.
func FastTiming() Timing {
	t := DefaultTiming()
	t.Lease, t.BeatEvery = time.Second, 250*time.Millisecond
	return t
}

// CalmTiming doubles the default lease, for machines that pause now and then.
func CalmTiming() Timing {
	t := DefaultTiming()
	t.Lease, t.BeatEvery = 4*time.Second, time.Second
	return t
}

// Validate reports every bad field, not just the first.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("ownership: "+format, args...))
	}
	if c.Group == "" {
		bad("Group is empty")
	}
	if c.Name == "" {
		bad("Name is empty")
	}
	if c.Inc.IsZero() {
		bad("Inc is zero")
	}
	if c.Gen > GenMax {
		bad("Gen = %d, want <= %d", c.Gen, GenMax)
	}
	if c.LogVersion < LogVersionMin || c.LogVersion > LogVersionMax {
		bad("LogVersion = %d, want %d … %d", c.LogVersion, LogVersionMin, LogVersionMax)
	}
	if err := c.Identity.Validate(); err != nil {
		bad("%w", err)
	}
	if c.HashID == "" {
		bad("HashID is empty")
	}
	if c.Partitions < 1 || c.Partitions > 1<<16 {
		bad("Partitions = %d, want 1 … 65536", c.Partitions)
	}
	if c.Place == nil {
		bad("Place is nil")
	}
	if least := AnchorBehindMin(); c.Timing.AnchorBehind < least {
		bad("AnchorBehind = %v, want >= %v", c.Timing.AnchorBehind, least)
	}
	return errors.Join(append(errs, setting.Check(c.Timing))...)
}

// WaitFor is W: the longest time, by our clock, from the reading of a Beat to the end of the deadlines that its lease
// of length l permits, if every clock errs by 1 % at most (A2). So a promise of length l that was made before now lasts no
// longer by its holder's clock.
func WaitFor(l time.Duration) time.Duration {
	return l*101/99 + 50*time.Millisecond + 1
}
