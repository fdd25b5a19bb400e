package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/internal/base/clock"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// EndpointEnv is the environment variable with the router's endpoint, used if Run's
// endpoint is empty.
const EndpointEnv = "RINGFENCE_APP_ENDPOINT"

// TokenFileEnv is the environment variable that names the token file, used without
// [WithTokenFile].
const TokenFileEnv = "RINGFENCE_APP_TOKEN_FILE" //nolint:gosec // the name of a variable, no secret

// DefaultEndpoint is the default address of a router.
const DefaultEndpoint = "127.0.0.1:16650"

// An Option configures Run. Of two that set the same thing, the later one counts.
type Option func(*options)

type options struct {
	name         string
	maxInFlight  int
	drainGrace   time.Duration
	leaveGroup   bool
	log          *slog.Logger
	interceptors []Interceptor
	hooks        Hooks
	calls        map[string]CallHandler
	badCalls     []string
	schedules    []*appv1.Schedule
	firings      map[string]FiringHandler // by schedule
	badSchedules []string
	stateMax     int
	ready        func(bool)                    // of WithReady; may be nil
	tracer       trace.Tracer                  // nil: no spans
	propagator   propagation.TextMapPropagator // nil: no trace context
	dial         func(ctx context.Context, network, address string) (net.Conn, error)
	ownDialer    bool // of WithDialer: it may encrypt
	tls          *tls.Config
	tokenFile    string // "": no token
	clock        leaseClock
	fast         func() (clock.Instant, time.Duration) // read before each handler starts: clock.Now, or a cheaper form of it, and CLOCK_BOOTTIME
}

func defaults() options {
	return options{
		maxInFlight: 1000,
		stateMax:    stateMaxDefault,
		drainGrace:  30 * time.Second,
		log:         slog.Default(),
		dial:        new(net.Dialer).DialContext,
		tokenFile:   os.Getenv(TokenFileEnv),
		clock:       systemClock{},
		fast:        new(clock.Fast).Both,
	}
}

// instrument enables traces without WithTraces if the application uses OpenTelemetry. It does
// if it has set a propagator: the default one has no fields.
func (o *options) instrument() {
	if o.propagator == nil && len(otel.GetTextMapPropagator().Fields()) > 0 {
		WithTraces(otel.GetTracerProvider(), otel.GetTextMapPropagator())(o)
	}
}

// WithMaxInFlight bounds the unanswered events of this worker, and so the handlers that run
// at once: 1 to 100000, 1000 by default. The router may have a lower bound.
func WithMaxInFlight(n int) Option { return func(o *options) { o.maxInFlight = n } }

// WithName names this worker in the router's logs. By default the router chooses a name.
func WithName(name string) Option { return func(o *options) { o.name = name } }

// WithDrainGrace sets how long handlers may continue after the context of Run has ended: 30
// seconds by default, and at least 0. Then their contexts are cancelled with [ErrDrainTimeout].
func WithDrainGrace(d time.Duration) Option { return func(o *options) { o.drainGrace = d } }

// WithLeaveGroup makes the router leave its group at the end of Run: it hands all its keys
// over in order. It suits an application that ends with its Run.
func WithLeaveGroup() Option { return func(o *options) { o.leaveGroup = true } }

// WithLogger sets the log for connections (including those that leave this machine without TLS), failed handlers and
// lost keys; slog.Default by default. A failure is logged at most once a second, with the type of the error or the
// stack of the panic, but without its text, which [Hooks].Finished gets. The SDK never logs a key or a payload.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithInterceptors puts interceptors around the handler. The first one is the outermost: it
// is called first and returns last. A second WithInterceptors adds inner ones.
func WithInterceptors(list ...Interceptor) Option {
	return func(o *options) { o.interceptors = append(o.interceptors, list...) }
}

// WithHooks sets functions that are called for metrics.
func WithHooks(h Hooks) Option { return func(o *options) { o.hooks = h } }

// WithReady calls ready(true) when a session with the router is established, before its first
// event, and ready(false) when the session is lost or an attempt to establish one fails. Calls
// come one at a time and must not block. The Store of an atomic.Bool will do.
func WithReady(ready func(bool)) Option { return func(o *options) { o.ready = ready } }

// WithTraces starts a span for each handler in the trace of its event, and passes it in the
// handler's context. Without this option Run uses the providers that package otel has, if a
// propagator was set there before; else there are no traces, at no cost.
func WithTraces(provider trace.TracerProvider, propagator propagation.TextMapPropagator) Option {
	return func(o *options) {
		o.tracer, o.propagator = nil, propagator
		if provider != nil {
			o.tracer = provider.Tracer("github.com/ringfence/router/client")
		}
	}
}

// WithDialer sets the function that dials the router.
func WithDialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) Option {
	return func(o *options) { o.dial, o.ownDialer = dial, true }
}

// WithTLS encrypts the connection, for a router on another machine. The router requires a
// client certificate, so config must have one. ServerName defaults to the host of the
// endpoint. config must not be changed afterwards.
func WithTLS(config *tls.Config) Option { return func(o *options) { o.tls = config } }

// WithTokenFile names a file with the token that a router with app.token_file requires. The
// file is read at each connection. By default the environment variable
// RINGFENCE_APP_TOKEN_FILE names it; "" means no token.
func WithTokenFile(path string) Option { return func(o *options) { o.tokenFile = path } }

// WithLeaseClock replaces the clock that leases run on. It is for package clienttest: the
// instants of that clock are internal to this module.
func WithLeaseClock(c leaseClock) Option {
	return func(o *options) {
		ticks := new(clock.Fast)
		o.clock, o.fast = c, func() (clock.Instant, time.Duration) {
			_, boot := ticks.Both()
			return c.Now(), boot
		}
	}
}

// leaseClock is a clock that leases run on. Its methods are called from many goroutines; they
// must neither block nor call back into the SDK.
type leaseClock interface {
	Now() clock.Instant
	Renewed(until clock.Instant) // the newest deadline, after each Pong
	Ended()                      // Run has ended its last session: no further Pongs will come
}

// systemClock is the clock in production.
type systemClock struct{}

func (systemClock) Now() clock.Instant    { return clock.Now() }
func (systemClock) Renewed(clock.Instant) {}
func (systemClock) Ended()                {}

// warnOfPlainText logs that what is sent and received leaves this machine without TLS, if it does.
func (o *options) warnOfPlainText(at endpoint) {
	host, _, _ := net.SplitHostPort(at.address) // parseEndpoint has split it
	if o.tls != nil || o.ownDialer || at.network == "unix" || host == "" || host == "localhost" || net.ParseIP(host).IsLoopback() {
		return
	}
	o.log.Warn("the connection leaves this machine without TLS: use WithTLS", "endpoint", at.address)
}

// token reads the token, "" if there is none.
func (o *options) token() (string, error) {
	if o.tokenFile == "" {
		return "", nil
	}
	content, err := os.ReadFile(o.tokenFile)
	token := strings.TrimSpace(string(content))
	if err == nil && token == "" {
		err = fmt.Errorf("%s is empty", o.tokenFile)
	}
	if err != nil {
		return "", &Error{Kind: ErrUnauthenticated, Err: fmt.Errorf("token file: %w", err)}
	}
	return token, nil
}

func (o *options) validate() error {
	var errs []error
	bad := func(is bool, option, format string, values ...any) {
		if is {
			errs = append(errs, badArgument(option, format, values...))
		}
	}
	bad(o.maxInFlight < 1 || o.maxInFlight > 100_000, "WithMaxInFlight", " = %d, want 1 to 100000", o.maxInFlight)
	bad(!utf8.ValidString(o.name), "WithName", " %.80q, want a text in UTF-8", o.name)
	bad(o.drainGrace < 0, "WithDrainGrace", " = %v, want >= 0", o.drainGrace)
	bad(o.log == nil, "WithLogger", " = nil")
	bad((o.tracer == nil) != (o.propagator == nil), "WithTraces", ": want a provider and a propagator")
	bad(o.dial == nil, "WithDialer", " = nil")
	bad(o.stateMax < 0, "WithStateMax", " = %d, want >= 0", o.stateMax)
	for _, method := range o.badCalls {
		bad(true, "WithCall", " %q: want a handler, once, and a method of 1 to 64 bytes of A-Z, a-z, 0-9, '.', '_' and '-'", method)
	}
	for _, name := range o.badSchedules {
		bad(true, "WithSchedule", " %.80q: want times, a handler, once, texts in UTF-8, a printable name of 1 to %d bytes, an expression of at most %d and a zone of at most %d", name, scheduleNameMax, scheduleCronMax, scheduleZoneMax)
	}
	bad(len(o.schedules) > SchedulesMax, "WithSchedule", " %d times, want at most %d", len(o.schedules), SchedulesMax)
	return errors.Join(errs...)
}

// endpoint is the address of the router.
type endpoint struct{ network, address string }

// parseEndpoint parses host:port or unix:///path; "" means the endpoint of the environment,
// else the default.
func parseEndpoint(s string) (endpoint, error) {
	if s == "" {
		s = os.Getenv(EndpointEnv)
	}
	if s == "" {
		s = DefaultEndpoint
	}
	if path, ok := strings.CutPrefix(s, "unix:"); ok { // app.listen takes unix:PATH too
		path = strings.TrimPrefix(path, "//")
		if !strings.HasPrefix(path, "/") {
			return endpoint{}, badArgument("endpoint", " %q: want unix:///path", s)
		}
		return endpoint{network: "unix", address: path}, nil
	}
	_, text, err := net.SplitHostPort(s)
	if port, bad := strconv.ParseUint(text, 10, 16); err != nil || bad != nil || port == 0 {
		return endpoint{}, badArgument("endpoint", " %q: want host:port or unix:///path", s)
	}
	return endpoint{network: "tcp", address: s}, nil
}
