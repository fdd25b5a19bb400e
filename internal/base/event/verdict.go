package event

import "time"

// VerdictKind is the kind of a verdict.
//
//exhaustive:enforce
type VerdictKind uint8

// The kinds of verdict. The first three, Parked and Answered end the event's journey at its consumer node; Attempted
// and Granted leave it at its owner; all other kinds make the consumer node send it again. The numbers are
// those of the wire (ringfence.peer.v1.VerdictKind).
const (
	Done       VerdictKind = 1  // the application has done it: ack
	Failed     VerdictKind = 2  // the application failed it; again after Delay, by way of the retry topic
	Rejected   VerdictKind = 3  // to the dead letter topic, because of Reason
	NotOwner   VerdictKind = 4  // this node does not own the partition (its newest epoch is Epoch)
	NotYet     VerdictKind = 5  // this node has not read the epoch that you route by; again after Delay
	Overloaded VerdictKind = 6  // the key's mailbox or the node is full; again after Delay
	Attempted  VerdictKind = 7  // the application failed it for the Attempts-th time; it stays at its owner
	Parked     VerdictKind = 8  // to the parking topic, with its Mark in Reason; earlier versions take it as NotYet
	Answered   VerdictKind = 9  // of a call: it has its Reply
	Granted    VerdictKind = 10 // of a reservation: it has begun, and Answered follows at its end
)

// String returns the name of the kind, as metrics and logs have it.
func (k VerdictKind) String() string {
	switch k {
	case Done:
		return "done"
	case Failed:
		return "failed"
	case Rejected:
		return "rejected"
	case NotOwner:
		return "not_owner"
	case NotYet:
		return "not_yet"
	case Overloaded:
		return "overloaded"
	case Attempted:
		return "attempted"
	case Parked:
		return "parked"
	case Answered:
		return "answered"
	case Granted:
		return "granted"
	}
	return "unknown"
}

// Final reports whether the verdict ends the event's journey.
func (k VerdictKind) Final() bool {
	return k == Done || k == Failed || k == Rejected || k == Parked || k == Answered
}

// Verdict is the owner's word about one event, on its way back to the consumer node. There is one
// for each event, so it is small: 24 bytes.
type Verdict struct {
	Handle Handle
	Kind   VerdictKind
	Detail *Detail // nil: all its fields are zero, as with Done; verdicts share it, so it is never written to
}

// DetailOrZero returns the detail, the zero one if there is none.
func (v *Verdict) DetailOrZero() Detail {
	if v.Detail == nil {
		return Detail{}
	}
	return *v.Detail
}

// Detail holds the fields of verdicts other than Done.
type Detail struct {
	Delay      time.Duration // Failed, NotYet, Overloaded, Answered: when to try again; Parked: likewise, for members that take it as NotYet
	Attempts   uint32        // Failed, Rejected, Attempted, Parked: failures so far
	Crashes    uint32        // Attempted, Parked: crashes so far of workers that had it
	Reason     string        // Rejected: why. Failed, Attempted: the newest error. Parked: see CutMark. Answered: why there is no reply
	FirstError string        // Failed, Rejected, Parked: the first error, "" when none
	Epoch      Position      // NotOwner: the newest epoch that the refusing node has applied
	Reply      *Reply        // Answered
	Grant      *Grant        // Granted
	Owner      string        // Failed, Rejected, Parked: the deciding member
}

// Drop is the reason why a source ignores verdicts on an event from now on.
//
//exhaustive:enforce
type Drop uint8

// The reasons.
const (
	Spilled  Drop = iota + 1 // a copy comes back from the retry topic
	GivenUp                  // its copy is in the dead letter topic
	Returned                 // the broker delivers it again, to any member
)
