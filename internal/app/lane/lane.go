package lane

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/base/signal"
)

// The timeouts of calls.
const (
	TimeoutDefault = 10 * time.Second
	TimeoutMax     = 10 * time.Minute

	// OwnerGrace is the time that a call waits for the owner's answer after its timeout, since only the owner knows whether
	// the call has run.
	OwnerGrace = 100 * time.Millisecond
)

// Config bounds the calls that are made at one node.
type Config struct {
	// CallsMax bounds the calls that wait for their answers. A further one is refused as overloaded.
	CallsMax int `min:"1"`
	// CallsBytesMax bounds the bytes of the payloads of calls that wait for their answers, and of events of Send that the broker has not confirmed yet. A call or an
	// event that would exceed it is refused as overloaded.
	CallsBytesMax int `unit:"bytes" min:"1MiB"`
	// ReservationsMax bounds the reservations that are held or waited for. A further one is refused as overloaded;
	// for returning holders the bound is twice as high.
	ReservationsMax int `min:"1"`
	// SendsMax bounds the events of Send, timers included, that the broker has not confirmed yet. A further one is refused.
	SendsMax int `min:"1"`
}

// DefaultConfig returns the settings for production.
func DefaultConfig() Config {
	return Config{CallsMax: 10_000, CallsBytesMax: 32 << 20, ReservationsMax: 1000, SendsMax: 1000}
}

// Sender sends calls to the owners of their keys.
type Sender interface {
	// Call sends a call. [Lane.Answered] gets its verdict, once.
	Call(call *event.Event)
	// GiveUp ends a call: Answered gets its verdict before GiveUp returns, unless it had one, or another goroutine is
	// just bringing it. A granted reservation with a ttl gets its verdict when an owner has confirmed the release, see
	// [forward.Table.GiveUp].
	GiveUp(call event.Handle)
	// RenewReservation asks the owner of a reservation for new permission. [Lane.Renewed] gets the answer, if one comes.
	RenewReservation(r event.Renewal)
	// ForgetReservation ends a reservation at this node alone, so that its holder may resume it through another node. A
	// release without a verdict is still sent to an owner.
	ForgetReservation(h event.Handle)
}

// Publisher publishes events.
type Publisher interface {
	// Publish publishes an event that is delivered when it is due, see [event.Sent]. It calls answer once, from any
	// goroutine, perhaps before it returns: without an error when the broker has confirmed the event. After an error of
	// Publish itself nothing was published.
	Publish(e *event.Event, answer func(error)) error
}

// Request is a call, as a caller makes it.
type Request struct {
	Key         event.Key
	Method      string
	Payload     []byte        // kept until the answer, and never written to
	ID          string        // "": the call runs at most once
	Timeout     time.Duration // 0: TimeoutDefault
	Path        []partition.KeyHash
	Traceparent string
}

// ErrRequest is wrapped by the errors about requests that no owner would accept.
var ErrRequest = errors.New("bad request")

func (r *Request) check() error {
	c := event.Call{Method: r.Method, ID: r.ID, Path: r.Path}
	if err := c.Check(len(r.Payload)); err != nil {
		return fmt.Errorf("%w: %w", ErrRequest, err)
	}
	switch {
	case r.Key == "" || len(r.Key) > event.KeyMax:
		return fmt.Errorf("%w: a key of %d bytes: want 1 to %d", ErrRequest, len(r.Key), event.KeyMax)
	case r.Timeout < 0 || r.Timeout > TimeoutMax:
		return fmt.Errorf("%w: a timeout of %v: want at most %v", ErrRequest, r.Timeout, TimeoutMax)
	case len(r.Traceparent) > traceparentMax:
		return fmt.Errorf("%w: a traceparent of %d bytes: want at most %d", ErrRequest, len(r.Traceparent), traceparentMax)
	}
	return nil
}

const traceparentMax = 256

// Answer is the outcome of a call.
type Answer struct {
	event.Reply
	Text       string        // why there is no reply
	RetryAfter time.Duration // CallNotRun: the time to wait before another call; 0: the caller decides
}

// isUnconfirmed reports whether no owner has confirmed the release of a reservation.
func (a *Answer) isUnconfirmed() bool {
	return a.Outcome == event.CallUnknown && a.Code == event.CodeUnreachable
}

// Lane makes calls. Its exported fields are set before the first one.
type Lane struct {
	NotExclusive bool        // ownership is not exclusive, so reservations are refused
	Covers       func() bool // whether reservations with a ttl can be covered; nil: they cannot

	config    Config
	sender    Sender
	publisher Publisher
	now       func() clock.Instant
	metrics   *Metrics
	nonce     uint64
	leaving   atomic.Bool // see Leave

	mu      sync.Mutex // guards the fields below
	last    uint64     // serial number of the newest call or reservation
	held    int        // reservations, granted or not
	sends   int        // events of Send that the broker has not confirmed
	waiting map[event.Handle]waiter
	calls   int           // number of calls in waiting: the others are reservations
	bytes   int           // of the payloads of calls and of events of Send
	refused uint64        // calls and reservations refused because of a bound
	ended   chan struct{} // of capacity one: a call has its answer
}

// Stats counts the calls, reservations and sends that wait at this node, with their bounds.
type Stats struct {
	Calls                         int // calls without an answer, and reservations without an end
	Bytes, BytesMax               int // of payloads
	Reservations, ReservationsMax int // held or waited for
	Refused                       uint64
	Unanswered, CallsMax          int // of Calls, those that are not reservations
}

// Stats returns a snapshot.
func (l *Lane) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{
		Calls: len(l.waiting), CallsMax: l.config.CallsMax, Bytes: l.bytes, BytesMax: l.config.CallsBytesMax,
		Reservations: l.held, ReservationsMax: l.config.ReservationsMax, Refused: l.refused,
		Unanswered: l.calls,
	}
}

// Leave makes the Lane refuse new calls and reservations with the code leaving, so that they are made at another
// router, until TakeCalls. It still accepts calls of handlers, which have to finish, and returning holders.
func (l *Lane) Leave() { l.leaving.Store(true) }

// TakeCalls ends what Leave began.
func (l *Lane) TakeCalls() { l.leaving.Store(false) }

// Finish waits until all calls have their answers, or ctx ends. It must not run twice at a time.
func (l *Lane) Finish(ctx context.Context) {
	for l.Stats().Unanswered > 0 {
		select {
		case <-l.ended:
		case <-ctx.Done():
			return
		}
	}
}

// refuse counts a call or a reservation that has no room. The lock is held.
func (l *Lane) refuse(limit string) {
	l.refused++
	l.metrics.refused.WithLabelValues(limit).Inc()
}

// waiter receives the verdicts on a call, or on a reservation. Its methods are called under the lock, and must not block.
type waiter interface {
	// hear takes a verdict. It reports whether it was the last one.
	hear(v *event.Verdict) (last bool)
	renewed(r *event.Renewal)
}

// caller waits for one answer.
type caller chan Answer

func (c caller) hear(v *event.Verdict) (last bool) {
	c <- AnswerOf(v) // the channel has room for one answer
	return true
}

func (caller) renewed(*event.Renewal) {}

// New returns a Lane. now reads the lease clock.
func New(config Config, sender Sender, publisher Publisher, now func() clock.Instant, metrics *Metrics) *Lane {
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails
	return &Lane{
		config: config, sender: sender, publisher: publisher, now: now, metrics: metrics, nonce: binary.BigEndian.Uint64(nonce[:]), waiting: make(map[event.Handle]waiter),
		ended: make(chan struct{}, 1),
	}
}

// Invoke makes a call, and waits for its answer: until the timeout, or the end of ctx. It returns an error only for a request that breaks
// the bounds, an [ErrRequest].
func (l *Lane) Invoke(ctx context.Context, r Request) (Answer, error) {
	if err := r.check(); err != nil {
		l.metrics.refused.WithLabelValues(badRequest).Inc()
		return Answer{}, err
	}
	if r.Timeout == 0 {
		r.Timeout = TimeoutDefault
	}
	begun := l.now()
	a := l.invoke(ctx, &r, begun)
	l.metrics.answered(a.Outcome, l.now().Sub(begun))
	return a, nil
}

func (l *Lane) invoke(ctx context.Context, r *Request, now clock.Instant) Answer {
	answers := make(caller, 1)
	serial, no := l.admitCall(r, answers)
	if no != nil {
		return *no
	}
	handle := event.NewCallHandle(serial)
	defer l.endCall(handle, len(r.Payload))
	call := &event.Event{
		Handle: handle, ID: event.CallMessageID(r.Key, r.ID, l.nonce+serial), Key: r.Key, Partition: partition.HashOf(string(r.Key)).Partition(),
		Payload: r.Payload, Call: &event.Call{Method: r.Method, ID: r.ID, Deadline: now.Add(r.Timeout), Path: r.Path},
	}
	if r.Traceparent != "" {
		call.Properties = []event.Property{{Name: "traceparent", Value: r.Traceparent}}
	}
	l.sender.Call(call)

	timeout := time.NewTimer(r.Timeout + OwnerGrace)
	defer timeout.Stop()
	select {
	case a := <-answers:
		return a
	case <-ctx.Done():
	case <-timeout.C:
	}
	l.sender.GiveUp(handle)
	select {
	case a := <-answers:
		return a
	case <-time.After(OwnerGrace): // it does not come to this: GiveUp brings the verdict
		return Answer{Reply: event.Reply{Outcome: event.CallUnknown}, Text: "the call has no answer"}
	}
}

const tooManyHere = "too many calls of this router's callers wait"

// refused returns the answer to a call that no owner was asked for: another call may succeed in a second.
func refused(code, why string) Answer {
	return Answer{Reply: event.Reply{Outcome: event.CallNotRun, Code: code}, Text: why, RetryAfter: time.Second}
}

// leavingAnswer is the answer to a caller that should call another router, at once.
func leavingAnswer() *Answer {
	a := refused(event.CodeLeaving, "this router leaves its group: ask another one")
	a.RetryAfter = 0
	return &a
}

// admitCall admits a call. It returns the answer instead if the router leaves or has no room.
func (l *Lane) admitCall(r *Request, w waiter) (serial uint64, no *Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	full := refused(event.CodeOverloaded, tooManyHere)
	switch {
	case l.leaving.Load() && len(r.Path) == 0:
		l.refuse(leavingGroup)
		return 0, leavingAnswer()
	case l.calls >= l.config.CallsMax: // reservations last long and have their own bound
		l.refuse(limitCalls)
		return 0, &full
	case !l.hasRoom(len(r.Payload)):
		l.refuse(limitBytes)
		return 0, &full
	}
	l.last++
	l.calls++
	l.bytes += len(r.Payload)
	l.waiting[event.NewCallHandle(l.last)] = w
	return l.last, nil
}

// endCall frees the place of a call.
func (l *Lane) endCall(h event.Handle, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, h)
	l.bytes -= bytes
	l.calls--
	signal.Set(l.ended)
}

// hasRoom reports whether a payload has room within CallsBytesMax. If it is the only one it always has. The lock is held.
func (l *Lane) hasRoom(bytes int) bool {
	return l.bytes == 0 || l.bytes+bytes <= l.config.CallsBytesMax
}

// takeRoom takes room for a payload that is still to come, if there is any.
func (l *Lane) takeRoom(bytes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hasRoom(bytes) {
		l.refuse(limitBytes)
		return false
	}
	l.bytes += bytes
	return true
}

// freeRoom frees the room that takeRoom has taken.
func (l *Lane) freeRoom(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes -= bytes
}

// Answered takes the verdicts on calls. Verdicts without a waiter are ignored: the caller has given up.
func (l *Lane) Answered(verdicts []event.Verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range verdicts {
		v := &verdicts[i]
		if w := l.waiting[v.Handle]; w != nil && w.hear(v) {
			delete(l.waiting, v.Handle)
		}
	}
}

// Renewed takes the owners' answers to renewals.
func (l *Lane) Renewed(answers []event.Renewal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range answers {
		if w := l.waiting[answers[i].Handle]; w != nil {
			w.renewed(&answers[i])
		}
	}
}

// AnswerOf converts a verdict to the answer for the caller.
func AnswerOf(v *event.Verdict) Answer {
	d := v.DetailOrZero()
	switch {
	case v.Kind == event.Answered && d.Reply != nil:
		return Answer{Reply: *d.Reply, Text: d.Reason, RetryAfter: d.Delay}
	case v.Kind == event.Done:
		return Answer{Reply: event.Reply{Outcome: event.CallDoneBefore}}
	case v.Kind == event.Rejected: // the owner says that the key is in another partition
		return Answer{Reply: event.Reply{Outcome: event.CallNotRun, Code: event.CodeUnreachable}, Text: d.Reason}
	}
	return Answer{Reply: event.Reply{Outcome: event.CallUnknown}, Text: "the owner of the key answered " + v.Kind.String()}
}
