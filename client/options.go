package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/internal/base/clock"
)

// EndpointEnv is the environment variable that holds the router's endpoint for a
// Run that is given none.
const EndpointEnv = "RINGFENCE_APP_ENDPOINT"

// TokenFileEnv is the environment variable that names the file with the token of a Run
// that is given none by [WithTokenFile].
const TokenFileEnv = "RINGFENCE_APP_TOKEN_FILE" //nolint:gosec // the name of a variable, no secret

// DefaultEndpoint is where a router listens unless it is told otherwise.
const DefaultEndpoint = "127.0.0.1:16650"

// An Option changes how Run works. Of two that set the same, the later one counts.
type Option func(*options)

type options struct {
	name         string
	maxInFlight  int
	drainGrace   time.Duration
	leaveGroup   bool
	log          *slog.Logger
	interceptors []Interceptor
	hooks        Hooks
	ready        func(bool)                    // nil: nobody asks
	tracer       trace.Tracer                  // nil: no spans
	propagator   propagation.TextMapPropagator // nil: no trace context
	dial         func(ctx context.Context, network, address string) (net.Conn, error)
	tls          *tls.Config
	tokenFile    string // "": no token
	clock        leaseClock
	fast         func() clock.Instant // decides whether a handler may still start: clock.Now, or a cheaper reading of it
}

func defaults() options {
	return options{
		maxInFlight: 1000,
		drainGrace:  30 * time.Second,
		log:         slog.Default(),
		dial:        new(net.Dialer).DialContext,
		tokenFile:   os.Getenv(TokenFileEnv),
		clock:       systemClock{},
		fast:        new(clock.Fast).Now,
	}
}

// instrument looks whether the application uses OpenTelemetry, unless WithTraces has said so.
// One that does has set a propagator: the default one knows no fields.
func (o *options) instrument() {
	if o.propagator == nil && len(otel.GetTextMapPropagator().Fields()) > 0 {
		WithTraces(otel.GetTracerProvider(), otel.GetTextMapPropagator())(o)
	}
}

// WithMaxInFlight bounds how many events are here at once, and so how many handlers run
// at once: 1 to 100000, 1000 by default. The router may have a lower bound.
func WithMaxInFlight(n int) Option { return func(o *options) { o.maxInFlight = n } }

// WithName names this worker in the router's logs. By default the router makes a name.
func WithName(name string) Option { return func(o *options) { o.name = name } }

// WithDrainGrace sets how long handlers may go on after the context of Run has ended: 30
// seconds by default, and at least 0. Then their contexts are cancelled with [ErrDrainTimeout].
func WithDrainGrace(d time.Duration) Option { return func(o *options) { o.drainGrace = d } }

// WithLeaveGroup makes the end of Run the end of the whole node: the router hands all
// its keys over in order. It suits an application that ends with its Run.
func WithLeaveGroup() Option { return func(o *options) { o.leaveGroup = true } }

// WithLogger sets where the SDK reports connections, panics and lost keys; by default
// slog.Default. It never logs a key or a payload.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithInterceptors puts interceptors around the handler. The first one is the outermost: it
// is called first and returns last. A second WithInterceptors adds its own inside.
func WithInterceptors(list ...Interceptor) Option {
	return func(o *options) { o.interceptors = append(o.interceptors, list...) }
}

// WithHooks sets what is called for metrics.
func WithHooks(h Hooks) Option { return func(o *options) { o.hooks = h } }

// WithReady calls ready(true) when a session with the router stands, before its first event,
// and ready(false) when it is lost or an attempt to begin one has failed. Calls come one at a
// time and must not block. The Store of an atomic.Bool suits it.
func WithReady(ready func(bool)) Option { return func(o *options) { o.ready = ready } }

// WithTraces makes the context of each handler carry the trace of its event, in a span of its
// own. Without this option that is done with the providers that were given to package
// otel before [Run], if a propagator was; else it costs nothing.
func WithTraces(provider trace.TracerProvider, propagator propagation.TextMapPropagator) Option {
	return func(o *options) {
		o.tracer, o.propagator = nil, propagator
		if provider != nil {
			o.tracer = provider.Tracer("github.com/ringfence/router/client")
		}
	}
}

// WithDialer sets how connections to the router are made.
func WithDialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// WithTLS encrypts the connection, for a router that is not on this machine. The router
// asks for a certificate, and so needs config one; ServerName is the host of the
// endpoint if config has none. config must not be changed afterwards.
func WithTLS(config *tls.Config) Option { return func(o *options) { o.tls = config } }

// WithTokenFile names a file with the token that the router asks its workers for, if it has
// app.token_file. It is read at each connection. By default the environment variable
// RINGFENCE_APP_TOKEN_FILE names it; "" stands for no token.
func WithTokenFile(path string) Option { return func(o *options) { o.tokenFile = path } }

// WithLeaseClock replaces the clock that leases run on. It is for package clienttest: the
// instants of that clock are internal to this module.
func WithLeaseClock(c leaseClock) Option {
	return func(o *options) { o.clock, o.fast = c, c.Now }
}

// leaseClock is a clock that leases run on. Its methods are called from many goroutines; they
// must neither block nor call back into the SDK.
type leaseClock interface {
	Now() clock.Instant
	Renewed(until clock.Instant) // the newest deadline, after each Pong
	Ended()                      // no Pong comes any more: Run has ended its last session
}

// systemClock is the clock in production.
type systemClock struct{}

func (systemClock) Now() clock.Instant    { return clock.Now() }
func (systemClock) Renewed(clock.Instant) {}
func (systemClock) Ended()                {}

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
	bad(o.drainGrace < 0, "WithDrainGrace", " = %v, want >= 0", o.drainGrace)
	bad(o.log == nil, "WithLogger", " = nil")
	bad((o.tracer == nil) != (o.propagator == nil), "WithTraces", ": want a provider and a propagator")
	bad(o.dial == nil, "WithDialer", " = nil")
	return errors.Join(errs...)
}

// endpoint is where the router listens.
type endpoint struct{ network, address string }

// parseEndpoint reads host:port or unix:///path; "" stands for the environment's
// endpoint, or the default one.
func parseEndpoint(s string) (endpoint, error) {
	if s == "" {
		s = os.Getenv(EndpointEnv)
	}
	if s == "" {
		s = DefaultEndpoint
	}
	if path, ok := strings.CutPrefix(s, "unix:"); ok { // as app.listen has it, too
		path = strings.TrimPrefix(path, "//")
		if !strings.HasPrefix(path, "/") {
			return endpoint{}, badArgument("endpoint", " %q: want unix:///path", s)
		}
		return endpoint{network: "unix", address: path}, nil
	}
	if _, port, err := net.SplitHostPort(s); err != nil || port == "" {
		return endpoint{}, badArgument("endpoint", " %q: want host:port or unix:///path", s)
	}
	return endpoint{network: "tcp", address: s}, nil
}
