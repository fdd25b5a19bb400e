package appwire

import (
	"errors"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/wire/hotframe"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// ToWorker is a Deliveries frame as the router sends it.
type ToWorker struct {
	Receipt    uint64
	Number     uint64 // counts the Deliveries frames of the stream from 1
	Deliveries []event.Delivery
	State      bool          // the worker wants generations
	Now        clock.Instant // for the time that the callers of calls still wait
}

// FromRouter is a frame as the worker receives it: Deliveries, which go to To, or another one.
type FromRouter struct {
	To      Receiver
	Receipt uint64
	Number  uint64
	Other   *appv1.WorkResponse // nil when the frame holds Deliveries

	delivery Delivery // the one that is being read: a frame's do not all lie in memory
	names    []string
	topics   []string
	schemas  []string
	tokens   []int64
}

// Receiver takes the deliveries of a frame while it is read.
type Receiver interface {
	// Begin announces about that many deliveries. It voids earlier ones, also of the same frame.
	Begin(deliveries int)
	// Deliver takes the next delivery. Only its strings and its payload may be kept.
	Deliver(d *Delivery)
}

// Delivery is one event as the worker reads it. Its strings and its payload alias
// the frame.
type Delivery struct {
	ID             uint64
	Partition      uint32
	Key            string
	Payload        []byte
	Properties     []event.Property
	Ledger, Entry  int64
	Batch          int32
	TopicPartition int32
	Topic          string
	Token          int64
	PublishTime    int64 // Unix milliseconds
	EventTime      int64 // Unix milliseconds, 0 when there is none
	Attempt        uint32
	Traceparent    string
	Redelivery     uint32
	Turn           uint64
	SchemaVersion  string // any bytes, "" when there is none
	Call           *Call  // nil: it is an event
	Generation     uint64 // 0: the router does not say
	Timer          *Timer // nil: a producer's event, or a call
}

// Timer is what a delivery has that the router published for the application. Its strings alias the frame.
type Timer struct {
	Name   string
	Due    int64 // Unix milliseconds, 0: at once
	Firing *Firing
}

// Firing is one run of a schedule.
type Firing struct {
	Time   int64 // Unix milliseconds
	Missed uint32
}

// Call is what a delivery has that is a call. Its strings alias the frame.
type Call struct {
	Method  string
	ID      string
	Timeout time.Duration // from the sending of the frame on
	Path    []partition.KeyHash
}

func timerOf(t *appv1.Timer) *Timer {
	if t == nil {
		return nil
	}
	timer := &Timer{Name: t.GetName(), Due: t.GetDueMs()}
	if f := t.GetFiring(); f != nil {
		timer.Firing = &Firing{Time: f.GetTimeMs(), Missed: f.GetMissed()}
	}
	return timer
}

func callOf(c *event.Call) *Call {
	if c == nil {
		return nil
	}
	return &Call{Method: c.Method, ID: c.ID, Timeout: time.Duration(c.Deadline), Path: c.Path} // read at the instant 0
}

// ToRouter is a Results frame as the worker sends it.
type ToRouter struct {
	Receipt uint64
	Number  uint64 // counts the Results frames of the stream from 1
	Results []event.Result
}

// FromWorker is a frame as the router receives it: Results, or another one.
type FromWorker struct {
	Bounds Bounds // set by the receiver before each frame; zero takes no frame at all
	Err    error  // the frame exceeds Bounds, and nothing else here is set

	Receipt uint64
	Number  uint64
	Results []event.Result
	Other   *appv1.WorkRequest // nil when the frame holds Results
}

// ErrIndex means that a delivery names an entry that its frame's tables do not have.
var ErrIndex = errors.New("appwire: index beyond the frame's table")

// afterMax bounds the delay that a worker can ask for; more milliseconds than
// that would not fit a time.Duration.
const afterMax = 366 * 24 * time.Hour

// kindOf reads a kind from the wire. An unknown kind is a failure: running an event twice
// is safe, losing it is not.
func kindOf(wire uint64) event.ResultKind {
	switch k := appv1.ResultKind(int32(wire)); k {
	case appv1.ResultKind_RESULT_KIND_DONE:
		return event.ResultDone
	case appv1.ResultKind_RESULT_KIND_REJECT:
		return event.ResultReject
	case appv1.ResultKind_RESULT_KIND_NOT_STARTED:
		return event.ResultNotStarted
	case appv1.ResultKind_RESULT_KIND_CANCELLED:
		return event.ResultCancelled
	default:
		return event.ResultRetry
	}
}

// ranMax bounds both parts of an interval, so that their sum does not overflow: 146 years.
const ranMax = 1 << 62

// ranOf turns the fields of a result into the interval of its handler: none if it is out of bounds.
func ranOf(started, took uint64) event.Interval {
	if started == 0 || started >= ranMax || took >= ranMax {
		return event.Interval{}
	}
	return event.Interval{Start: time.Duration(started), Length: time.Duration(took)}
}

// replyOf returns the reply of a result, nil if there is none.
func replyOf(payload []byte, code string) *event.CallReply {
	if len(payload) == 0 && code == "" {
		return nil
	}
	return &event.CallReply{Payload: payload, Code: code}
}

// fromMessage fills f from the generated message.
func (f *FromWorker) fromMessage(m *appv1.WorkRequest) {
	f.Receipt = m.GetReceipt()
	frame, ok := m.GetFrame().(*appv1.WorkRequest_Results)
	if !ok {
		f.Other = m
		return
	}
	f.Number = frame.Results.GetNumber()
	for _, r := range frame.Results.GetResults() {
		f.Results = append(f.Results, event.Result{
			Delivery: event.DeliveryID(r.GetDeliveryId()),
			Kind:     kindOf(uint64(r.GetKind())),
			After:    hotframe.Duration(r.GetAfterMs(), afterMax),
			Reason:   r.GetReason(),
			Reply:    replyOf(r.GetReply(), r.GetCode()),
			Ran:      ranOf(r.GetStartedNs(), r.GetTookNs()),
		})
	}
}
