package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// Lane calls handlers of keys, through one router of the group: see [Dial]. Its methods are safe for concurrent use.
type Lane struct {
	options options
	conn    *connections
	service lanev1.LaneServiceClient
}

// Dial returns a Lane through the router at endpoint, which is as for [Run]. It connects with the first call, and again whenever the
// connection breaks. Of the options, WithDialer, WithLogger, WithTLS and WithTokenFile count. Errors are of the kind [ErrArgument].
func Dial(endpoint string, opts ...Option) (*Lane, error) {
	r := &runner{options: defaults()}
	for _, opt := range opts {
		opt(&r.options)
	}
	r.instrument()
	at, err := parseEndpoint(endpoint)
	if err = errors.Join(err, r.options.validate()); err != nil {
		return nil, err
	}
	r.endpoint = at
	r.options.warnOfPlainText(at)
	conn, err := newConnections(r.options.clock.Now, func() (*grpc.ClientConn, error) {
		return r.dialRouter(grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: grpcbackoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: connectMax,
		}))
	})
	if err != nil {
		return nil, refusal(err)
	}
	return &Lane{options: r.options, conn: conn, service: lanev1.NewLaneServiceClient(conn)}, nil
}

// Close ends the connection. Calls that the router may have return an error of the kind [ErrUnknown].
func (l *Lane) Close() error { return l.conn.Close() }

// The kinds of a [CallError].
var (
	// ErrCallFailed: the handler has returned an error, or panicked.
	ErrCallFailed = errors.New("client: the call failed")
	// ErrNotRun: the call has not run, and never will. It can be repeated.
	ErrNotRun = errors.New("client: the call has not run")
	// ErrUnknown: the call may have run, and may still run until its timeout. Only a call with an id can be repeated safely.
	ErrUnknown = errors.New("client: the call may have run")
	// ErrDoneBefore: a call with this id was answered before, and its reply is no longer known.
	ErrDoneBefore = errors.New("client: the call was already done")
)

// The codes of a [CallError] of the kind ErrNotRun.
const (
	CodeTimeout     = event.CodeTimeout     // its timeout passed before it could begin
	CodeOverloaded  = event.CodeOverloaded  // too many calls wait, of the key or at a router, or the connection had no room
	CodeNoHandler   = event.CodeNoHandler   // the worker of the key has no handler of that method
	CodeCycle       = event.CodeCycle       // a handler of the same key waits for it
	CodeParked      = event.CodeParked      // an operator has parked the key
	CodeTooLarge    = event.CodeTooLarge    // the payload does not fit
	CodeLeaving     = event.CodeLeaving     // this router leaves its group: another one may take the call
	CodeUnreachable = event.CodeUnreachable // no router can be reached, or the router cannot reach the owner of the key
)

// CallError says why a call has no reply. errors.Is matches its kind and its cause.
type CallError struct {
	Kind       error         // ErrCallFailed, ErrNotRun, ErrUnknown or ErrDoneBefore
	Code       string        // ErrCallFailed: the handler's, see [FailCall]. ErrNotRun: one of the codes above
	Text       string        // in words
	RetryAfter time.Duration // ErrNotRun: the time to wait before another call; 0: you decide
	Err        error         // the cause in this process, nil if the router has answered
}

// Error returns the kind, the code and the text.
func (e *CallError) Error() string {
	text := e.Kind.Error()
	if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// Unwrap returns the kind and the cause.
func (e *CallError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// A CallOption configures one call.
type CallOption func(*lanev1.InvokeRequest)

// WithCallID gives the call an id, up to 128 bytes. The call then runs at least once within its timeout, even if the owner of the key
// dies, unless it is refused; and a repeat with the same key and id gets the reply of the first one, or [ErrDoneBefore].
func WithCallID(id string) CallOption { return func(r *lanev1.InvokeRequest) { r.Id = id } }

// WithCallTimeout sets how long the call may take: 1 ms to 10 minutes, 10 seconds by default, and never longer than the deadline of the
// context.
func WithCallTimeout(d time.Duration) CallOption {
	return func(r *lanev1.InvokeRequest) { r.TimeoutMs = uint64(max(1, d.Milliseconds())) }
}

// connectMax limits an attempt to connect. Reservations limit it by openGrace, which comes first.
const connectMax = 10 * time.Second

// answerGrace limits the wait for the router's answer after the timeout of a call.
const answerGrace = time.Second

// within returns the sum of a time and a grace. The router refuses calls of more than 10 minutes and waits of more than
// an hour, so a much longer time must only not overflow here.
func within(waitMs uint64, grace time.Duration) time.Duration {
	return time.Duration(min(waitMs, uint64(24*time.Hour/time.Millisecond)))*time.Millisecond + grace
}

// timeoutDefault is the timeout of a call without an option.
const timeoutDefault = 10 * time.Second

// The largest payload, and the largest request that a router reads.
const (
	payloadMax = event.CallPayloadMax
	requestMax = 2 << 20
)

// checkSize returns an error for a request that is too large. gRPC would refuse it with the status of a router that has
// accepted nothing, and the SDK would repeat it forever.
func checkSize(r proto.Message, payload int) error {
	if payload > payloadMax {
		return fmt.Errorf("a payload of %d bytes: want at most %d", payload, payloadMax)
	}
	if size := proto.Size(r); size > requestMax {
		return fmt.Errorf("a request of %d bytes: want at most %d", size, requestMax)
	}
	return nil
}

// checkText returns an error for a text that is not UTF-8. gRPC cannot encode it, and gRPC's error does not say that
// nothing was sent.
func checkText(texts ...string) error {
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return fmt.Errorf("%.80q is not valid UTF-8", text)
		}
	}
	return nil
}

// Invoke calls the handler that is registered for method at the owner of key, see [WithCall]. It runs when no event and no other call of
// the key does, before events that wait. The error is nil or a [*CallError].
//
// A router takes some 100 calls and reservations at a time on one connection. Further ones wait for room within their
// timeout; if they get none, the code is [CodeOverloaded]: use another Lane.
//
// Pass the context of a handler if you call from one: a call that would wait for the caller's own key is refused with the code
// [CodeCycle].
func (l *Lane) Invoke(ctx context.Context, key, method string, payload []byte, opts ...CallOption) ([]byte, error) {
	r := &lanev1.InvokeRequest{Key: []byte(key), Method: method, Payload: payload, Path: pathOf(ctx), TimeoutMs: uint64(timeoutDefault / time.Millisecond)}
	for _, opt := range opts {
		opt(r)
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.TimeoutMs = min(r.TimeoutMs, uint64(max(1, time.Until(deadline).Milliseconds()))) //nolint:forbidigo // wall time, as in contexts
	}
	r.Traceparent = l.traceparent(ctx)
	if err := checkSize(r, len(payload)); err != nil {
		return nil, &CallError{Kind: ErrNotRun, Code: CodeTooLarge, Text: err.Error()}
	}
	if err := checkText(r.GetMethod(), r.GetId()); err != nil {
		return nil, &CallError{Kind: ErrNotRun, Text: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, within(r.TimeoutMs, answerGrace))
	defer cancel()
	ctx, err := l.options.authorized(ctx)
	if err != nil {
		return nil, &CallError{Kind: ErrNotRun, Text: err.Error(), Err: err}
	}
	end := l.options.clock.Now().Add(within(r.TimeoutMs, 0))
	request := func() proto.Message { // each attempt has the rest of the timeout
		r.TimeoutMs = uint64(max(1, end.Sub(l.options.clock.Now()).Milliseconds()))
		return r
	}
	answer := new(lanev1.InvokeResponse)
	tried, err := repeatUnary(ctx, l.conn, lanev1.LaneService_Invoke_FullMethodName, request, answer, 20*time.Millisecond)
	if err != nil {
		return nil, notAnswered(ctx, err, tried)
	}
	failure := &CallError{Code: answer.GetCode(), Text: answer.GetText(), RetryAfter: time.Duration(answer.GetRetryAfterMs()) * time.Millisecond}
	switch answer.GetOutcome() {
	case lanev1.Outcome_OUTCOME_REPLIED:
		return answer.GetReply(), nil
	case lanev1.Outcome_OUTCOME_FAILED:
		failure.Kind = ErrCallFailed
	case lanev1.Outcome_OUTCOME_NOT_RUN:
		failure.Kind = ErrNotRun
	case lanev1.Outcome_OUTCOME_DONE_BEFORE:
		failure.Kind = ErrDoneBefore
	default:
		failure.Kind = ErrUnknown
	}
	return nil, failure
}

// authorized returns ctx with the token that the router requires, if there is one.
func (o *options) authorized(ctx context.Context) (context.Context, error) {
	token, err := o.token()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return ctx, err
}

// attempt is the progress of an attempt to ask a router.
type attempt struct {
	connected bool // it had a connection
	sent      bool // the router may have the request
}

// foundNoRoom reports whether the caller's time was up while the attempt waited for room on its connection.
func (a attempt) foundNoRoom(ctx context.Context) bool {
	return a.connected && !a.sent && ctx.Err() != nil
}

// repeatUnary makes attempts, the pauses between them doubled from 1 ms to pauseMax, while the router accepts nothing:
// too many calls are just beginning, or too many events wait for the broker.
func repeatUnary(ctx context.Context, conn grpc.ClientConnInterface, method string, request func() proto.Message, answer proto.Message, pauseMax time.Duration) (attempt, error) {
	pauses := backoff.Backoff{Min: time.Millisecond, Max: pauseMax}
	for {
		tried, err := unary(ctx, conn, method, request, answer)
		if !tried.sent || status.Code(err) != codes.ResourceExhausted || backoff.Sleep(ctx, pauses.Next()) != nil {
			return tried, err
		}
	}
}

// unary makes one attempt of a method without streams. The request is made when there is a connection with room for it:
// a router takes a number of calls and reservations at a time on each.
func unary(ctx context.Context, conn grpc.ClientConnInterface, method string, request func() proto.Message, answer proto.Message) (attempt, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream in any case
	defer cancel()
	var connected connection
	lane, _ := conn.(*connections)
	var begun clock.Instant
	if lane != nil {
		begun = lane.now()
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{}, method, grpc.PerRPCCredentials(&connected))
	if err != nil {
		// The next one gets another attempt to connect, unless this one has had little time.
		if lane != nil && !connected.Load() && status.Code(err) == codes.DeadlineExceeded && lane.now().Sub(begun) >= redialLeast {
			lane.unanswered(begun)
		}
		return attempt{connected: connected.Load()}, err
	}
	if err := s.SendMsg(request()); err != nil && !errors.Is(err, io.EOF) { // after io.EOF, RecvMsg has the error
		return attempt{connected: true, sent: true}, err
	}
	return attempt{connected: true, sent: true}, s.RecvMsg(answer)
}

// connection notes whether a call had a connection. gRPC asks for the credentials of a call once it has one, before it sends anything; the token
// is sent in another way.
type connection struct{ atomic.Bool }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (c *connection) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	c.Store(true)
	return nil, nil //nolint:nilnil // there is nothing to add
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (*connection) RequireTransportSecurity() bool { return false }

// errNoRoom ends an attempt that had a connection and was not sent.
var errNoRoom = errors.New("the connection had no free stream: other calls and reservations use them all")

// notAnswered returns the error of a call that the router has not answered.
func notAnswered(ctx context.Context, err error, tried attempt) error {
	kind := refusal(err)
	switch {
	case tried.foundNoRoom(ctx):
		return &CallError{Kind: ErrNotRun, Code: CodeOverloaded, Text: errNoRoom.Error(), Err: context.Cause(ctx)}
	case !tried.sent && ctx.Err() != nil:
		return &CallError{Kind: ErrNotRun, Code: CodeUnreachable, Text: "no connection to the router: " + context.Cause(ctx).Error(), Err: context.Cause(ctx)}
	case !tried.sent:
		return &CallError{Kind: ErrNotRun, Code: CodeUnreachable, Text: status.Convert(err).Message(), Err: kind}
	case ctx.Err() != nil && status.Code(err) != codes.ResourceExhausted:
		return &CallError{Kind: ErrUnknown, Text: context.Cause(ctx).Error(), Err: context.Cause(ctx)}
	case status.Code(err) == codes.ResourceExhausted:
		return &CallError{Kind: ErrNotRun, Code: CodeOverloaded, Text: status.Convert(err).Message(), Err: kind}
	case errors.Is(kind, ErrUnauthenticated), isRefusal(err):
		return &CallError{Kind: ErrNotRun, Text: status.Convert(err).Message(), Err: kind}
	}
	return &CallError{Kind: ErrUnknown, Text: status.Convert(err).Message(), Err: kind}
}

// pathOf returns the keys whose handlers wait for a call with this context.
func pathOf(ctx context.Context) []uint64 {
	e, _ := ctx.Value(handlingKey{}).(*Event)
	if e == nil {
		return nil
	}
	var path []uint64
	if c := e.run.call; c != nil {
		for _, key := range c.path {
			path = append(path, uint64(key))
		}
	}
	return slices.Clip(append(path, uint64(partition.HashOf(e.Key))))
}

// isRefusal reports whether a status proves that no router has begun the request.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied:
		return true
	}
	return false
}

// traceparent returns the trace context of ctx, "" without one.
func (l *Lane) traceparent(ctx context.Context) string {
	if l.options.propagator == nil {
		return ""
	}
	carrier := propagation.MapCarrier{}
	l.options.propagator.Inject(ctx, carrier)
	return carrier["traceparent"]
}
