package event

import (
	"time"

	"github.com/ringfence/router/internal/base/partition"
)

// WorkerID is this process's name for one stream of its application. Never reused.
type WorkerID uint64 // from 1 for streams

// Keeper is the worker that gets the deliveries of reservations. It is not a stream of the application but this
// router itself, and it always takes deliveries. Its keys wait separately from those of the streams.
const Keeper WorkerID = 0

// DeliveryID is this process's name for one hand-over of an event to a worker. Never reused.
type DeliveryID uint64

// Delivery is an event that was handed to a worker. From the moment it is taken
// from its mailbox until its [Result] is finished, its key is busy.
type Delivery struct {
	ID DeliveryID
	Ref
	Key       partition.KeyHash // of the event's key
	Partition partition.ID
	Token     int64  // the fencing token: grows with every change of owner of the partition
	Turn      uint64 // grows with every delivery of a partition in one process; 0 without a token
	Attempt   uint32 // counts the times that the application is given this event, from 1
	Crashes   uint32 // how often a worker crashed that had the event
	Size      uint32 // of the event in every memory bound, see Event.Bytes

	// Generation changes with the key's partition and with the set of workers. While it and the token are unchanged,
	// all turns of a key are at one worker.
	Generation uint64
}

// Fence returns the fence of the delivery.
func (d *Delivery) Fence() Fence { return Fence{Token: d.Token, Turn: d.Turn} }

// ResultKind is the kind of a delivery's end.
//
//exhaustive:enforce
type ResultKind uint8

// How a delivery can end. The last three are not the application's failure.
const (
	ResultDone       ResultKind = 1 // the work was done
	ResultRetry      ResultKind = 2 // it failed: again, after Result.After
	ResultReject     ResultKind = 3 // it will never succeed: dead letter
	ResultNotStarted ResultKind = 4 // the handler was not called
	ResultCancelled  ResultKind = 5 // the handler was cut, because its key was lost
	ResultLost       ResultKind = 6 // no answer, and its last deadline has passed
	ResultCrashed    ResultKind = 7 // the same, and its worker's stream broke before
	ResultPutOff     ResultKind = 8 // the router did not give it out, and will not before After

	// ResultHandedOver ends a covered reservation here: its key moves, and its holder goes on.
	ResultHandedOver ResultKind = 9
)

// String returns the name of the kind, as metrics and logs have it.
func (k ResultKind) String() string {
	switch k {
	case ResultDone:
		return "done"
	case ResultRetry:
		return "retry"
	case ResultReject:
		return "reject"
	case ResultNotStarted:
		return "not_started"
	case ResultCancelled:
		return "cancelled"
	case ResultPutOff:
		return "put_off"
	case ResultCrashed:
		return "crashed"
	case ResultLost:
		return "lost"
	case ResultHandedOver:
		return "handed_over"
	}
	return "unknown"
}

// Result is the end of one delivery.
type Result struct {
	Delivery DeliveryID
	Kind     ResultKind
	TimedOut bool          // ResultRetry: it was the router that lost patience
	Behind   bool          // ResultPutOff: other events of its key go first
	To       WorkerID      // ResultPutOff: at once to this worker, as long as it lives; 0: to any
	After    time.Duration // ResultRetry: the application's own delay, 0 when it has none
	Reason   string        // ResultRetry, ResultReject: why
	Reply    *CallReply    // of a call; nil: none
	Ran      Interval      // of the handler; zero: it did not start, or nobody has asked
}

// CallReply is what the result of a call has besides its kind.
type CallReply struct {
	Payload []byte // ResultDone
	Code    string // ResultRetry, ResultReject: the application's code. ResultNotStarted: CodeNoHandler if there is no handler
}

// Interval is the time in which a handler ran, by CLOCK_BOOTTIME of the worker's machine. The zero
// Interval is none.
type Interval struct{ Start, Length time.Duration }

// Handling is one run of a handler, as its worker has reported it. Its instants are those of CLOCK_BOOTTIME, or of any clock that
// only goes forward.
type Handling struct {
	Key       partition.KeyHash
	Partition partition.ID
	Worker    uint32 // the worker's number at its member, for people
	Fence     Fence
	Start     time.Duration
	End       time.Duration // not before Start
	Sent      time.Duration // when the delivery was handed to the stream; 0 in reports of other processes
}
