package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
	"github.com/ringfence/router/internal/testing/written"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// scripted is a router whose sessions run a function of the test.
type scripted struct {
	appv1.UnimplementedAppServiceServer

	session func(appv1.AppService_WorkServer) error
}

func (s scripted) Work(stream appv1.AppService_WorkServer) error {
	if _, err := stream.Recv(); err != nil { // the Hello
		return err
	}
	return s.session(stream)
}

// serveScript starts a router with these sessions until the end of the test, and returns the option that dials it.
func serveScript(t *testing.T, session func(appv1.AppService_WorkServer) error) client.Option {
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	appv1.RegisterAppServiceServer(server, scripted{session: session})
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) }) // it ends with Stop
	t.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) })
}

func welcome(stream appv1.AppService_WorkServer, version uint32) error {
	return stream.Send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Welcome{Welcome: &appv1.Welcome{Version: version}}})
}

// kinds lists all kinds of errors that end a session or Run.
var kinds = []error{
	client.ErrArgument, client.ErrUnreachable, client.ErrUnauthenticated, client.ErrVersion, client.ErrTooManyWorkers, client.ErrRefused, client.ErrGoAway,
	client.ErrSilent, client.ErrBroken, client.ErrDrainTimeout,
}

// checkKind fails the test unless err is an Error of that kind and of no other.
func checkKind(t *testing.T, err, want error) {
	t.Helper()
	if _, ok := errors.AsType[*client.Error](err); !ok {
		t.Fatalf("%v is no *client.Error", err)
	}
	for _, kind := range kinds {
		if errors.Is(err, kind) != errors.Is(want, kind) {
			t.Errorf("%q is %q: %v; want it to be %q only", err, kind, errors.Is(err, kind), want)
		}
	}
}

func TestSessionsEndWithAKind(t *testing.T) {
	answer := func(code codes.Code) func(appv1.AppService_WorkServer) error {
		return func(appv1.AppService_WorkServer) error { return status.Error(code, "because") }
	}
	after := func(then func(appv1.AppService_WorkServer) error) func(appv1.AppService_WorkServer) error {
		return func(stream appv1.AppService_WorkServer) error {
			if err := welcome(stream, 1); err != nil {
				return err
			}
			return then(stream)
		}
	}
	tests := map[string]struct {
		session func(appv1.AppService_WorkServer) error
		option  client.Option
		want    error
		cause   error
		stood   bool
	}{
		"no router": {
			option: client.WithDialer(func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }),
			want:   client.ErrUnreachable,
		},
		"the router stops":      {session: answer(codes.Unavailable), want: client.ErrUnreachable},
		"a wrong token":         {session: answer(codes.Unauthenticated), want: client.ErrUnauthenticated},
		"no token file":         {option: client.WithTokenFile("/none/such"), want: client.ErrUnauthenticated, cause: fs.ErrNotExist},
		"no common version":     {session: answer(codes.FailedPrecondition), want: client.ErrVersion},
		"another version":       {session: func(s appv1.AppService_WorkServer) error { return errors.Join(welcome(s, 2), s.Context().Err()) }, want: client.ErrVersion},
		"too many workers":      {session: answer(codes.ResourceExhausted), want: client.ErrTooManyWorkers},
		"a Hello that is wrong": {session: answer(codes.InvalidArgument), want: client.ErrRefused},
		"a router that goes": {
			session: after(func(s appv1.AppService_WorkServer) error {
				_ = s.Send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_GoAway{GoAway: &appv1.GoAway{}}})
				return status.Error(codes.Unavailable, "the router stops")
			}),
			want: client.ErrGoAway, stood: true,
		},
		"a router that breaks off": {session: after(answer(codes.Internal)), want: client.ErrBroken, stood: true},
		"a router that closes":     {session: after(func(appv1.AppService_WorkServer) error { return nil }), want: client.ErrBroken, stood: true},
		"a router that has what was not sent": {session: after(func(s appv1.AppService_WorkServer) error {
			_ = s.Send(&appv1.WorkResponse{Receipt: 7})
			<-s.Context().Done()
			return nil
		}), want: client.ErrBroken, stood: true},
		"a router that numbers no deliveries": {session: after(func(s appv1.AppService_WorkServer) error {
			_ = s.Send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Deliveries{Deliveries: &appv1.Deliveries{
				Topics: []string{"t"}, Tokens: []int64{1}, Deliveries: []*appv1.Delivery{{DeliveryId: 1, Key: []byte("k"), Attempt: 1}},
			}}})
			<-s.Context().Done()
			return nil
		}), want: client.ErrBroken, stood: true},
		"a router that does not go on":    {session: after(func(s appv1.AppService_WorkServer) error { <-s.Context().Done(); return nil }), want: client.ErrSilent, stood: true},
		"a router that never says a word": {session: func(s appv1.AppService_WorkServer) error { <-s.Context().Done(); return nil }, want: client.ErrSilent},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				var ends []error
				var ready []bool
				err := client.Run(ctx, "", done,
					serveScript(t, test.session),
					client.WithLogger(slog.New(slog.DiscardHandler)),
					client.WithReady(func(is bool) { ready = append(ready, is) }),
					client.WithHooks(client.Hooks{Disconnected: func(err error) {
						if ends = append(ends, err); len(ends) == 2 {
							stop()
						}
					}}),
					func() client.Option {
						if test.option != nil {
							return test.option
						}
						return client.WithName("worker")
					}(),
				)
				if err != nil || len(ends) < 2 {
					t.Fatalf("Run = %v after %v, want nil after two sessions", err, ends)
				}
				for _, end := range ends[:2] {
					checkKind(t, end, test.want)
					if test.cause != nil && !errors.Is(end, test.cause) {
						t.Errorf("%v hides its cause %v", end, test.cause)
					}
				}
				if slices.Contains(ready, true) && !test.stood {
					t.Error("ready, and there was no session")
				}
				if ready[len(ready)-1] {
					t.Error("ready after the end")
				}
			})
		})
	}
}

// A router refuses a wrong schedule each time: the worker ends, once its handlers have. What names none of its schedules can pass.
func TestARefusedScheduleEndsTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sessions := []func(appv1.AppService_WorkServer) error{
			refuse(codes.InvalidArgument, `app: schedule "other": no zone`),
			refuse(codes.Unavailable, `schedule "report": the router is stopping`),
			func(s appv1.AppService_WorkServer) error {
				if err := welcome(s, 1); err != nil {
					return err
				}
				return status.Error(codes.InvalidArgument, `schedule "report": a broken frame`)
			},
			refuse(codes.InvalidArgument, "app: schedule \"report\": hour = 25"),
			refuse(codes.InvalidArgument, "the worker dials again"),
		}
		var ends []error
		err := client.Run(t.Context(), "", done, client.WithLogger(slog.New(slog.DiscardHandler)),
			serveScript(t, func(s appv1.AppService_WorkServer) error {
				next := sessions[0]
				sessions = sessions[1:]
				return next(s)
			}),
			client.WithSchedule("report", client.Every(time.Hour), func(context.Context, *client.Firing) error { return nil }),
			client.WithHooks(client.Hooks{Disconnected: func(err error) { ends = append(ends, err) }}))
		if !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), "hour = 25") {
			t.Errorf("Run = %v, want the refusal", err)
		}
		if len(ends) != 4 || !errors.Is(ends[3], client.ErrRefused) {
			t.Errorf("sessions ended with %v, want four ends", ends)
		}
	})
}

// refuse returns a session that ends before its Welcome.
func refuse(code codes.Code, text string) func(appv1.AppService_WorkServer) error {
	return func(appv1.AppService_WorkServer) error { return status.Error(code, text) }
}

// A router that is stopping says when its successor will be there.
func TestGoAwayDelaysTheNextSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const away = 5 * time.Second // longer than any delay of the SDK's own
		ctx, stop := context.WithCancel(t.Context())
		var sessions []time.Time
		dials := serveScript(t, func(s appv1.AppService_WorkServer) error {
			if sessions = append(sessions, time.Now()); len(sessions) == 2 {
				stop()
			}
			if err := welcome(s, 1); err != nil {
				return err
			}
			_ = s.Send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_GoAway{GoAway: &appv1.GoAway{RetryAfterMs: uint32(away.Milliseconds())}}})
			return status.Error(codes.Unavailable, "the router stops")
		})
		err := client.Run(ctx, "", done, client.WithLogger(slog.New(slog.DiscardHandler)), dials)
		if err != nil || len(sessions) != 2 {
			t.Fatalf("Run = %v after %d sessions, want nil after 2", err, len(sessions))
		}
		if got := sessions[1].Sub(sessions[0]); got < away {
			t.Errorf("the next session began after %v, and the router wanted %v", got, away)
		}
	})
}

// A router that ends each session right after its Welcome is not asked twenty times a second, minute after minute.
func TestSessionsThatDoNotLastAreFurtherAndFurtherApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var sessions atomic.Int32
		dials := serveScript(t, func(s appv1.AppService_WorkServer) error {
			sessions.Add(1)
			if err := welcome(s, 1); err != nil {
				return err
			}
			_ = s.Send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_GoAway{GoAway: &appv1.GoAway{}}})
			return status.Error(codes.Unavailable, "the router stops")
		})
		_ = client.Run(ctx, "", done, client.WithLogger(slog.New(slog.DiscardHandler)), dials)
		if got := sessions.Load(); got < 30 || got > 70 {
			t.Errorf("%d sessions in a minute, want one in 1 to 2 s", got)
		}
	})
}

// A router that has a wrong idea of the time keeps no worker away for weeks.
func TestGoAwayDelaysTheNextSessionByAMinuteAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		sessions := 0
		dials := serveScript(t, func(s appv1.AppService_WorkServer) error {
			if sessions++; sessions == 2 {
				stop()
			}
			if err := welcome(s, 1); err != nil {
				return err
			}
			_ = s.Send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_GoAway{GoAway: &appv1.GoAway{RetryAfterMs: math.MaxUint32}}})
			return status.Error(codes.Unavailable, "the router stops")
		})
		begun := time.Now()
		_ = client.Run(ctx, "", done, client.WithLogger(slog.New(slog.DiscardHandler)), dials)
		if took := time.Since(begun); sessions != 2 || took < time.Minute || took > 2*time.Minute {
			t.Errorf("%d sessions in %v", sessions, took)
		}
	})
}

// brokenTraces panics in what of tracing it names.
type brokenTraces struct {
	propagation.TraceContext
	embedded.TracerProvider

	in string
}

func (b brokenTraces) fail(in string) {
	if in == b.in {
		panic("tracing is broken")
	}
}

func (b brokenTraces) Extract(ctx context.Context, _ propagation.TextMapCarrier) context.Context {
	b.fail("Extract")
	return ctx
}

func (b brokenTraces) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return brokenTracer{traces: b}
}

type brokenTracer struct {
	embedded.Tracer

	traces brokenTraces
}

func (b brokenTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	b.traces.fail("Start")
	return ctx, brokenSpan{traces: b.traces}
}

type brokenSpan struct {
	noop.Span

	traces brokenTraces
}

func (brokenSpan) IsRecording() bool                     { return true }
func (s brokenSpan) SetAttributes(...attribute.KeyValue) { s.traces.fail("SetAttributes") }
func (s brokenSpan) End(...trace.SpanEndOption)          { s.traces.fail("End") }

// A tracer that panics would end the process, not its event.
func TestTracersThatPanicEndNoWorker(t *testing.T) {
	for _, in := range []string{"Extract", "Start", "SetAttributes", "End"} {
		t.Run(in, func(t *testing.T) {
			router := clienttest.NewRouter(t)
			broken := brokenTraces{in: in}
			var log written.Text
			router.Start(done, client.WithTraces(broken, broken), client.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			for range 2 {
				if got := router.Deliver(&client.Event{Key: "k"}).Outcome(); got.Kind != clienttest.Done {
					t.Errorf("%+v, want it done", got)
				}
			}
			if !strings.Contains(log.String(), "a span failed") {
				t.Errorf("the log is %s", &log)
			}
		})
	}
}

func TestArgumentsAreNamed(t *testing.T) {
	nothing := func(client.Handler) client.Handler { return nil }
	for argument, run := range map[string]func(ctx context.Context) error{
		"endpoint":         func(ctx context.Context) error { return client.Run(ctx, "localhost", done) },
		"handler":          func(ctx context.Context) error { return client.Run(ctx, "", nil) },
		"WithMaxInFlight":  func(ctx context.Context) error { return client.Run(ctx, "", done, client.WithMaxInFlight(0)) },
		"WithDrainGrace":   func(ctx context.Context) error { return client.Run(ctx, "", done, client.WithDrainGrace(-1)) },
		"WithInterceptors": func(ctx context.Context) error { return client.Run(ctx, "", done, client.WithInterceptors(nothing)) },
	} {
		err := run(t.Context())
		checkKind(t, err, client.ErrArgument)
		if failure := (*client.Error)(nil); !errors.As(err, &failure) || failure.Argument != argument {
			t.Errorf("%v names %q, want %q", err, failure.Argument, argument)
		}
	}
	err := client.Run(t.Context(), "", done, client.WithInterceptors(nil))
	checkKind(t, err, client.ErrArgument)
}

// Every event has one Started and one Finished, however its handler ends, and both enclose
// all interceptors.
func TestHooksOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no database")
		var mu sync.Mutex
		var started, finished []string
		hooks := client.Hooks{
			Started: func(e *client.Event) {
				mu.Lock()
				defer mu.Unlock()
				started = append(started, e.Key)
			},
			Finished: func(e *client.Event, r client.Result) {
				mu.Lock()
				defer mu.Unlock()
				text := "nil"
				if r.Err != nil {
					text = r.Err.Error()
				}
				finished = append(finished, fmt.Sprint(e.Key, " ", r.Kind, " ", r.Duration.Round(time.Second), " ", text))
				if e.Key == "reject" && !errors.Is(r.Err, failure) {
					t.Errorf("the hook's error is %v, without its cause", r.Err)
				}
			},
		}
		slow := func(next client.Handler) client.Handler {
			return func(ctx context.Context, e *client.Event) error {
				time.Sleep(2 * time.Second)
				return next(ctx, e)
			}
		}
		r := clienttest.NewRouter(t)
		r.Start(func(ctx context.Context, e *client.Event) error {
			switch e.Key {
			case "retry":
				return failure
			case "reject":
				return client.Reject(failure)
			case "panic":
				panic("nil map")
			case "lost":
				return until(ctx)
			}
			return nil
		}, client.WithHooks(hooks), client.WithInterceptors(slow))
		for _, key := range []string{"done", "retry", "reject", "panic"} {
			r.Deliver(&client.Event{Key: key}).Outcome()
		}
		lost := r.Deliver(&client.Event{Key: "lost"})
		time.Sleep(5 * time.Second)
		r.Lose("lost")
		lost.Outcome()          // which may come before the SDK cancels the handler
		time.Sleep(time.Second) // of the bubble
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		want := []string{"done done 2s nil", "retry retry 2s no database", "reject reject 2s no database", "panic retry 2s panic: nil map", "lost cancelled 5s client: the key is lost"}
		if !slices.Equal(finished, want) || len(started) != len(want) {
			t.Errorf("started %q\nfinished %q\nwant %q", started, finished, want)
		}
	})
}

// The hooks of sessions are called in order, and Window follows the number of unanswered
// events.
func TestHooksOfSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []string
		var held atomic.Int64
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf(format, args...))
		}
		hooks := client.Hooks{
			Connected: func(s client.Session) { note("connected to %s, %d", s.Node, s.InFlightMax) },
			Disconnected: func(err error) {
				if err == nil {
					note("over")
					return
				}
				note("broken %v", errors.Is(err, client.ErrBroken))
			},
			Window: func(n, limit int) {
				held.Store(int64(n))
				if n > limit || limit != 4 {
					t.Errorf("%d of %d events are here", n, limit)
				}
			},
		}
		r := clienttest.NewRouter(t)
		release := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			err := r.Run(ctx, func(context.Context, *client.Event) error { <-release; return nil }, client.WithMaxInFlight(4), client.WithHooks(hooks))
			if err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		var all []*clienttest.Delivery
		for i := range 10 {
			all = append(all, r.Deliver(&client.Event{Key: fmt.Sprint(i)}))
		}
		synctest.Wait()
		if got := held.Load(); got != 4 {
			t.Errorf("%d events are here, want the whole window of 4", got)
		}
		close(release)
		for _, d := range all {
			d.Outcome()
		}
		synctest.Wait()
		if got := held.Load(); got != 0 {
			t.Errorf("%d events are here after all have been answered", got)
		}
		release = make(chan struct{})
		r.Deliver(&client.Event{Key: "stays"})
		synctest.Wait()
		if got := held.Load(); got != 1 {
			t.Errorf("%d events are here, want 1", got)
		}
		r.Disconnect()
		synctest.Wait()
		if got := held.Load(); got != 0 {
			t.Errorf("%d events are here after the session, want none", got)
		}
		time.Sleep(time.Second)
		close(release)
		stop()
		running.Wait()
		if want := []string{"connected to clienttest, 4", "broken true", "connected to clienttest, 4", "over"}; !slices.Equal(seen, want) {
			t.Errorf("hooks: %q, want %q", seen, want)
		}
	})
}

// The first interceptor is the outermost, also across several options, and Run calls each
// once.
func TestInterceptorsNest(t *testing.T) {
	var calls []string
	var made int
	named := func(name string) client.Interceptor {
		return func(next client.Handler) client.Handler {
			made++
			return func(ctx context.Context, e *client.Event) error {
				calls = append(calls, name)
				defer func() { calls = append(calls, "/"+name) }()
				return next(ctx, e)
			}
		}
	}
	r := clienttest.NewRouter(t)
	r.Start(func(context.Context, *client.Event) error { calls = append(calls, "handler"); return nil },
		client.WithInterceptors(named("a"), named("b")), client.WithInterceptors(named("c")))
	r.Deliver(&client.Event{Key: "k"}).Outcome()
	r.Deliver(&client.Event{Key: "k"}).Outcome()
	once := []string{"a", "b", "c", "handler", "/c", "/b", "/a"}
	if want := slices.Concat(once, once); !slices.Equal(calls, want) || made != 3 {
		t.Errorf("calls = %q, %d interceptors made; want %q and 3", calls, made, want)
	}
}

// TestHooksSeeCallsWithoutAHandler: their kind has a name.
func TestHooksSeeCallsWithoutAHandler(t *testing.T) {
	kinds := make(chan client.ResultKind, 1)
	r := clienttest.NewRouter(t)
	r.Start(func(context.Context, *client.Event) error { return nil }, client.WithCall("other", func(context.Context, *client.Call) ([]byte, error) { return nil, nil }),
		client.WithHooks(client.Hooks{Finished: func(_ *client.Event, result client.Result) { kinds <- result.Kind }}))
	if _, err := r.Lane().Invoke(t.Context(), "k", "do", nil); !errors.Is(err, client.ErrNotRun) {
		t.Errorf("the error is %v", err)
	}
	if kind := <-kinds; kind != client.ResultNotStarted || kind.String() != "not_started" {
		t.Errorf("the kind is %v", kind)
	}
}
