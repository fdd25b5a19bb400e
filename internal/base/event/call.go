package event

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/partition"
)

// The bounds of calls.
const (
	CallPayloadMax = 1 << 20 // bytes of the argument, and of the reply
	CallMethodMax  = 64      // bytes of the name of a handler
	CallIDMax      = 128     // bytes of the caller's id
	CallCodeMax    = 64      // bytes of a failure's code
	CallPathMax    = 8       // keys whose handlers wait for a call

	TTLLeast = 5 * time.Second // of a covered reservation
	TTLMost  = 5 * time.Minute
)

// IsTTL reports whether a covered reservation may have this ttl.
func IsTTL(d time.Duration) bool { return d >= TTLLeast && d <= TTLMost }

// Call holds the additional data of an event that is a call, whose caller waits for the reply of the key's handler.
// It is immutable.
type Call struct {
	Method   string
	ID       string              // of the caller's choice; "": see Once
	Deadline clock.Instant       // by this process's clock: the caller is no longer waiting
	Path     []partition.KeyHash // of the keys whose handlers wait for this call, the outermost first

	// Reservation says that the caller itself does the work, where it is, instead of a handler. Method is then "",
	// and Deadline bounds only the wait for the key. Resume says that the reservation was granted before, so that it
	// must not be granted anew.
	Reservation, Resume bool
	// TTL is not 0 if the reservation is to be covered: each renewal then promises the key for that long, even if the
	// owner of the key dies.
	TTL time.Duration
}

// Once reports whether the call must not run twice, because without an id a repeat cannot be distinguished from
// another call.
func (c *Call) Once() bool { return c.ID == "" }

// callOverhead is the approximate size of the Go values of a call.
const callOverhead = 64

func (c *Call) bytes() int { return callOverhead + len(c.Method) + len(c.ID) + 8*len(c.Path) }

func (c *Call) clone() *Call {
	own := *c
	own.Method, own.ID, own.Path = strings.Clone(c.Method), strings.Clone(c.ID), slices.Clone(c.Path)
	return &own
}

// Check returns what is wrong with a call that an outsider has made.
func (c *Call) Check(payload int) error {
	switch {
	case c.Reservation && (c.Method != "" || c.ID == "" || payload > 0):
		return errors.New("a reservation with a method or a payload, or without an id")
	case !c.Reservation && !IsMethod(c.Method):
		return fmt.Errorf("method %.80q: want 1 to %d bytes of A-Z, a-z, 0-9, '.', '_' and '-'", c.Method, CallMethodMax)
	case len(c.ID) > CallIDMax:
		return fmt.Errorf("an id of %d bytes: want at most %d", len(c.ID), CallIDMax)
	case c.TTL != 0 && (!c.Reservation || !IsTTL(c.TTL)):
		return fmt.Errorf("a ttl of %v: want %v to %v, of a reservation", c.TTL, TTLLeast, TTLMost)
	case len(c.Path) > CallPathMax:
		return fmt.Errorf("a call behind %d others: want at most %d", len(c.Path), CallPathMax)
	case payload > CallPayloadMax:
		return fmt.Errorf("a payload of %d bytes: want at most %d", payload, CallPayloadMax)
	}
	return nil
}

// IsMethod reports whether a handler may have that name.
func IsMethod(name string) bool {
	if name == "" || len(name) > CallMethodMax {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// callLedger is the least ledger in the id of a call, and greater than any ledger of a broker.
const callLedger = 1 << 62

// CallMessageID returns the id that all repeats of a call have in common; without an id of the caller, one that differs with the nonce. No
// broker gives such an id to a message.
func CallMessageID(key Key, id string, nonce uint64) MessageID {
	var head [16]byte
	binary.BigEndian.PutUint64(head[:], uint64(len(key)))
	if id == "" {
		binary.BigEndian.PutUint64(head[8:], nonce)
	}
	h := sha256.New()
	h.Write(head[:])
	h.Write([]byte(key))
	h.Write([]byte(id))
	sum := h.Sum(nil)
	high, low := binary.BigEndian.Uint64(sum), binary.BigEndian.Uint64(sum[8:])
	return MessageID{Ledger: int64(callLedger | high>>2), Entry: int64(low >> 1), Batch: -1, TopicPartition: -1}
}

// IsCall reports whether m is the id of a call.
func (m MessageID) IsCall() bool { return m.Ledger >= callLedger }

// CallOutcome is what became of a call. The numbers are those of the wire (ringfence.lane.v1.Outcome).
//
//exhaustive:enforce
type CallOutcome uint8

// The outcomes.
const (
	CallReplied    CallOutcome = 1 // the handler has returned a reply
	CallFailed     CallOutcome = 2 // the handler has returned an error
	CallNotRun     CallOutcome = 3 // it has not run, and never will
	CallUnknown    CallOutcome = 4 // it may have run, and may still run until its deadline
	CallDoneBefore CallOutcome = 5 // a call with its id was answered before, and the reply is not remembered
)

// String returns the name of the outcome, as metrics and logs have it.
func (o CallOutcome) String() string {
	switch o {
	case CallReplied:
		return "replied"
	case CallFailed:
		return "failed"
	case CallNotRun:
		return "not_run"
	case CallUnknown:
		return "unknown"
	case CallDoneBefore:
		return "done_before"
	}
	return "unspecified"
}

// The codes of calls that have not run.
const (
	CodeTimeout      = "timeout"       // its time was up before it could begin
	CodeOverloaded   = "overloaded"    // too many calls wait, of the key or of the member
	CodeNoHandler    = "no_handler"    // the worker of the key has no handler of that method
	CodeCycle        = "cycle"         // a handler of the same key waits for it
	CodeParked       = "parked"        // an operator has parked the key
	CodeTooLarge     = "too_large"     // the call has no room in a frame
	CodeLost         = "lost"          // of a reservation: its permission has passed
	CodeLeaving      = "leaving"       // the router that was asked leaves its group
	CodeNotCovered   = "not_covered"   // of a reservation: its ttl cannot be promised
	CodeNotExclusive = "not_exclusive" // of a reservation: two members may own a key
	CodeUnreachable  = "unreachable"   // the owner cannot be reached, or is of a release without calls
)

// Grant is the beginning of a reservation.
type Grant struct {
	Fence     Fence
	Remaining time.Duration // of permission, from the asking on; 0: to be renewed first
}

// Permission is how long the holder of a reservation may go on.
type Permission struct {
	Remaining time.Duration // from the asking on; 0: no longer than before
	Covered   bool          // it outlives the owner of the key
}

// Renewal asks how long the holder of a reservation may go on.
type Renewal struct {
	Handle     Handle
	Number     uint64 // of the asking frame, returned with the answer
	Permission        // in the answer
}

// Reply is the answer to a call. It is never written to.
type Reply struct {
	Outcome CallOutcome
	Payload []byte // CallReplied
	Code    string // CallFailed: the application's, CallNotRun: the router's
}

// NotRun returns the verdict on a call that has not run, and never will.
func NotRun(h Handle, code, why string) Verdict {
	return Verdict{Handle: h, Kind: Answered, Detail: &Detail{Reason: why, Reply: &Reply{Outcome: CallNotRun, Code: code}}}
}

// Unknown returns the verdict on a call that may have run.
func Unknown(h Handle, why string) Verdict {
	return Verdict{Handle: h, Kind: Answered, Detail: &Detail{Reason: why, Reply: &Reply{Outcome: CallUnknown}}}
}
