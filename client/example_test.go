package client_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"net"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

// order is the payload of the examples' events.
type order struct{ Cents int }

// store stands for a database that refuses a write with an old fence.
var store interface {
	Add(ctx context.Context, key string, fence client.Fence, cents int) error
}

var errLocked = errors.New("row is locked")

func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	handler := client.JSON(func(ctx context.Context, e *client.Event, o order) error {
		err := store.Add(ctx, e.Key, e.Fence, o.Cents)
		if errors.Is(err, errLocked) {
			return client.RetryAfter(err, time.Second)
		}
		return err
	})
	if err := client.Run(ctx, "127.0.0.1:16650", handler, client.WithMaxInFlight(100)); err != nil {
		fmt.Println(err)
	}
}

// SIGTERM ends the context of Run, but not that of the handlers, which get the drain grace.
// Run returns when the router has their results. Close the handlers' resources only then.
func Example_shutdown() {
	router := newExampleRouter()
	defer router.end()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	handler := func(handlerCtx context.Context, _ *client.Event) error {
		stop() // as SIGTERM would
		<-ctx.Done()
		fmt.Println("the handler may go on:", handlerCtx.Err() == nil)
		return nil
	}
	delivery := router.Deliver(&client.Event{Key: "alice"})
	err := client.Run(ctx, router.endpoint, handler, router.option, client.WithDrainGrace(10*time.Second))
	var failure *client.Error
	switch {
	case err == nil:
		fmt.Println("all results are with the router")
	case errors.Is(err, client.ErrDrainTimeout):
		fmt.Println("handlers ignored their context:", err)
	case errors.As(err, &failure):
		fmt.Println("not started:", failure.Argument, failure)
	}
	fmt.Println(delivery.Outcome())
	// Output:
	// the handler may go on: true
	// all results are with the router
	// done
}

// An idempotent, fenced write. The event's id makes a repetition do nothing; the fence refuses
// a handler that was frozen while a later delivery of its key wrote. docs/sinks.md has the
// tables, and other databases.
func Example_idempotentSQL() {
	const write = `
		WITH current AS (
			INSERT INTO fence AS f (key, fence) VALUES ($1, $2)
			ON CONFLICT (key) DO UPDATE SET fence = EXCLUDED.fence WHERE f.fence <= EXCLUDED.fence
			RETURNING key
		), written AS (
			INSERT INTO orders (event, customer, cents) SELECT $3, key, $4 FROM current
			ON CONFLICT (event) DO NOTHING
		)
		SELECT count(*) FROM current`
	handler := func(db *sql.DB) client.Handler {
		return client.JSON(func(ctx context.Context, e *client.Event, o order) error {
			var current int
			row := db.QueryRowContext(ctx, write, e.Key, e.Fence.String(), e.ID.String(), o.Cents)
			if err := row.Scan(&current); err != nil {
				return err // the event is retried
			}
			if current == 0 {
				return errors.New("a later delivery of this key has written")
			}
			return nil
		})
	}
	_ = handler
}

// The trace and the baggage of an event come in its properties, where its producer or the
// routers put them, and reach the handler in its context.
func ExampleWithTraces() {
	router := newExampleRouter()
	defer router.end()
	handler := func(ctx context.Context, _ *client.Event) error {
		fmt.Println(trace.SpanContextFromContext(ctx).TraceID(), baggage.FromContext(ctx).Member("tenant").Value())
		return nil
	}
	propagator := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	router.Start(handler, client.WithTraces(noop.NewTracerProvider(), propagator)) // yours: otel.GetTracerProvider()
	router.Deliver(&client.Event{Key: "alice", Properties: []client.Property{
		{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		{Name: "baggage", Value: "tenant=acme"},
	}}).Outcome()
	// Output: 0af7651916cd43dd8448eb211c80319c acme
}

// Metrics by expvar. With Prometheus, use a CounterVec by kind, a Histogram of
// r.Duration.Seconds(), and a Gauge for each of the numbers.
func ExampleWithHooks() {
	var results expvar.Map // expvar.NewMap("handler_results") publishes it
	var running, held, sessions expvar.Int
	var seconds expvar.Float
	hooks := client.Hooks{
		Started: func(*client.Event) { running.Add(1) },
		Finished: func(_ *client.Event, r client.Result) {
			running.Add(-1)
			results.Add(r.Kind.String(), 1)
			seconds.Add(r.Duration.Seconds())
		},
		Connected: func(client.Session) { sessions.Add(1) },
		Disconnected: func(err error) {
			if errors.Is(err, client.ErrTooManyWorkers) {
				fmt.Println("raise app.workers_max")
			}
		},
		Window: func(n, _ int) { held.Set(int64(n)) },
	}

	router := newExampleRouter()
	router.Start(client.JSON(func(context.Context, *client.Event, order) error { return nil }), client.WithHooks(hooks))
	router.Deliver(&client.Event{Key: "alice", Payload: []byte(`{"cents": 5}`)}).Outcome()
	router.Deliver(&client.Event{Key: "bob", Payload: []byte("no JSON")}).Outcome()
	router.end()
	fmt.Println(results.String())
	fmt.Println("running", running.Value(), "held", held.Value(), "sessions", sessions.Value())
	// Output:
	// {"done": 1, "reject": 1}
	// running 0 held 0 sessions 1
}

// A readiness probe: answer 200 while ready.Load(), else 503.
func ExampleWithReady() {
	router := newExampleRouter()
	var ready atomic.Bool
	router.Start(func(context.Context, *client.Event) error {
		fmt.Println("ready:", ready.Load())
		return nil
	}, client.WithReady(ready.Store))
	router.Deliver(&client.Event{Key: "alice"}).Outcome()
	router.end()
	fmt.Println("ready:", ready.Load())
	// Output:
	// ready: true
	// ready: false
}

// The first interceptor is the outermost.
func ExampleWithInterceptors() {
	named := func(name string) client.Interceptor {
		return func(next client.Handler) client.Handler {
			return func(ctx context.Context, e *client.Event) error {
				fmt.Println(name, "before")
				err := next(ctx, e)
				fmt.Println(name, "after:", err)
				return err
			}
		}
	}
	giveUp := func(next client.Handler) client.Handler { // after five attempts
		return func(ctx context.Context, e *client.Event) error {
			err := next(ctx, e)
			if e.Attempt >= 5 {
				return client.Reject(err)
			}
			return err
		}
	}

	router := newExampleRouter()
	defer router.end()
	router.Start(func(context.Context, *client.Event) error { return errLocked },
		client.WithInterceptors(named("outer"), named("inner"), giveUp))
	fmt.Println(router.Deliver(&client.Event{Key: "alice", Attempt: 5}).Outcome())
	// Output:
	// outer before
	// inner before
	// inner after: row is locked
	// outer after: row is locked
	// reject: row is locked
}

func ExampleJSON() {
	handler := client.JSON(func(_ context.Context, e *client.Event, o order) error {
		fmt.Println(e.Key, "ordered for", o.Cents)
		return nil
	})
	ctx := context.Background()
	fmt.Println(handler(ctx, &client.Event{Key: "alice", Payload: []byte(`{"cents": 500}`)}))
	err := handler(ctx, &client.Event{Key: "bob", Payload: []byte("gibberish")})
	var reject *client.RejectError
	var syntax *json.SyntaxError
	fmt.Println(errors.As(err, &reject), errors.As(err, &syntax))
	// Output:
	// alice ordered for 500
	// <nil>
	// true true
}

func ExampleProto() {
	handler := client.Proto(func(_ context.Context, _ *client.Event, d *durationpb.Duration) error { // or your own message
		fmt.Println(d.AsDuration())
		return nil
	})
	fmt.Println(handler(context.Background(), &client.Event{Payload: []byte{8, 90}}))
	err := handler(context.Background(), &client.Event{Payload: []byte{8}})
	fmt.Println(errors.As(err, new(*client.RejectError)))
	// Output:
	// 1m30s
	// <nil>
	// true
}

// A test of a handler, in a synctest bubble: seconds pass at once, and an assertion about
// time is exact.
func Example_test() {
	asTest = func(t *testing.T) { // func TestHandlerGivesUp(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			handler := func(ctx context.Context, _ *client.Event) error {
				select { // a database that does not answer
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(20 * time.Second):
					return client.RetryAfter(errors.New("no answer"), time.Minute)
				}
			}
			router := clienttest.NewRouter(t)
			router.Start(handler)

			begin := time.Now()
			got := router.Deliver(&client.Event{Key: "alice"}).Outcome()
			want := clienttest.Outcome{Kind: clienttest.Retry, After: time.Minute, Reason: "no answer"}
			if took := time.Since(begin); got != want || took < 20*time.Second || took > 21*time.Second {
				t.Errorf("outcome = %v after %v, want %v after 20 s", got, took, want)
			}

			lost := router.Deliver(&client.Event{Key: "bob"})
			synctest.Wait() // until the handler waits
			router.Lose("bob")
			if got := lost.Outcome(); got.Kind != clienttest.Cancelled {
				t.Errorf("outcome of a lost key = %v, want cancelled", got)
			}
		})
	}
}

// asTest is the test that Example_test shows.
var asTest func(t *testing.T)

func TestExampleOfATest(t *testing.T) {
	Example_test()
	asTest(t)
}

// A script that must not run beside the handlers of a key.
func ExampleLane_Reserve() {
	script := func(ctx context.Context) error {
		lane, err := client.Dial("") // RINGFENCE_APP_ENDPOINT, or 127.0.0.1:16650
		if err != nil {
			return err
		}
		defer func() { _ = lane.Close() }()
		r, err := lane.Reserve(ctx, "user-1", client.WithWait(30*time.Second))
		var failure *client.CallError
		if errors.As(err, &failure) && failure.Code == client.CodeTimeout {
			return fmt.Errorf("the key was not free in time: %w", err)
		}
		if err != nil {
			return err
		}
		defer r.Release()
		return store.Add(r.Context(), "user-1", r.Fence(), 500) // the context ends if the key is lost
	}
	_ = script
}

// A handler that reads its account from the database once, and then works on what its last turn has left.
func ExampleState() {
	type account struct{ cents int }
	load := func(ctx context.Context) (*account, error) {
		return new(account), ctx.Err() // SELECT cents FROM account WHERE key = ...
	}
	handler := client.JSON(func(ctx context.Context, e *client.Event, o order) error {
		a, err := client.State(ctx, load)
		if err != nil {
			return err
		}
		a.cents += o.Cents
		return store.Add(ctx, e.Key, e.Fence, a.cents) // an error drops the state
	})
	_ = handler
}

func ExampleRetryAfter() {
	err := client.RetryAfter(errors.New("rate limited"), 30*time.Second)
	fmt.Println(err)
	// Output: rate limited
}

func ExampleEvent_LeaseUntil() {
	// Long work in steps: stop between two of them when the key is lost.
	_ = func(ctx context.Context, e *client.Event) error {
		for step := range 100 {
			if err := e.Progress(ctx); err != nil {
				return fmt.Errorf("before step %d: %w", step, err)
			}
			fmt.Println("may go on until", e.LeaseUntil())
		}
		return nil
	}
}

// exampleRouter is a router for an example, which has no testing.T.
type exampleRouter struct {
	*clienttest.Router
	endpoint string
	option   client.Option
	end      func() // ends Run and the router
}

func newExampleRouter() *exampleRouter {
	t := new(exampleT)
	r := &exampleRouter{Router: clienttest.NewRouter(t), end: t.end}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.Serve(listener)
	r.endpoint, r.option = listener.Addr().String(), r.WithClock()
	return r
}

// exampleT implements the part of testing.T that a clienttest.Router needs.
type exampleT struct {
	testing.TB
	cleanups []func()
}

func (*exampleT) Helper()                           {}
func (*exampleT) Name() string                      { return "example" }
func (*exampleT) Context() context.Context          { return context.Background() }
func (*exampleT) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (*exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*exampleT) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }

func (t *exampleT) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *exampleT) end() {
	for _, cleanup := range slices.Backward(t.cleanups) {
		cleanup()
	}
}
