package prove

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// The steps of a proof, as an [Ask] names them.
const (
	DoLook  = "look"  // say what there is
	DoStart = "start" // start the proof
	DoPoll  = "poll"  // say what has happened, and forget what was told before
	DoFault = "fault" // inject a fault
	DoStop  = "stop"  // end the proof
	DoClean = "clean" // remove the topics of the proof, which no member runs any more
)

// Ask is one step of a proof, for one member.
type Ask struct {
	Do    string `json:"do"`
	Run   string `json:"run,omitempty"` // the proof: 6 hexadecimal digits
	Plan  *Plan  `json:"plan,omitempty"`
	From  int    `json:"from,omitempty"` // with DoPoll: the first record that the command does not have
	Load  bool   `json:"load,omitempty"` // with DoPoll: publish
	Fault *Fault `json:"fault,omitempty"`
}

// Plan describes a proof to one of its members.
type Plan struct {
	Seconds float64 `json:"seconds"` // after which the member ends the proof by itself
	Rate    int     `json:"rate"`    // events per second that this member publishes
	Keys    int     `json:"keys"`
	Member  int     `json:"member"` // number of this member, from 0
	By      string  `json:"by"`     // who runs the proof, in their own words
}

// The kinds of faults.
const (
	Kill        = "kill"         // SIGKILL for the router and the handlers beside it, as when a pod dies
	KillRouter  = "kill-router"  // SIGKILL for the router alone: its handlers run on
	KillHandler = "kill-handler" // SIGKILL for the handlers alone
	Pause       = "pause"        // SIGSTOP and SIGCONT for both
	PauseRouter = "pause-router" // SIGSTOP and SIGCONT for the router alone
	Drain       = "drain"        // the router leaves in order, and comes back
	Leave       = "leave"        // the router leaves in order for good: the end of a proof
)

// Kinds lists the faults of a proof.
var Kinds = []string{Kill, KillRouter, KillHandler, Pause, PauseRouter, Drain}

// Fault is a fault at one member.
type Fault struct {
	Number  int     `json:"number"` // from 1
	Kind    string  `json:"kind"`
	Seconds float64 `json:"seconds"` // until the killed process is started again, the stopped one continues, or the drained one comes back
}

// faultSecondsMax bounds one fault.
const faultSecondsMax = 60

// The kinds of records.
const (
	WasPublished  = "p" // Event was sent at At, and the broker has it
	WasSent       = "u" // Event was sent at At, and its fate is not known
	HasStarted    = "s" // Handling of Event began at At
	HasEnded      = "e" // Handling ended at At with Outcome
	WasKilled     = "k" // Process was there for the last time at At
	WasStopped    = "z" // Process was stopped from At to Until
	FaultBegan    = "f" // Fault began at At
	FaultEnded    = "r" // its processes run again
	HandlersBegan = "a" // Process has handlers from now on
	EndedByItself = "x" // a process ended that nobody ended: Text says which
)

// Record is something that happened at one member. Its instants are of [clock.Shared] there, in nanoseconds.
type Record struct {
	Kind     string `json:"k"`
	At       int64  `json:"t"`
	Until    int64  `json:"w,omitempty"`
	Process  int    `json:"a,omitempty"` // number of the process with handlers at this member, from 1
	Handling uint64 `json:"h,omitempty"` // number in that process
	Event    uint64 `json:"e,omitempty"` // EventOf
	Key      int    `json:"i,omitempty"`
	Token    int64  `json:"n,omitempty"` // of the fence
	Turn     uint64 `json:"u,omitempty"`
	Outcome  string `json:"o,omitempty"` // done, failed, cancelled
	Fault    *Fault `json:"f,omitempty"`
	Text     string `json:"x,omitempty"`
}

// The outcomes of a handling.
const (
	Done      = "done"
	Failed    = "failed"
	Cancelled = "cancelled"
)

// EventOf numbers the n-th event, from 1, of a member.
func EventOf(member, n int) uint64 { return uint64(member)<<40 | uint64(n) }

// keyName is the key of the events of a number.
func keyName(key int) string { return fmt.Sprintf("prove-%d", key) }

// Answer is the state of a member after a step.
type Answer struct {
	Error   string `json:"error,omitempty"` // why the step was not taken
	Member  string `json:"member"`
	Enabled bool   `json:"enabled"`
	Limits  Limits `json:"limits"`

	Run     string `json:"run,omitempty"` // the proof that runs; "": none
	Ready   bool   `json:"ready"`         // its router is, and no fault is at work
	Why     string `json:"why,omitempty"` // it is not
	Drained bool   `json:"drained,omitempty"`

	ClockID string `json:"clock_id"` // equal where clock.Shared is the same clock
	Now     int64  `json:"now"`      // of clock.Shared

	Records Records `json:"records,omitempty"` // from Ask.From on
	Next    int     `json:"next"`              // the number after them
	Pending int     `json:"pending"`           // records that are not in this answer

	Unconfirmed int `json:"unconfirmed,omitempty"` // events that were sent and of which the broker has said nothing yet
	Lost        int `json:"lost"`                  // records that there was no room for

	Audit     Audit    `json:"audit"`
	Unsettled int      `json:"unsettled"`        // events that the proof's router has received and not settled
	Remain    []string `json:"remain,omitempty"` // with DoClean: topics that may be left
}

// Limits are the settings of a member that bound a proof.
type Limits struct {
	Seconds float64 `json:"seconds"`
	Rate    int     `json:"rate"`
	Keys    int     `json:"keys"`
}

// Audit is what the live auditor and the assertions of the proof's routers have found at one member, its killed incarnations included.
type Audit struct {
	Handlings         uint64            `json:"handlings"`
	Overlaps          uint64            `json:"overlaps"`
	Undecided         map[string]uint64 `json:"undecided,omitempty"`
	InvariantFailures uint64            `json:"invariant_failures"`
	ForcedDrains      uint64            `json:"forced_drains"`
	LateResults       uint64            `json:"late_results"`
	LostTrust         uint64            `json:"lost_trust"`
	LeaseLapses       uint64            `json:"lease_lapses"`
	Found             []Overlap         `json:"found,omitempty"` // some of the overlaps, each once
}

// Overlap is a pair of handlings that the live auditor has found to overlap.
type Overlap struct {
	KeyHash string    `json:"key_hash"`
	Fences  [2]string `json:"fences"`
	Says    string    `json:"says"`
}

// foundMax bounds the overlaps that a member tells of.
const foundMax = 1000

// add adds the counts of another incarnation, or of another member.
func (a *Audit) add(b Audit) {
	a.Handlings += b.Handlings
	a.Overlaps += b.Overlaps
	for why, n := range b.Undecided {
		if a.Undecided == nil {
			a.Undecided = map[string]uint64{}
		}
		a.Undecided[why] += n
	}
	a.InvariantFailures += b.InvariantFailures
	a.ForcedDrains += b.ForcedDrains
	a.LateResults += b.LateResults
	a.LostTrust += b.LostTrust
	a.LeaseLapses += b.LeaseLapses
	a.found(b.Found)
}

// found adds overlaps that are not there yet.
func (a *Audit) found(more []Overlap) {
	for _, o := range more {
		if len(a.Found) < foundMax && !slices.Contains(a.Found, o) {
			a.Found = append(a.Found, o)
		}
	}
}

// examplesMax bounds the examples of each kind that are kept and shown.
const examplesMax = 10

var runForm = regexp.MustCompile(`^[0-9a-f]{6}$`)

// check reports what is wrong with a step: it comes from outside.
func (a *Ask) check() error {
	if a.Do == DoLook {
		return nil
	}
	if !runForm.MatchString(a.Run) {
		return errors.New("run: want six hexadecimal digits")
	}
	switch a.Do {
	case DoStart:
		if a.Plan == nil {
			return errors.New("plan is missing")
		}
		return a.Plan.check()
	case DoFault:
		if a.Fault == nil {
			return errors.New("fault is missing")
		}
		if !(a.Fault.Seconds >= 0 && a.Fault.Seconds <= faultSecondsMax) {
			return fmt.Errorf("fault.seconds = %v, want 0 to %d", a.Fault.Seconds, faultSecondsMax)
		}
	case DoPoll, DoStop, DoClean:
	default:
		return fmt.Errorf("no such step: %.20q", a.Do)
	}
	return nil
}

// membersMax bounds the members of a proof, by the numbers of events.
const membersMax = 1 << 12

func (p *Plan) check() error {
	switch {
	case !(p.Seconds > 0) || p.Seconds > (365*24*time.Hour).Seconds():
		return errors.New("plan.seconds: want more than 0")
	case p.Rate < 0 || p.Keys < 1:
		return errors.New("plan: want a rate of 0 or more, and keys")
	case p.Member < 0 || p.Member >= membersMax:
		return fmt.Errorf("plan.member: want 0 to %d", membersMax-1)
	case len(p.By) > 200:
		return errors.New("plan.by: want at most 200 bytes")
	}
	return nil
}
