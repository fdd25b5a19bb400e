package bridge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
)

// Config is what a bridge needs. The zero value is not usable: see [DefaultConfig].
type Config struct {
	To         string        // URL of the application, http or https, without user and fragment
	Type       string        // attribute type of the CloudEvents
	InFlight   int           // requests at once, 1 to 100000
	AbsenceMax time.Duration // how long the application may accept no connection, with TLS if its URL is https, before the worker drains, at least 1 s
}

// DefaultConfig lacks only the URL.
func DefaultConfig() Config {
	return Config{Type: "com.ringfence.event", InFlight: 64, AbsenceMax: 5 * time.Second}
}

// ErrConfig is wrapped by errors about values of a Config.
var ErrConfig = errors.New("bridge: bad configuration")

const (
	inFlightMax = 100_000
	absentLeast = time.Second

	// reasonMax bounds what is read of the body of a refusal, in bytes.
	reasonMax = 1 << 10
	// bodyMax bounds what is read of any other body, so that the connection can be used again.
	bodyMax = 64 << 10

	dialTimeout   = 5 * time.Second
	headerMax     = 64 << 10 // of a response, in bytes
	idleTimeout   = time.Minute
	lookFirst     = 20 * time.Millisecond // between attempts to connect to the application
	lookMax       = time.Second
	absentLogged  = 10 * time.Second
	retryAfterMax = 366 * 24 * time.Hour
)

// Validate names the first value that is out of range.
func (c Config) Validate() error {
	u, err := url.Parse(c.To)
	switch {
	case c.To == "":
		return fmt.Errorf("%w: --to is missing: the URL of your application, such as http://127.0.0.1:8080/events", ErrConfig)
	case err != nil: // the error would show all of it, which may have a password in it
		return fmt.Errorf("%w: --to is not a URL: want http:// or https:// with a host, without user and fragment, and %%XX for special characters", ErrConfig)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.Fragment != "":
		return fmt.Errorf("%w: --to = %q, want http:// or https:// with a host, without user and fragment", ErrConfig, u.Redacted())
	case c.Type == "":
		return fmt.Errorf("%w: --type is empty", ErrConfig)
	case c.InFlight < 1 || c.InFlight > inFlightMax:
		return fmt.Errorf("%w: --max-in-flight = %d, want 1 to %d", ErrConfig, c.InFlight, inFlightMax)
	case c.AbsenceMax < absentLeast:
		return fmt.Errorf("%w: --absence-max = %v, want at least %v", ErrConfig, c.AbsenceMax, absentLeast)
	}
	return nil
}

// Bridge sends events to one application. Its methods are safe for concurrent use.
type Bridge struct {
	cfg    Config
	http   *http.Client
	target *url.URL
	dial   func(ctx context.Context) (net.Conn, error) // connects as the requests do, with TLS if they use it
	log    *slog.Logger

	mu      sync.Mutex
	since   clock.Instant // the application has accepted no connection since then; 0: it does
	logged  clock.Instant
	absent  func()          // called once when it has been so for AbsenceMax; may be nil
	leaving <-chan struct{} // closed when the worker stops or leaves; events whose requests were not sent go back
}

// New returns a Bridge.
func New(cfg Config, log *slog.Logger) (*Bridge, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	target, _ := url.Parse(cfg.To) // Validate has parsed it
	return newBridge(cfg, target, &tls.Config{MinVersion: tls.VersionTLS12}, log), nil
}

func newBridge(cfg Config, target *url.URL, secure *tls.Config, log *slog.Logger) *Bridge {
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        secure.Clone(), // it is changed there
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConnsPerHost:    cfg.InFlight,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: headerMax,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true, // with https
	}
	dial := dialer.DialContext
	if target.Scheme == "https" {
		dial = (&tls.Dialer{NetDialer: dialer, Config: secure}).DialContext
	}
	return &Bridge{
		cfg: cfg, target: target, log: log,
		dial: func(ctx context.Context) (net.Conn, error) { return dial(ctx, "tcp", hostPort(target)) },
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a 3xx is no verdict
		},
	}
}

// Run hands events to the application until ctx ends and all accepted events are answered. While
// the application accepts no connections no event is taken. The options are for the SDK; a
// WithMaxInFlight among them is overridden. The error is that of [client.Run].
func (b *Bridge) Run(ctx context.Context, endpoint string, options ...client.Option) error {
	options = append(slices.Clip(options), client.WithMaxInFlight(b.cfg.InFlight), client.WithStateMax(0))
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := client.Run(over, endpoint, b.handle, options...); err != nil {
		return err // a bad argument, whether or not the application is there yet
	}
	for b.await(ctx) {
		present, leave := context.WithCancel(ctx)
		b.setPresent(leave, present.Done())
		err := client.Run(present, endpoint, b.handle, options...)
		leave()
		if b.http.CloseIdleConnections(); ctx.Err() != nil || errors.Is(err, client.ErrArgument) {
			return err
		}
		b.log.Warn("no events are taken until the application accepts connections", "url", b.target.Redacted(), "error", err)
	}
	return nil
}

// await returns true when the application accepts connections, or false when ctx has ended.
func (b *Bridge) await(ctx context.Context) bool {
	pauses := backoff.Backoff{Min: lookFirst, Max: lookMax}
	for {
		conn, err := b.dial(ctx)
		if err == nil {
			_ = conn.Close() // nothing was sent
			b.connected()
			return ctx.Err() == nil
		}
		if ctx.Err() == nil {
			b.refused(err)
		}
		if backoff.Sleep(ctx, pauses.Next()) != nil {
			return false
		}
	}
}

func hostPort(u *url.URL) string {
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), u.Scheme)) // the resolver knows the ports of http and https
}

// handle is the handler. It makes one request, and repeats it only while the application accepts no
// connection and the worker does not leave. When the worker leaves, an event whose request was not
// sent goes back at once, instead of after the drain grace.
func (b *Bridge) handle(ctx context.Context, e *client.Event) error {
	pauses := backoff.Backoff{Min: lookFirst, Max: lookMax}
	leaving := b.leaves()
	for {
		response, sent, err := b.send(ctx, e)
		switch {
		case err == nil:
			b.connected()
			return verdict(response)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case sent:
			b.connected()
			return fmt.Errorf("the application did not answer: %w", err)
		}
		b.refused(err)
		pause := time.NewTimer(pauses.Next())
		select {
		case <-pause.C:
			continue
		case <-leaving:
			err = client.ErrDrainTimeout
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		pause.Stop()
		return err
	}
}

// send makes one request. sent is false if the application cannot have seen it: there was no connection for it, or TLS failed.
func (b *Bridge) send(ctx context.Context, e *client.Event) (response *http.Response, sent bool, err error) {
	sent = true // an invalid request, which never gets to a connection, must not be repeated forever
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { sent = false },               // again if nothing was written to a connection that had ended
		GotConn: func(httptrace.GotConnInfo) { sent = true }, // after the handshake of TLS
	}), http.MethodPost, b.target.String(), bytes.NewReader(e.Payload))
	if err != nil {
		return nil, sent, fmt.Errorf("bridge: %w", err)
	}
	setHeaders(request.Header, e, b.cfg.Type)
	response, err = b.http.Do(request)
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // without the URL, which the log has
	}
	return response, sent, err //nolint:wrapcheck // the callers wrap it
}

// verdict reads and closes a response.
func verdict(r *http.Response) error {
	defer r.Body.Close()
	if r.StatusCode < http.StatusOK { // 101, whose body is the connection itself: no context ends a read from it
		return errors.New(r.Status)
	}
	if r.StatusCode >= 200 && r.StatusCode < 300 {
		_, err := io.CopyN(io.Discard, r.Body, bodyMax)
		if err == nil || errors.Is(err, io.EOF) {
			return nil
		}
		return fmt.Errorf("the application's response %s was cut short: %w", r.Status, err)
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, reasonMax)) // as much as there is: the status decides
	reason := r.Status
	if text := strings.ToValidUTF8(strings.TrimSpace(string(body)), "\uFFFD"); text != "" {
		reason += ": " + text
	}
	switch r.StatusCode {
	case http.StatusUnprocessableEntity:
		return client.Reject(errors.New(reason))
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if after, ok := retryAfter(r.Header.Get("Retry-After"), time.Now()); ok { //nolint:forbidigo // Retry-After can be a date
			return client.RetryAfter(errors.New(reason), after)
		}
	}
	return errors.New(reason)
}

// retryAfter reads the header Retry-After: seconds, or a date.
func retryAfter(header string, now time.Time) (after time.Duration, ok bool) {
	if seconds, err := strconv.ParseUint(header, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, retryAfterMax), true
	}
	at, err := http.ParseTime(header)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), retryAfterMax), true
}

// setPresent is called when the worker begins to take events: absent is to be called after a long
// absence of the application, and leaving is closed when the worker stops or leaves.
func (b *Bridge) setPresent(absent func(), leaving <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.absent, b.leaving = absent, leaving
}

// leaves returns what is closed at the end of the present stay.
func (b *Bridge) leaves() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leaving
}

// connected notes that the application accepts connections.
func (b *Bridge) connected() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since != 0 && b.logged != 0 {
		b.log.Info("the application accepts connections again", "url", b.target.Redacted())
	}
	b.since, b.logged = 0, 0
}

// refused notes that the application accepts no connection.
func (b *Bridge) refused(err error) {
	now := clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since == 0 {
		b.since = now
	}
	if b.logged == 0 || now.Sub(b.logged) >= absentLogged {
		b.logged = now
		b.log.Warn("the application accepts no connections; its events wait", "url", b.target.Redacted(), "error", err)
	}
	if b.absent != nil && now.Sub(b.since) >= b.cfg.AbsenceMax {
		b.absent()
		b.absent = nil
	}
}
