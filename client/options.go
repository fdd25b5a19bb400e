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
)

// EndpointEnv is the environment variable that holds the router's endpoint for a
// Run that is given none.
const EndpointEnv = "RINGFENCE_APP_ENDPOINT"

// TokenFileEnv is the environment variable that names the file with the token of a Run
// that is given none by [TokenFile].
const TokenFileEnv = "RINGFENCE_APP_TOKEN_FILE" //nolint:gosec // the name of a variable, no secret

// DefaultEndpoint is where a router listens unless it is told otherwise.
const DefaultEndpoint = "127.0.0.1:16650"

// An Option changes how Run works.
type Option func(*options)

type options struct {
	name        string
	maxInFlight int
	drainGrace  time.Duration
	leaveGroup  bool
	log         *slog.Logger
	tracer      trace.Tracer                  // nil: no spans
	propagator  propagation.TextMapPropagator // nil: no trace context
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
	tls         *tls.Config
	tokenFile   string // "": no token
}

func defaults() options {
	return options{
		maxInFlight: 1000,
		drainGrace:  30 * time.Second,
		log:         slog.Default(),
		dial:        new(net.Dialer).DialContext,
		tokenFile:   os.Getenv(TokenFileEnv),
	}
}

// instrument looks whether the application uses OpenTelemetry, unless Traces has said so.
// One that does has set a propagator: the default one knows no fields.
func (o *options) instrument() {
	if o.propagator == nil && len(otel.GetTextMapPropagator().Fields()) > 0 {
		Traces(otel.GetTracerProvider(), otel.GetTextMapPropagator())(o)
	}
}

// MaxInFlight bounds how many events are here at once, and so how many handlers run
// at once: 1 to 100000, 1000 by default. The router may have a lower bound.
func MaxInFlight(n int) Option { return func(o *options) { o.maxInFlight = n } }

// Name names this worker in the router's logs. By default the router makes a name.
func Name(name string) Option { return func(o *options) { o.name = name } }

// DrainGrace is how long handlers may go on after the context of Run has ended, 30
// seconds by default. Then their contexts are cancelled with [ErrDrainTimeout].
func DrainGrace(d time.Duration) Option { return func(o *options) { o.drainGrace = d } }

// LeaveGroup makes the end of Run the end of the whole node: the router hands all
// its keys over in order. It suits an application that ends with its Run.
func LeaveGroup() Option { return func(o *options) { o.leaveGroup = true } }

// Logger sets where the SDK reports connections, panics and lost keys; by default
// slog.Default. It never logs a key or a payload.
func Logger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// Traces makes the context of each handler carry the trace of its event, in a span of its
// own. Without this option that is done with the providers that were given to package
// otel before [Run], if a propagator was; else it costs nothing.
func Traces(provider trace.TracerProvider, propagator propagation.TextMapPropagator) Option {
	return func(o *options) {
		o.tracer, o.propagator = nil, propagator
		if provider != nil {
			o.tracer = provider.Tracer("github.com/ringfence/router/client")
		}
	}
}

// Dialer sets how connections to the router are made.
func Dialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// TLS encrypts the connection, for a router that is not on this machine. The router
// asks for a certificate, and so needs config one; ServerName is the host of the
// endpoint if config has none. config must not be changed afterwards.
func TLS(config *tls.Config) Option { return func(o *options) { o.tls = config } }

// TokenFile names a file with the token that the router asks its workers for, if it has
// app.token_file. It is read at each connection. By default the environment variable
// RINGFENCE_APP_TOKEN_FILE names it; "" stands for no token.
func TokenFile(path string) Option { return func(o *options) { o.tokenFile = path } }

// token reads the token, "" if there is none.
func (o options) token() (string, error) {
	if o.tokenFile == "" {
		return "", nil
	}
	content, err := os.ReadFile(o.tokenFile)
	if err != nil {
		return "", fmt.Errorf("client: token file: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" {
		return "", fmt.Errorf("client: token file: %s is empty", o.tokenFile)
	}
	return token, nil
}

func (o options) validate() error {
	var errs []error
	if o.maxInFlight < 1 || o.maxInFlight > 100_000 {
		errs = append(errs, fmt.Errorf("client: MaxInFlight = %d, want 1 to 100000", o.maxInFlight))
	}
	if o.drainGrace < 0 {
		errs = append(errs, fmt.Errorf("client: DrainGrace = %v, want >= 0", o.drainGrace))
	}
	if o.log == nil {
		errs = append(errs, errors.New("client: Logger = nil"))
	}
	if (o.tracer == nil) != (o.propagator == nil) {
		errs = append(errs, errors.New("client: Traces: want a provider and a propagator"))
	}
	if o.dial == nil {
		errs = append(errs, errors.New("client: Dialer = nil"))
	}
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
			return endpoint{}, fmt.Errorf("client: endpoint %q: want unix:///path", s)
		}
		return endpoint{network: "unix", address: path}, nil
	}
	if _, port, err := net.SplitHostPort(s); err != nil || port == "" {
		return endpoint{}, fmt.Errorf("client: endpoint %q: want host:port or unix:///path", s)
	}
	return endpoint{network: "tcp", address: s}, nil
}
