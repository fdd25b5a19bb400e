package client_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
	"github.com/ringfence/router/internal/testing/written"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func done(context.Context, *client.Event) error { return nil }

// An event passes with all its fields over every kind of connection.
func TestEveryTransport(t *testing.T) {
	sent := &client.Event{
		Key: "user-\xff", Payload: []byte("payload"), Topic: "persistent://public/default/orders",
		Properties: []client.Property{{Name: "source", Value: "web"}, {Name: "TraceParent", Value: "00-1-2-01"}},
		ID:         client.MessageID{Ledger: 7, Entry: 8, Batch: -1, TopicPartition: 3}, PublishTime: time.UnixMilli(1_763_000_000_123),
		EventTime: time.UnixMilli(5), Attempt: 3, Redelivery: 2, Fence: client.Fence{Token: 1 << 60, Turn: 1 << 40},
	}
	handler := func(_ context.Context, e *client.Event) error {
		source, _ := e.Property("source")
		_, absent := e.Property("absent")
		got := []any{e.Key, string(e.Payload), e.Topic, e.Properties, e.ID, e.PublishTime, e.EventTime, e.Attempt, e.Redelivery, e.FencingToken, e.Fence, source, absent, e.Traceparent(), e.ID.String()}
		want := []any{sent.Key, string(sent.Payload), sent.Topic, sent.Properties, sent.ID, sent.PublishTime, sent.EventTime, 3, 2, int64(1 << 60), sent.Fence, "web", false, "00-1-2-01", "7:8:3:-1"}
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	}
	transports := map[string]func(t *testing.T, r *clienttest.Router){
		"memory": func(_ *testing.T, r *clienttest.Router) { r.Start(handler) },
		"tcp":    func(t *testing.T, r *clienttest.Router) { serve(t, r, "tcp", "127.0.0.1:0", "", handler) },
		"unix": func(t *testing.T, r *clienttest.Router) {
			serve(t, r, "unix", filepath.Join(t.TempDir(), "s"), "unix://", handler)
		},
		"unix, as app.listen has it": func(t *testing.T, r *clienttest.Router) {
			serve(t, r, "unix", filepath.Join(t.TempDir(), "s"), "unix:", handler)
		},
	}
	for name, start := range transports {
		t.Run(name, func(t *testing.T) {
			r := clienttest.NewRouter(t)
			start(t, r)
			if got := r.Deliver(sent).Outcome(); got.Kind != clienttest.Done {
				t.Error(got)
			}
		})
	}
}

// serve runs the handler over a real socket, whose address is in the environment.
func serve(t *testing.T, r *clienttest.Router, network, address, scheme string, handler client.Handler) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	r.Serve(l)
	t.Setenv(client.EndpointEnv, scheme+l.Addr().String())
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := client.Run(ctx, "", handler, r.WithClock(), client.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
}

func TestOneAtATimePerKeyAndManyKeysAtOnce(t *testing.T) {
	const keys, each = 50, 20
	var running, handled [keys]atomic.Int32
	var atOnce, most atomic.Int32
	barrier := make(chan struct{}) // closed once every key has a running handler
	r := clienttest.NewRouter(t)
	r.Start(func(_ context.Context, e *client.Event) error {
		k := e.Payload[0]
		if running[k].Add(1) != 1 {
			t.Error("two handlers of one key run")
		}
		if n := atOnce.Add(1); n == keys && most.Swap(n) != n {
			close(barrier)
		}
		<-barrier
		if got := handled[k].Add(1); got != int32(e.Payload[1])+1 {
			t.Errorf("event %d of its key came as number %d", e.Payload[1], got)
		}
		atOnce.Add(-1)
		running[k].Add(-1)
		return nil
	})
	var all []*clienttest.Delivery
	for i := range each {
		for k := range keys {
			all = append(all, r.Deliver(&client.Event{Key: fmt.Sprint(k), Payload: []byte{byte(k), byte(i)}}))
		}
	}
	for _, d := range all {
		if got := d.Outcome(); got.Kind != clienttest.Done {
			t.Fatalf("outcome = %v, want done", got)
		}
	}
}

// One goroutine runs several handlers that return at once. If one of them blocks, the later
// events must run elsewhere, and the earlier results must be sent.
func TestBlockedHandlerDelaysNoOtherEvent(t *testing.T) {
	r := clienttest.NewRouter(t)
	release := make(chan struct{})
	r.Start(func(_ context.Context, e *client.Event) error {
		if e.Payload[0] == 1 {
			<-release
		}
		return nil
	})
	var quick, stuck []*clienttest.Delivery
	for i := range 900 {
		e := &client.Event{Key: fmt.Sprint(i), Payload: []byte{0}}
		if i%7 == 3 {
			e.Payload[0] = 1
			stuck = append(stuck, r.Deliver(e))
			continue
		}
		quick = append(quick, r.Deliver(e))
	}
	for _, d := range quick {
		select {
		case <-d.Over():
		case <-time.After(time.Minute):
			close(release)
			t.Fatal("an event waited for one of another key")
		}
	}
	close(release)
	for _, d := range append(quick, stuck...) {
		if got := d.Outcome(); got.Kind != clienttest.Done {
			t.Fatalf("outcome = %v, want done", got)
		}
	}
}

func TestMaxInFlightBoundsHandlers(t *testing.T) {
	var running, most atomic.Int32
	r := clienttest.NewRouter(t)
	r.Start(func(context.Context, *client.Event) error {
		n := running.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		runtime.Gosched()
		running.Add(-1)
		return nil
	}, client.WithMaxInFlight(3))
	var all []*clienttest.Delivery
	for i := range 500 {
		all = append(all, r.Deliver(&client.Event{Key: fmt.Sprint(i)}))
	}
	for _, d := range all {
		d.Outcome()
	}
	if got := most.Load(); got < 1 || got > 3 {
		t.Errorf("up to %d handlers ran at once, want at most 3", got)
	}
}

// until waits for the context and returns why it ended.
func until(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestLostKeyCancelsItsHandlerAlone(t *testing.T) {
	r := clienttest.NewRouter(t)
	started, release := make(chan *client.Event, 2), make(chan struct{})
	var cause error
	r.Start(func(ctx context.Context, e *client.Event) error {
		if _, has := ctx.Deadline(); has {
			t.Error("the context has a deadline")
		}
		started <- e
		if e.Key == "kept" {
			<-release
			return ctx.Err()
		}
		child, cancel := context.WithTimeout(ctx, time.Hour) // as a driver would
		defer cancel()
		cause = until(child)
		return fmt.Errorf("write: %w", child.Err())
	})
	kept := r.Deliver(&client.Event{Key: "kept"})
	lost := r.Deliver(&client.Event{Key: "lost"})
	first := []*client.Event{<-started, <-started}
	for _, e := range first {
		if left := time.Until(e.LeaseUntil()); left < 30*time.Minute || left > time.Hour {
			t.Errorf("LeaseUntil is %v away, want most of the hour of this router's lease", left)
		}
	}
	r.Lose("lost")
	if got := lost.Outcome(); got.Kind != clienttest.Cancelled || !errors.Is(cause, client.ErrKeyLost) {
		t.Errorf("outcome = %v, cause %v; want cancelled, because the key was lost", got, cause)
	}
	close(release)
	if got := kept.Outcome(); got.Kind != clienttest.Done {
		t.Errorf("the other key: %v, want done", got)
	}
	var before int64
	for _, e := range first {
		before = max(before, e.FencingToken)
	}
	again := lost.Redeliver()
	if e := <-started; e.FencingToken <= before || e.Attempt != 1 {
		t.Errorf("token = %d after %d, attempt %d; want a higher token and no failure counted for a cancelled handler", e.FencingToken, before, e.Attempt)
	}
	r.Expire()
	if got := again.Outcome(); got.Kind != clienttest.Cancelled {
		t.Errorf("outcome after the lease ran out = %v, want cancelled", got)
	}
}

// The lease of this router is an hour, so only the timeout can cancel the handler.
func TestHandlerTimeoutCancelsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := clienttest.NewRouter(t, clienttest.WithHandlerTimeout(8*time.Second))
		var took time.Duration
		var cause error
		r.Start(func(ctx context.Context, e *client.Event) error {
			if e.Key == "stuck" {
				begin := time.Now()
				cause = until(ctx)
				took = time.Since(begin)
				return errors.New("the database hangs")
			}
			for range 6 {
				time.Sleep(4 * time.Second)
				if err := e.Progress(ctx); err != nil {
					return err
				}
			}
			return nil
		}, client.WithMaxInFlight(2))
		steady := r.Deliver(&client.Event{Key: "steady"})
		synctest.Wait()
		time.Sleep(time.Second) // so that the two do not end at the same instant
		stuck := r.Deliver(&client.Event{Key: "stuck"})
		got, want := stuck.Outcome(), clienttest.Outcome{Kind: clienttest.Retry, Reason: "the handler took longer than its timeout"}
		if got != want || !errors.Is(cause, client.ErrHandlerTimeout) {
			t.Errorf("outcome = %v, cause %v; want %v", got, cause, want)
		}
		if took < 7*time.Second || took > 10*time.Second {
			t.Errorf("the handler was cancelled after %v, want about 8 s", took)
		}
		if got := steady.Outcome(); got.Kind != clienttest.Done {
			t.Errorf("the handler that reports progress: %v, want done", got)
		}
	})
}

func TestNilAfterTheLeaseCountsAsDone(t *testing.T) {
	r := clienttest.NewRouter(t)
	started := make(chan struct{})
	r.Start(func(ctx context.Context, _ *client.Event) error {
		close(started)
		_ = until(ctx)
		return nil
	})
	d := r.Deliver(&client.Event{Key: "k"})
	<-started
	r.Expire()
	if got := d.Outcome(); got.Kind != clienttest.Done {
		t.Errorf("outcome = %v, want done: the handler returned nil", got)
	}
}

func TestErrWithoutDoneReportsTheLostKey(t *testing.T) {
	r := clienttest.NewRouter(t)
	var kept context.Context
	r.Start(func(ctx context.Context, e *client.Event) error {
		if ctx.Err() != nil || e.Progress(ctx) != nil {
			t.Error("cancelled from the start")
		}
		kept = ctx
		r.Expire()
		for ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if err := e.Progress(ctx); !errors.Is(err, client.ErrKeyLost) {
			t.Errorf("Progress = %v, want ErrKeyLost", err)
		}
		return context.Cause(ctx)
	})
	if got := r.Deliver(&client.Event{Key: "k"}).Outcome(); got.Kind != clienttest.Cancelled {
		t.Errorf("outcome = %v, want cancelled", got)
	}
	if !errors.Is(kept.Err(), context.Canceled) {
		t.Errorf("Err after the handler = %v, want Canceled", kept.Err())
	}
}

func TestBrokenStream(t *testing.T) {
	r := clienttest.NewRouter(t)
	started := make(chan struct{})
	var stuck atomic.Pointer[error]
	r.Start(func(ctx context.Context, e *client.Event) error {
		if e.Key != "stuck" {
			return nil
		}
		close(started)
		cause := until(ctx)
		stuck.Store(&cause)
		return cause
	})
	d := r.Deliver(&client.Event{Key: "stuck"})
	<-started
	r.Disconnect()
	// The SDK has reconnected, and other keys continue. The broken stream may have taken a
	// delivery, which is then not started or counts as running, so each key is tried once.
	for i := 0; ; i++ {
		other := r.Deliver(&client.Event{Key: fmt.Sprint("other ", i)})
		select {
		case <-other.Over():
		case <-time.After(time.Second):
			continue
		}
		if got := other.Outcome(); got.Kind == clienttest.Done {
			break
		} else if got.Kind != clienttest.NotStarted {
			t.Fatalf("another key after the reconnect: %v, want done", got)
		}
	}
	select {
	case <-d.Over():
		t.Fatalf("over while its handler may run: %v", d.Outcome())
	default:
	}
	if stuck.Load() != nil {
		t.Error("the handler was cut before its deadline")
	}
	r.Expire()
	if got := d.Outcome(); got.Kind != clienttest.Lost {
		t.Errorf("outcome = %v, want lost", got)
	}
	for stuck.Load() == nil { // within 50 ms
		time.Sleep(time.Millisecond)
	}
	if !errors.Is(*stuck.Load(), client.ErrKeyLost) {
		t.Errorf("cause = %v, want ErrKeyLost", *stuck.Load())
	}
}

// A handler that goes on after it has lost its key takes no place from those of the next stream.
func TestLostHandlerHoldsUpNoOtherEvent(t *testing.T) {
	synctest.Test(t, testLostHandlerHoldsUpNoOtherEvent)
}

func testLostHandlerHoldsUpNoOtherEvent(t *testing.T) {
	r := clienttest.NewRouter(t)
	started, release := make(chan struct{}), make(chan struct{})
	r.Start(func(_ context.Context, e *client.Event) error {
		if e.Key == "stuck" {
			close(started)
			<-release
		}
		return nil
	}, client.WithMaxInFlight(1))
	defer close(release)
	d := r.Deliver(&client.Event{Key: "stuck"})
	<-started
	r.Disconnect()
	r.Expire()
	if got := d.Outcome(); got.Kind != clienttest.Lost {
		t.Fatalf("outcome = %v, want lost", got)
	}
	for i := range 5 { // the broken stream may have taken one
		other := r.Deliver(&client.Event{Key: fmt.Sprint("other ", i)})
		select {
		case <-other.Over():
			if got := other.Outcome(); got.Kind == clienttest.Done {
				return
			}
		case <-time.After(time.Second):
		}
	}
	t.Error("no event of another key was handled, want one that is")
}

func TestPanicIsLoggedWithoutTheKey(t *testing.T) {
	var log written.Text
	r := clienttest.NewRouter(t)
	r.Start(func(_ context.Context, e *client.Event) error {
		if e.Attempt == 1 {
			panic("first")
		}
		return nil
	}, client.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	d := r.Deliver(&client.Event{Key: "secret-key"})
	if got := d.Redeliver().Outcome(); got.Kind != clienttest.Done {
		t.Errorf("second attempt = %v, want done", got)
	}
	if s := log.String(); !strings.Contains(s, "handler panicked") || !strings.Contains(s, "client_test.go") || strings.Contains(s, "secret-key") {
		t.Errorf("log = %s\nwant the panic with its stack and without the key", s)
	}
}

// TestFailuresAreLoggedByTheirType: once a second, without the text, which may hold parts of the event, and not what the handler has foreseen.
func TestFailuresAreLoggedByTheirType(t *testing.T) {
	synctest.Test(t, testFailuresAreLoggedByTheirType)
}

func testFailuresAreLoggedByTheirType(t *testing.T) {
	var log written.Text
	r := clienttest.NewRouter(t)
	failures := map[string]error{
		"retry": client.RetryAfter(errors.New("planted"), time.Second), "reject": client.Reject(errors.New("planted")),
		"wrapped": fmt.Errorf("planted: %w", net.ErrClosed), "plain": errors.New("planted"),
	}
	r.Start(func(_ context.Context, e *client.Event) error {
		if e.Key == "panics" {
			panic("planted")
		}
		return failures[e.Key]
	}, client.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	text := log.String
	for _, key := range []string{"retry", "reject"} {
		r.Deliver(&client.Event{Key: key}).Outcome()
	}
	if s := text(); strings.Contains(s, "handler failed") {
		t.Errorf("log = %s\nwant no line about what the handler has foreseen", s)
	}
	for _, key := range []string{"wrapped", "plain", "panics"} {
		r.Deliver(&client.Event{Key: key}).Outcome()
	}
	s := text()
	if !strings.Contains(s, `level=WARN msg="handler failed"`) || !strings.Contains(s, "error_type=poll.errNetClosing failures=1") || strings.Contains(s, "planted") {
		t.Errorf("log = %s\nwant the type of the first error, and no text", s)
	}
	if n := strings.Count(s, "handler failed") + strings.Count(s, "handler panicked"); n != 1 {
		t.Errorf("log = %s\nwant one line, and there are %d", s, n)
	}
}

// TestTimersSetTooLateAreLogged: nothing else would tell that they are lost.
func TestTimersSetTooLateAreLogged(t *testing.T) { synctest.Test(t, testTimersSetTooLateAreLogged) }

func testTimersSetTooLateAreLogged(t *testing.T) {
	var log written.Text
	r := clienttest.NewRouter(t)
	kept := make(chan *client.Event, 2)
	r.Start(func(ctx context.Context, e *client.Event) error {
		if e.Key == "context" {
			_ = ctx.Done() // it has a standard context then
		}
		kept <- e
		return nil
	}, client.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	for _, key := range []string{"plain", "context"} {
		r.Deliver(&client.Event{Key: key}).Outcome()
		e := <-kept
		e.After(0, "secret", nil)
		e.After(0, "secret", nil)
	}
	if s := log.String(); strings.Count(s, "a timer is not set") != 1 || strings.Contains(s, "secret") {
		t.Errorf("log = %s\nwant one line about four timers", s)
	}
	if sent := r.Sent(); len(sent) != 0 {
		t.Errorf("the router has %v", sent)
	}
}

// A typed nil is a non-nil error whose Error method panics.
type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

func TestErrorThatPanicsIsAFailure(t *testing.T) {
	r := clienttest.NewRouter(t)
	r.Start(func(_ context.Context, e *client.Event) error {
		if e.Attempt == 1 {
			return (*typedNil)(nil)
		}
		return nil
	})
	d := r.Deliver(&client.Event{Key: "k"})
	if got := d.Outcome(); got.Kind != clienttest.Retry || !strings.Contains(got.Reason, "nil pointer") {
		t.Errorf("outcome = %v, want retry with the panic as its reason", got)
	}
	if got := d.Redeliver().Outcome(); got.Kind != clienttest.Done {
		t.Errorf("second attempt = %v, want done", got)
	}
}

// panicsAgain panics with itself, which no text can be made of: package fmt gives up, too.
type panicsAgain struct{}

func (p panicsAgain) Error() string { panic(p) }

// RuntimeError makes it an error of the runtime.
func (panicsAgain) RuntimeError() {}

func TestErrorWithoutATextIsAFailure(t *testing.T) {
	for name, handler := range map[string]client.Handler{
		"returned": func(context.Context, *client.Event) error { return panicsAgain{} },
		"panic":    func(context.Context, *client.Event) error { panic(panicsAgain{}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := clienttest.NewRouter(t)
			r.Start(handler, client.WithLogger(slog.New(slog.DiscardHandler)))
			if got := r.Deliver(&client.Event{Key: "k"}).Outcome(); got.Kind != clienttest.Retry || !strings.Contains(got.Reason, "panicsAgain") {
				t.Errorf("outcome = %v, want retry with the type of the error", got)
			}
		})
	}
}

func TestHandlerThatEndsItsGoroutine(t *testing.T) { // as t.Fatal in a handler does
	r := clienttest.NewRouter(t)
	r.Start(func(_ context.Context, e *client.Event) error {
		if e.Attempt < 3 {
			runtime.Goexit()
		}
		return nil
	}, client.WithMaxInFlight(1))
	d := r.Deliver(&client.Event{Key: "k"})
	if got := d.Outcome(); got.Kind != clienttest.Retry {
		t.Errorf("outcome = %v, want retry", got)
	}
	if got := d.Redeliver().Redeliver().Outcome(); got.Kind != clienttest.Done {
		t.Errorf("third attempt = %v, want done: the pool has its goroutine back", got)
	}
}

func TestDrainWaitsForHandlers(t *testing.T) {
	r := clienttest.NewRouter(t)
	ctx, stop := context.WithCancel(t.Context())
	started := make(chan struct{}, 2)
	var running sync.WaitGroup
	running.Go(func() {
		err := r.Run(ctx, func(hctx context.Context, _ *client.Event) error {
			started <- struct{}{}
			<-ctx.Done()
			runtime.Gosched()
			return hctx.Err() // not ended by the end of Run's context
		})
		if err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	d, after := r.Deliver(&client.Event{Key: "k"}), r.Deliver(&client.Event{Key: "k"})
	<-started
	stop()
	running.Wait()
	if got := d.Outcome(); got.Kind != clienttest.Done {
		t.Errorf("outcome = %v, want done", got)
	}
	// The first result may go out before Run has noticed the end of ctx: then the router delivers the second event too. It
	// ends as not started, or its handler has begun and was waited for.
	select {
	case <-after.Over():
		want := clienttest.NotStarted
		if len(started) > 0 {
			want = clienttest.Done
		}
		if got := after.Outcome(); got.Kind != want {
			t.Errorf("outcome of the second event = %v, want %v", got, want)
		}
	default:
		if len(started) > 0 {
			t.Error("the second event began and has no outcome")
		}
	}
}

func TestDrainGrace(t *testing.T) {
	tests := map[string]struct {
		handler func(release <-chan struct{}) client.Handler
		err     error
		took    time.Duration
		outcome clienttest.Kind
	}{
		"a handler that heeds its context": {
			handler: func(<-chan struct{}) client.Handler {
				return func(ctx context.Context, _ *client.Event) error { return until(ctx) }
			},
			took: 5 * time.Second, outcome: clienttest.Cancelled,
		},
		"a handler that does not": {
			handler: func(release <-chan struct{}) client.Handler {
				return func(context.Context, *client.Event) error { <-release; return nil }
			},
			err: client.ErrDrainTimeout, took: 6 * time.Second, outcome: clienttest.Lost,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := clienttest.NewRouter(t)
				release := make(chan struct{})
				ctx, stop := context.WithCancel(t.Context())
				result := make(chan error, 1)
				var running sync.WaitGroup
				running.Go(func() { result <- r.Run(ctx, test.handler(release), client.WithDrainGrace(5*time.Second)) })
				d := r.Deliver(&client.Event{Key: "k"})
				time.Sleep(time.Second)
				begin := time.Now()
				stop()
				err := <-result
				if took := time.Since(begin); !errors.Is(err, test.err) || took < test.took || took > test.took+time.Second/2 {
					t.Errorf("Run = %v after %v, want %v after %v", err, took, test.err, test.took)
				}
				close(release)
				synctest.Wait() // until the router knows that the stream has ended: Expire renews the leases of those that live
				r.Expire()
				if got := d.Outcome(); got.Kind != test.outcome {
					t.Errorf("outcome = %v, want %v", got, test.outcome)
				}
				running.Wait()
			})
		})
	}
}

// runAbsent runs a worker whose router is absent. It returns the number of its attempts to connect, and what waits for its end.
func runAbsent(ctx context.Context, t *testing.T) (dials *atomic.Int32, running *sync.WaitGroup) {
	dials, running = new(atomic.Int32), new(sync.WaitGroup)
	refuse := func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		return nil, errors.New("connection refused")
	}
	running.Go(func() {
		if err := client.Run(ctx, "", done, clienttest.NewRouter(t).WithClock(), client.WithDialer(refuse), client.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	return dials, running
}

// The SDK connects again to a router that is absent, and to one that comes and goes.
func TestRunConnectsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		dials, running := runAbsent(ctx, t)
		time.Sleep(time.Minute)
		if n := dials.Load(); n < 20 || n > 200 {
			t.Errorf("%d attempts in a minute, want one every second or two", n)
		}
		stop()
		running.Wait()
	})
}

// registering is a context that counts the functions that wait for its end.
type registering struct {
	context.Context
	done    chan struct{} // its own, so that package context registers with it alone
	waiting atomic.Int32
}

func (c *registering) Done() <-chan struct{} { return c.done }

func (c *registering) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// AfterFunc is what package context calls for functions and children.
func (c *registering) AfterFunc(f func()) func() bool {
	c.waiting.Add(1)
	stop := context.AfterFunc(struct{ context.Context }{c}, f)
	return func() bool {
		stopped := stop()
		if stopped {
			c.waiting.Add(-1)
		}
		return stopped
	}
}

// An attempt to connect that fails leaves nothing behind that waits for the end of Run: a router may be absent for days.
func TestFailedAttemptsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := &registering{Context: context.WithoutCancel(t.Context()), done: make(chan struct{})}
		dials, running := runAbsent(ctx, t)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, attempts := ctx.waiting.Load(), dials.Load(); attempts < 20 || n > 2 {
			t.Errorf("after %d attempts %d functions wait for the end of the context, want at most 2 of the newest attempt", attempts, n)
		}
		close(ctx.done)
		running.Wait()
	})
}

// vanishing is a connection whose other end can vanish: then nothing arrives, and there is no
// error.
type vanishing struct {
	net.Conn
	vanished <-chan struct{}
	full     bool // after vanishing, writes block too, as when the kernel's buffer is full
	closed   chan struct{}
	once     sync.Once
}

func (c *vanishing) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.vanished:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *vanishing) Write(b []byte) (int, error) {
	select {
	case <-c.vanished:
		if c.full {
			<-c.closed
			return 0, net.ErrClosed
		}
		return len(b), nil
	default:
		return c.Conn.Write(b)
	}
}

func (c *vanishing) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A machine that vanishes closes no connection. The SDK must detect that by itself. Running
// handlers continue until their deadline, which is an hour away here.
func TestRouterThatVanishes(t *testing.T) {
	for name, full := range map[string]bool{"writes go nowhere": false, "writes hang": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := clienttest.NewRouter(t)
				listener := bufconn.Listen(1 << 20)
				r.Serve(listener)
				vanished := make(chan struct{})
				dialled := make(chan time.Time, 100)
				var dials atomic.Int32
				dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
					conn, err := listener.DialContext(ctx)
					dialled <- time.Now()
					if dials.Add(1) > 1 {
						return conn, err
					}
					return &vanishing{Conn: conn, vanished: vanished, full: full, closed: make(chan struct{})}, err
				}
				var log written.Text
				started, release := make(chan struct{}), make(chan struct{})
				handler := func(ctx context.Context, e *client.Event) error {
					if e.Key != "held" {
						return nil
					}
					close(started)
					<-release
					if ctx.Err() != nil {
						t.Errorf("the handler was cancelled: %v", context.Cause(ctx))
					}
					return nil
				}
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() {
					if err := client.Run(ctx, "", handler, r.WithClock(), client.WithDialer(dial), client.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))); err != nil {
						t.Errorf("Run = %v, want nil", err)
					}
				})
				r.Deliver(&client.Event{Key: "held"})
				<-started
				time.Sleep(time.Minute) // an idle router is not silent: it answers Pings
				if n := dials.Load(); n != 1 {
					t.Fatalf("%d connections while the router is there, want 1", n)
				}
				<-dialled
				close(vanished)
				begin := time.Now()
				if took := (<-dialled).Sub(begin); took < 9*time.Second || took > 17*time.Second { // gRPC may take 5 s to close
					t.Errorf("the SDK dialled again after %v, want about 10 s", took)
				}
				got := r.Deliver(&client.Event{Key: "other"}).Outcome()
				for got.Kind != clienttest.Done && time.Since(begin) < time.Minute { // the router has to detect it, too
					got = r.Deliver(&client.Event{Key: "other"}).Outcome()
				}
				if got.Kind != clienttest.Done {
					t.Errorf("another key after the reconnect: %v, want done", got)
				}
				close(release)
				stop()
				running.Wait()
				if !strings.Contains(log.String(), "silent for 10s") {
					t.Errorf("the log does not give the reason of the reconnect:\n%s", log.String())
				}
			})
		})
	}
}

// withoutEnd is a context whose Done is nil, as that of context.Background is.
type withoutEnd struct {
	context.Context
	ended atomic.Bool
}

func (*withoutEnd) Done() <-chan struct{} { return nil }

func (c *withoutEnd) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// A context that never ends must not be taken for an ended one, which would drain each stream
// as soon as it is established.
func TestRunWithAContextWithoutAnEnd(t *testing.T) {
	r := clienttest.NewRouter(t)
	ctx := &withoutEnd{Context: context.WithoutCancel(t.Context())}
	var log bytes.Buffer
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx, done, client.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))) })
	for n := range int64(5) {
		if got := r.Deliver(&client.Event{ID: client.MessageID{Entry: n}, Key: "a"}).Outcome(); got.Kind != clienttest.Done {
			t.Errorf("event %d: %v, want done", n, got)
		}
		time.Sleep(100 * time.Millisecond) // a Ping lies between
	}
	ctx.ended.Store(true)
	r.Disconnect()
	running.Wait()
	if n := strings.Count(log.String(), "connected to the router"); n != 1 {
		t.Errorf("%d streams, want 1:\n%s", n, log.String())
	}
}

func TestRunRefusesBadArguments(t *testing.T) {
	fire := func(context.Context, *client.Firing) error { return nil }
	tests := map[string]struct {
		endpoint string
		handler  client.Handler
		opts     []client.Option
		says     string
	}{
		"no port":                    {endpoint: "localhost", handler: done, says: "host:port"},
		"a port of 0":                {endpoint: "localhost:0", handler: done, says: "host:port"},
		"a port that is none":        {endpoint: "localhost:65536", handler: done, says: "host:port"},
		"a port that is no number":   {endpoint: "localhost:port", handler: done, says: "host:port"},
		"no path":                    {endpoint: "unix://sock", handler: done, says: "unix:///path"},
		"half a path":                {endpoint: "unix:sock", handler: done, says: "unix:///path"},
		"no handler":                 {says: "handler"},
		"no room":                    {handler: done, opts: []client.Option{client.WithMaxInFlight(0)}, says: "MaxInFlight"},
		"no logger":                  {handler: done, opts: []client.Option{client.WithLogger(nil)}, says: "Logger"},
		"no dialer":                  {handler: done, opts: []client.Option{client.WithDialer(nil)}, says: "Dialer"},
		"a past grace":               {handler: done, opts: []client.Option{client.WithDrainGrace(-1)}, says: "DrainGrace"},
		"a name that is no text":     {handler: done, opts: []client.Option{client.WithName("a\xff")}, says: "WithName"},
		"a schedule of two lines":    {handler: done, opts: []client.Option{client.WithSchedule("a\nb", client.Every(time.Minute), fire)}, says: "a printable name"},
		"a schedule that is no text": {handler: done, opts: []client.Option{client.WithSchedule("a\xff", client.Every(time.Minute), fire)}, says: "WithSchedule"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // otherwise it would dial for ever
			defer cancel()
			err := client.Run(ctx, test.endpoint, test.handler, test.opts...)
			if !errors.Is(err, client.ErrArgument) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("Run = %v, want an error about %s", err, test.says)
			}
		})
	}
}

// A connection to another machine without TLS is logged, by Run and by Dial, as the other SDKs do.
func TestConnectionsWithoutTLSAreLogged(t *testing.T) {
	run := func(endpoint string, opts ...client.Option) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // it must not dial
		return client.Run(ctx, endpoint, done, opts...)
	}
	dial := func(endpoint string, opts ...client.Option) error {
		lane, err := client.Dial(endpoint, opts...)
		if err == nil {
			err = lane.Close()
		}
		return err
	}
	piped := client.WithDialer(func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed })
	tests := []struct {
		endpoint string
		option   client.Option
		warns    bool
	}{
		{"router.example:16650", nil, true},
		{"10.1.2.3:16650", nil, true},
		{"127.0.0.2:16650", nil, false},
		{"[::1]:16650", nil, false},
		{"localhost:16650", nil, false},
		{":16650", nil, false},
		{"unix:///router.sock", nil, false},
		{"router.example:16650", client.WithTLS(new(tls.Config)), false},
		{"router.example:16650", piped, false}, // it may encrypt
	}
	for _, test := range tests {
		for name, call := range map[string]func(string, ...client.Option) error{"Run": run, "Dial": dial} {
			var log bytes.Buffer
			opts := []client.Option{client.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))}
			if test.option != nil {
				opts = append(opts, test.option)
			}
			if err := call(test.endpoint, opts...); err != nil {
				t.Fatal(err)
			}
			if warns := strings.Contains(log.String(), "without TLS: use WithTLS"); warns != test.warns {
				t.Errorf("%s to %s: warns = %v, want %v: %s", name, test.endpoint, warns, test.warns, log.String())
			}
		}
	}
}

// The error for a socket without permission names the router's settings for it.
func TestSocketOfOthers(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	dial := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: fs.ErrPermission}
	}
	said := &lastLine{heard: stop}
	if err := client.Run(ctx, "unix:/x", done, client.WithDialer(dial), client.WithLogger(slog.New(slog.NewTextHandler(said, nil)))); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.text, "app.socket_mode and app.socket_owner") {
		t.Errorf("log = %q, want the settings of the socket in it", said.text)
	}
}

// lastLine keeps the last line written, and calls heard.
type lastLine struct {
	text  string
	heard func()
}

func (l *lastLine) Write(b []byte) (int, error) {
	l.text = string(b)
	l.heard()
	return len(b), nil
}

func TestErrors(t *testing.T) {
	if err := client.RetryAfter(nil, time.Second); err != nil {
		t.Errorf("RetryAfter(nil) = %v, want nil", err)
	}
	cause := errors.New("cause")
	if err := client.RetryAfter(cause, time.Second); !errors.Is(err, cause) || err.Error() != "cause" {
		t.Errorf("RetryAfter hides its cause: %v", err)
	}
	if err := client.Reject(nil); err != nil {
		t.Errorf("Reject(nil) = %v, want nil", err)
	}
	if err := client.Reject(cause); !errors.Is(err, cause) || err.Error() != "cause" {
		t.Errorf("Reject hides its cause: %v", err)
	}
	verdicts := map[string]struct { // the outermost counts
		err  error
		want clienttest.Kind
	}{
		"a rejection that is to be retried": {client.RetryAfter(client.Reject(cause), time.Second), clienttest.Retry},
		"a retry that is rejected":          {client.Reject(client.RetryAfter(cause, time.Second)), clienttest.Reject},
		"a wrapped rejection":               {fmt.Errorf("at last: %w", client.Reject(cause)), clienttest.Reject},
		"two, the first a retry":            {errors.Join(client.RetryAfter(cause, time.Second), client.Reject(cause)), clienttest.Retry},
	}
	r := clienttest.NewRouter(t)
	r.Start(func(_ context.Context, e *client.Event) error { return verdicts[e.Key].err })
	for name, test := range verdicts {
		if got := r.Deliver(&client.Event{Key: name}).Outcome(); got.Kind != test.want || (got.After > 0) != (got.Kind == clienttest.Retry) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	e := &client.Event{}
	if !e.LeaseUntil().IsZero() || e.Progress(t.Context()) != nil {
		t.Error("an event that no router delivered has a lease")
	}
}
