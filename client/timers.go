package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/event"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// Timer describes an event that a router published: one that a handler has set with [Event.After], or that was published with [Lane.Send].
type Timer struct {
	// Name is the name that the sender gave it, "" for none.
	Name string
	// Due is the time at which it was due, by the clocks of the routers: the handler does not run earlier.
	Due time.Time
}

// TimersMax is the number of timers that the handler of one event may set.
const TimersMax = 100

// timer is a timer that a handler has set.
type timer struct {
	after   time.Duration
	name    string
	payload []byte
}

// timers holds the timers that the handler of an event has set, and the error of a bad one.
type timers struct {
	set []timer
	err error
}

// After sets a timer: after d the handler gets an event of the same key, with this payload and a [Timer] of this name,
// at the owner of the key at that time. Timers are durable: when the handler has returned nil, they are published, and
// only then does the event count as done. If the handler fails, they are dropped. If it runs again for the same event,
// the n-th timer of the new run counts as the n-th of the earlier run.
//
// A timer with d of 0 or less, as time.Until may return when a handler runs again, is due immediately. A timer cannot be cancelled: let its handler
// check whether it is still needed. A name of more than 128 bytes, a payload of more than 1 MiB, a time of more than
// 366 days, or more than [TimersMax] timers fail the event. Call it before the handler returns, from one
// goroutine: a later timer is not set, and the log says so.
func (e *Event) After(d time.Duration, name string, payload []byte) {
	if e.run.over() {
		r := e.run.stream.runner
		if n := r.lateTimers.more(r.clock.Now()); n > 0 {
			r.log.Warn("a timer is not set, since the handler had returned before", "message_id", e.ID.String(), "attempt", e.Attempt, "timers", n)
		}
		return
	}
	if e.run.timers == nil {
		e.run.timers = new(timers)
	}
	t := e.run.timers
	sent := event.Sent{Key: event.Key(e.Key), Name: name}
	switch err := sent.Check(0, len(payload), nil); {
	case t.err != nil:
	case err != nil:
		t.err = fmt.Errorf("client: timer %.80q: %w", name, err)
	case d > event.SentAfterMax:
		t.err = fmt.Errorf("client: timer %.80q after %v: want at most %v", name, d, event.SentAfterMax)
	case len(t.set) == TimersMax:
		t.err = fmt.Errorf("client: more than %d timers of one event", TimersMax)
	default:
		// A handler that runs again, much later, may ask for a time that has passed by then: an error would fail its event forever.
		t.set = append(t.set, timer{max(0, d), name, payload})
	}
}

// sendTimers publishes the timers that the handler of an event has set.
func (r *runner) sendTimers(e *Event) error {
	t := e.run.timers
	if t.err != nil {
		return t.err
	}
	group, ctx := errgroup.WithContext(&e.run)
	group.SetLimit(8)
	for i, one := range t.set {
		group.Go(func() error {
			_, err := r.send(ctx, e.run.stream.conn, &lanev1.SendRequest{
				Key: []byte(e.Key), Payload: one.payload, Name: one.name, AfterMs: uint64(one.after.Milliseconds()), Id: timerID(e.ID, i),
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("the timers are not set: %w", err)
	}
	return nil
}

// timerID returns the id of the nth timer of an event or a call: in every run, and from every SDK, the same.
func timerID(id MessageID, n int) string {
	return fmt.Sprintf("after/%d:%d:%d:%d/%d", id.Ledger, id.Entry, id.TopicPartition, id.Batch, n)
}

// The errors of [Lane.Send].
var (
	// ErrNotSent: the event was not published. It can be sent again.
	ErrNotSent = errors.New("client: the event was not published")
	// ErrMaybeSent: the event may have been published. Only an event with an id can be sent again safely.
	ErrMaybeSent = errors.New("client: the event may have been published")
)

// A SendOption configures one event of [Lane.Send].
type SendOption func(*lanev1.SendRequest)

// WithSendAfter makes the event due after a time, at most 366 days.
func WithSendAfter(d time.Duration) SendOption {
	return func(r *lanev1.SendRequest) { r.AfterMs, r.AtMs = uint64(max(0, d.Milliseconds())), 0 }
}

// WithSendAt makes the event due at a time. A time in the past is due immediately.
func WithSendAt(t time.Time) SendOption {
	return func(r *lanev1.SendRequest) { r.AfterMs, r.AtMs = 0, max(1, t.UnixMilli()) }
}

// WithSendName gives the event a name, see [Timer].
func WithSendName(name string) SendOption { return func(r *lanev1.SendRequest) { r.Name = name } }

// WithSendID gives the event an id, up to 256 bytes: another event with the same key and id counts as the same event for
// as long as the owner of the key remembers it.
func WithSendID(id string) SendOption { return func(r *lanev1.SendRequest) { r.Id = id } }

// WithSendProperties gives the event properties, at most 64.
func WithSendProperties(properties map[string]string) SendOption {
	return func(r *lanev1.SendRequest) { r.Properties = properties }
}

// sendTimeoutDefault is the time for which Send tries if its context has no deadline. The router itself waits 30 seconds for the broker.
const sendTimeoutDefault = 35 * time.Second

// Send publishes an event of a key, and returns its id when the broker has it. The handler of the key's events gets it,
// with a [Timer]: at once, or when it is due. The application needs neither a producer nor rights at the broker. The
// payload has at most 1 MiB. The error is of the kind [ErrNotSent] or [ErrMaybeSent]. It takes 35 seconds at most if
// the context has no deadline.
func (l *Lane) Send(ctx context.Context, key string, payload []byte, opts ...SendOption) (MessageID, error) {
	r := &lanev1.SendRequest{Key: []byte(key), Payload: payload}
	for _, opt := range opts {
		opt(r)
	}
	if trace := l.traceparent(ctx); trace != "" {
		properties := map[string]string{"traceparent": trace}
		maps.Copy(properties, r.GetProperties())
		r.Properties = properties
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, sendTimeoutDefault)
		defer cancel()
	}
	return l.options.send(ctx, l.conn, r)
}

// send publishes one event.
func (o *options) send(ctx context.Context, conn grpc.ClientConnInterface, r *lanev1.SendRequest) (MessageID, error) {
	if r.GetAfterMs() > math.MaxInt64/uint64(time.Millisecond) {
		return MessageID{}, fmt.Errorf("%w: due too far in the future", ErrNotSent)
	}
	if err := checkSize(r, len(r.GetPayload())); err != nil {
		return MessageID{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	texts := []string{r.GetName(), r.GetId()}
	for name, value := range r.GetProperties() {
		texts = append(texts, name, value)
	}
	if err := checkText(texts...); err != nil {
		return MessageID{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	ctx, err := o.authorized(ctx)
	if err != nil {
		return MessageID{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	request, answer := func() proto.Message { return r }, new(lanev1.SendResponse)
	tried, err := repeatUnary(ctx, conn, lanev1.LaneService_Send_FullMethodName, request, answer, 100*time.Millisecond)
	switch code := status.Code(err); {
	case err == nil:
	case tried.foundNoRoom(ctx):
		return MessageID{}, fmt.Errorf("%w: %w: %w", ErrNotSent, errNoRoom, context.Cause(ctx))
	case !tried.sent && !isRefusal(err):
		return MessageID{}, fmt.Errorf("%w: %w: %s", ErrNotSent, ErrUnreachable, status.Convert(err).Message())
	case isRefusal(err), code == codes.FailedPrecondition, code == codes.ResourceExhausted, code == codes.Unauthenticated:
		return MessageID{}, fmt.Errorf("%w: %s", ErrNotSent, status.Convert(err).Message())
	default:
		return MessageID{}, fmt.Errorf("%w: %s", ErrMaybeSent, status.Convert(err).Message())
	}
	id, err := event.ParseMessageID(answer.GetMessageId())
	if err != nil {
		return MessageID{}, fmt.Errorf("%w: the router answered %q", ErrMaybeSent, answer.GetMessageId())
	}
	return MessageID{Ledger: id.Ledger, Entry: id.Entry, Batch: int(id.Batch), TopicPartition: int(id.TopicPartition)}, nil
}
