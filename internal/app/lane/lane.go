package lane

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// The timeouts of calls.
const (
	TimeoutDefault = 10 * time.Second
	TimeoutMax     = 10 * time.Minute

	// OwnerGrace is how long the owner's answer is waited for after the timeout: it knows better than this node whether the call has run.
	OwnerGrace = 100 * time.Millisecond
)

// Config bounds the calls that are made at one node.
type Config struct {
	// CallsMax bounds the calls that wait for their answers. A further one is refused as overloaded.
	CallsMax int `min:"1"`
	// CallsBytesMax bounds the bytes of the payloads of such calls. A call that would exceed it is refused as overloaded.
	CallsBytesMax int `unit:"bytes" min:"1MiB"`
	// ReservationsMax bounds the reservations that are held or waited for. A further one is refused as overloaded.
	ReservationsMax int `min:"1"`
}

// DefaultConfig returns the settings for production.
func DefaultConfig() Config {
	return Config{CallsMax: 10_000, CallsBytesMax: 32 << 20, ReservationsMax: 1000}
}

// Sender sends calls to the owners of their keys.
type Sender interface {
	// Call sends a call. [Lane.Answered] gets its verdict, once.
	Call(call *event.Event)
	// GiveUp ends a call: Answered gets its verdict before GiveUp returns, unless it had one.
	GiveUp(call event.Handle)
	// RenewReservation asks the owner of a reservation for new permission. [Lane.Renewed] gets the answer, if one comes.
	RenewReservation(r event.Renewal)
	// ForgetReservation ends a reservation at this node alone, so that its holder may come back for it through another one.
	ForgetReservation(h event.Handle)
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

// ErrRequest is wrapped by the errors about requests that no owner would take.
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

// Answer is what became of a call.
type Answer struct {
	event.Reply
	Text       string        // why there is no reply
	RetryAfter time.Duration // CallNotRun: when to call again; 0: as the caller likes
}

// Lane makes calls.
type Lane struct {
	config  Config
	sender  Sender
	now     func() clock.Instant
	metrics *Metrics
	nonce   uint64
	shared  bool // reservations are refused: ownership is not exclusive

	mu      sync.Mutex // guards the fields below
	last    uint64     // serial number
	held    int        // reservations, granted or not
	waiting map[event.Handle]waiter
	bytes   int
}

// waiter is who waits for the verdicts on a call. Its methods are called under the lock, and must not block.
type waiter interface {
	// hear takes a verdict. It reports whether no more are wanted.
	hear(v *event.Verdict) (last bool)
	renewed(r *event.Renewal)
}

// caller waits for one answer.
type caller chan Answer

func (c caller) hear(v *event.Verdict) (last bool) {
	c <- AnswerOf(v) // it has room for the one
	return true
}

func (caller) renewed(*event.Renewal) {}

// New returns a Lane. now reads the lease clock.
func New(config Config, sender Sender, now func() clock.Instant, metrics *Metrics) *Lane {
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails
	return &Lane{
		config: config, sender: sender, now: now, metrics: metrics, nonce: binary.BigEndian.Uint64(nonce[:]), waiting: make(map[event.Handle]waiter),
	}
}

// Invoke makes a call, and waits for its answer: until the timeout, or the end of ctx. It returns an error only for a request that breaks
// the bounds, an [ErrRequest].
func (l *Lane) Invoke(ctx context.Context, r Request) (Answer, error) {
	if err := r.check(); err != nil {
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
	serial, ok := l.enter(len(r.Payload), answers)
	if !ok {
		return refused(event.CodeOverloaded, tooManyHere)
	}
	handle := event.NewCallHandle(serial)
	defer l.leave(handle, len(r.Payload))
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
	default: // never
		return Answer{Reply: event.Reply{Outcome: event.CallUnknown}, Text: "the call has no answer"}
	}
}

const tooManyHere = "too many calls of this router's callers wait"

func refused(code, why string) Answer {
	return Answer{Reply: event.Reply{Outcome: event.CallNotRun, Code: code}, Text: why, RetryAfter: time.Second}
}

// enter admits a call, if there is room.
func (l *Lane) enter(bytes int, w waiter) (serial uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= l.config.CallsMax || !l.hasRoom(bytes) {
		return 0, false
	}
	l.last++
	l.bytes += bytes
	l.waiting[event.NewCallHandle(l.last)] = w
	return l.last, true
}

func (l *Lane) leave(h event.Handle, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, h)
	l.bytes -= bytes
}

func (l *Lane) hasRoom(bytes int) bool {
	return l.bytes == 0 || l.bytes+bytes <= l.config.CallsBytesMax
}

// hold takes room for a payload that is still to come, if there is any.
func (l *Lane) hold(bytes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hasRoom(bytes) {
		return false
	}
	l.bytes += bytes
	return true
}

// letGo gives such room back.
func (l *Lane) letGo(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes -= bytes
}

// Waiting returns how many calls wait for their answers.
func (l *Lane) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Answered takes the verdicts on calls. Those that nobody waits for are ignored.
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

// AnswerOf returns the answer that a verdict is.
func AnswerOf(v *event.Verdict) Answer {
	d := v.DetailOrZero()
	switch {
	case v.Kind == event.Answered && d.Reply != nil:
		return Answer{Reply: *d.Reply, Text: d.Reason, RetryAfter: d.Delay}
	case v.Kind == event.Done:
		return Answer{Reply: event.Reply{Outcome: event.CallDoneBefore}}
	case v.Kind == event.Rejected: // its owner says that it is of another partition
		return Answer{Reply: event.Reply{Outcome: event.CallNotRun, Code: event.CodeUnreachable}, Text: d.Reason}
	}
	return Answer{Reply: event.Reply{Outcome: event.CallUnknown}, Text: "the owner of the key answered " + v.Kind.String()}
}
