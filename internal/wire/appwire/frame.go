package appwire

import (
	"errors"
	"fmt"
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

// afterOf turns milliseconds on the wire into a delay.
func afterOf(ms uint64) time.Duration {
	return time.Duration(min(ms, uint64(afterMax/time.Millisecond))) * time.Millisecond
}

// afterWire is the inverse of afterOf. It rounds up, so that a short delay never
// becomes 0, which asks for the router's own.
func afterWire(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64((min(d, afterMax) + time.Millisecond - 1) / time.Millisecond)
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
func (f *FromRouter) fromMessage(m *appv1.WorkResponse) error {
	f.Receipt = m.GetReceipt()
	frame, ok := m.GetFrame().(*appv1.WorkResponse_Deliveries)
	if !ok {
		f.Other = m
		return nil
	}
	f.Number = frame.Deliveries.GetNumber()
	f.To.Begin(len(frame.Deliveries.GetDeliveries()))
	for _, w := range frame.Deliveries.GetDeliveries() {
		d, err := deliveryOf(frame.Deliveries, w)
		if err != nil {
			return err
		}
		f.To.Deliver(&d)
	}
	return nil
}

// deliveryOf returns w with its indexes resolved through the frame's tables.
func deliveryOf(all *appv1.Deliveries, w *appv1.Delivery) (Delivery, error) {
	topics, tokens, names := all.GetTopics(), all.GetTokens(), all.GetNames()
	if uint64(w.GetTopic()) >= uint64(len(topics)) || uint64(w.GetToken()) >= uint64(len(tokens)) {
		return Delivery{}, fmt.Errorf("%w: topic %d of %d, token %d of %d", ErrIndex, w.GetTopic(), len(topics), w.GetToken(), len(tokens))
	}
	versions := all.GetSchemaVersions()
	if uint64(w.GetSchemaVersion()) > uint64(len(versions)) {
		return Delivery{}, fmt.Errorf("%w: schema version %d of %d", ErrIndex, w.GetSchemaVersion(), len(versions))
	}
	d := Delivery{
		ID: w.GetDeliveryId(), Partition: w.GetPartition(), Key: string(w.GetKey()), Payload: w.GetPayload(),
		Ledger: w.GetLedgerId(), Entry: w.GetEntryId(), Batch: w.GetBatchIndex(), TopicPartition: w.GetTopicPartition(),
		Topic: topics[w.GetTopic()], Token: tokens[w.GetToken()],
		PublishTime: w.GetPublishTimeMs(), EventTime: w.GetEventTimeMs(), Attempt: w.GetAttempt(),
		Traceparent: w.GetTraceparent(), Redelivery: w.GetRedeliveryCount(), Turn: w.GetTurn(), Generation: w.GetGeneration(),
	}
	d.Timer = timerOf(w.GetTimer())
	if c := w.GetCall(); c != nil {
		d.Call = callOf(&event.Call{Method: c.GetMethod(), ID: c.GetId(), Deadline: hotframe.CallDeadline(0, c.GetTimeoutMs()), Path: hotframe.KeyHashes(c.GetPath())})
	}
	if i := w.GetSchemaVersion(); i > 0 {
		d.SchemaVersion = string(versions[i-1])
	}
	for _, p := range w.GetProperties() {
		if uint64(p.GetName()) >= uint64(len(names)) {
			return d, fmt.Errorf("%w: property name %d of %d", ErrIndex, p.GetName(), len(names))
		}
		d.Properties = append(d.Properties, event.Property{Name: names[p.GetName()], Value: p.GetValue()})
	}
	return d, nil
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
			After:    afterOf(r.GetAfterMs()),
			Reason:   r.GetReason(),
			Reply:    replyOf(r.GetReply(), r.GetCode()),
			Ran:      ranOf(r.GetStartedNs(), r.GetTookNs()),
		})
	}
}
