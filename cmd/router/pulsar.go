package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	pulsaroauth2 "github.com/apache/pulsar-client-go/oauth2"
	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/auth"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsarlog"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/netx/reload"
)

// pulsarAuth builds Pulsar client options: credentials and trusted CAs.
type pulsarAuth struct {
	settings config.Pulsar
	store    *mtls.Store // nil: in the clear
	token    *tokenFile  // nil: no pulsar.token_file
}

// newPulsarAuth reads the certificates, if there is TLS, and looks at the files of other credentials.
func newPulsarAuth(settings config.Pulsar, metrics *mtls.Metrics, log *slog.Logger) (*pulsarAuth, error) {
	d := &pulsarAuth{settings: settings}
	if settings.TokenFile != "" {
		d.token = &tokenFile{path: settings.TokenFile, metrics: metrics, log: log}
		if _, err := d.token.read(); err != nil {
			return nil, fmt.Errorf("pulsar.token_file: %w", err)
		}
		metrics.Seen("pulsar")
	}
	if path := settings.Oauth2.KeyFile; path != "" {
		if _, err := reload.Secret(path, reload.BytesMax); err != nil {
			return nil, fmt.Errorf("pulsar.oauth2.key_file: %w", err)
		}
	}
	if !strings.HasPrefix(settings.URL, "pulsar+ssl://") {
		return d, nil
	}
	t := settings.TLS
	var err error
	if d.store, err = mtls.Open("pulsar", mtls.Files{CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile}, metrics, log); err != nil {
		return nil, fmt.Errorf("pulsar.tls: %w", err)
	}
	return d, nil
}

// commandAuth returns the credentials of a command that reads topics of a group. It first checks that the broker accepts them.
func commandAuth(ctx context.Context, settings config.Pulsar, log *slog.Logger) (*pulsarAuth, error) {
	auth, err := newPulsarAuth(settings, mtls.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		return nil, usageError{err}
	}
	if transient, err := auth.preflight(ctx, settings.Topics[0]); err != nil {
		if !transient {
			err = usageError{err}
		}
		return nil, err
	}
	return auth, nil
}

// tokenFile holds the token that lets the router into Pulsar. It is read whenever it is asked for. A file that becomes bad
// changes nothing.
type tokenFile struct {
	path    string
	metrics *mtls.Metrics
	log     *slog.Logger

	mu   sync.Mutex // guards the fields below, and is held while the file is read
	last string     // that was good
	bad  bool       // the file is unusable, and the log has said so
}

func (f *tokenFile) read() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	content, err := reload.Secret(f.path, reload.BytesMax)
	token := strings.TrimSpace(string(content))
	if err == nil && token == "" {
		err = fmt.Errorf("%s is empty", f.path)
	}
	switch {
	case err == nil:
		if f.last != "" && token != f.last {
			f.metrics.Reloaded("pulsar", nil)
		}
		f.last, f.bad = token, false
	case f.last == "":
		return "", err
	case !f.bad:
		f.bad = true
		f.metrics.Reloaded("pulsar", err)
		f.log.Warn("pulsar token cannot be used", "error", err)
	}
	return f.last, nil
}

// options returns the options of a new client. The client rereads files at each connection, and
// checks that a broker's certificate matches the dialed host; TLSValidateHostname would compare
// it with the first host of the URL instead.
func (d *pulsarAuth) options() pulsar.ClientOptions {
	options := pulsar.ClientOptions{
		URL:                   d.settings.URL,
		TLSTrustCertsFilePath: d.settings.TLS.CAFile,
		TLSCertificateFile:    d.settings.TLS.CertFile,
		TLSKeyFilePath:        d.settings.TLS.KeyFile,
		TLSMinVersion:         tls.VersionTLS12,
	}
	if d.store != nil && d.settings.TLS.Name != "" {
		options.TLSConfig = d.store.Client(d.settings.TLS.Name)
	}
	if provider := d.provider(); provider != nil { // a nil Provider in the interface would be taken for one
		options.Authentication = provider
	}
	return options
}

// quietOptions returns the options of a new client whose log and metrics nobody sees. Its calls return their errors.
func (d *pulsarAuth) quietOptions() pulsar.ClientOptions {
	options := d.options()
	options.Logger = pulsarlog.New(slog.New(slog.DiscardHandler))
	options.MetricsRegisterer = prometheus.NewRegistry()
	return options
}

// access returns the credentials of a new client of package entries. It asks for them at each connection.
func (d *pulsarAuth) access() entries.Access {
	var access entries.Access
	if provider := d.provider(); provider != nil { // a nil Provider in the interface would be taken for one
		access.Auth = provider
	}
	if d.store != nil {
		access.TLS = d.tls
	}
	return access
}

// tls returns the configuration of a new connection, if there is TLS.
func (d *pulsarAuth) tls() *tls.Config {
	if name := d.settings.TLS.Name; name != "" {
		return d.store.Client(name)
	}
	return d.store.ClientByHost()
}

// provider returns the authentication of the router, nil for none. Each client needs its own.
func (d *pulsarAuth) provider() auth.Provider {
	s := d.settings
	switch {
	case s.Token != "":
		return auth.NewAuthenticationToken(string(s.Token))
	case s.TokenFile != "":
		return auth.NewAuthenticationTokenFromSupplier(d.token.read)
	case s.Oauth2.IssuerURL != "":
		return newOAuth2(s.Oauth2)
	case s.TLS.CertFile != "":
		return auth.NewAuthenticationFromTLSCertSupplier(func() (*tls.Certificate, error) { return d.store.Certificate(), nil })
	}
	return nil
}

// issuerTimeout bounds each request to an issuer of tokens. It is also the pause after a failed request while the
// token is still valid. The library's provider (v0.21.0) has no timeout: an issuer that accepts connections but does
// not answer would block everyone who needs a token forever.
const issuerTimeout = 5 * time.Second

// tokenSpare is how long before its end a token is replaced.
const tokenSpare = time.Minute

// tokenSecondsMax bounds how long a token is good: an issuer whose tokens never expire may say more seconds than a Duration holds.
const tokenSecondsMax = 365 * 24 * 3600

// oauth2 requests the first token only when a client needs one, so that a router can start while the issuer is down.
type oauth2 struct {
	auth.Provider // but for GetData
	settings      config.PulsarOAuth2
	issuer        *http.Client

	mu     sync.Mutex // guards the fields below, and is held while the issuer is asked
	token  string
	until  clock.Instant // the token is to be replaced; it expires tokenSpare later, also while the machine sleeps
	failed clock.Instant // when the issuer last failed to replace a valid token; 0: never
}

func newOAuth2(settings config.PulsarOAuth2) *oauth2 {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true} // it is asked seldom
	return &oauth2{settings: settings, issuer: &http.Client{Transport: transport, Timeout: issuerTimeout}}
}

// GetData implements auth.Provider. It reads the file of the key each time that it asks the issuer.
func (o *oauth2) GetData() ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := clock.Now()
	good := o.token != "" && now.Before(o.until.Add(tokenSpare))
	if good && (now.Before(o.until) || o.failed != 0 && now.Sub(o.failed) < issuerTimeout) {
		return []byte(o.token), nil
	}
	switch got, err := o.fetch(); {
	case err == nil:
		o.token, o.until = got.AccessToken, now.Add(time.Duration(min(got.ExpiresIn, tokenSecondsMax))*time.Second-tokenSpare)
	case good: // use the old token until the issuer is asked again
		o.failed = clock.Now()
	default:
		return nil, fmt.Errorf("pulsar.oauth2: %w", err)
	}
	return []byte(o.token), nil
}

func (o *oauth2) fetch() (*pulsaroauth2.TokenResult, error) {
	key, err := pulsaroauth2.NewClientCredentialsProviderFromKeyFile("file://" + o.settings.KeyFile).GetClientCredentials()
	if err != nil {
		return nil, fmt.Errorf("key_file: %w", err)
	}
	endpoints, err := pulsaroauth2.GetOIDCWellKnownEndpointsFromIssuerURLWithClient(o.settings.IssuerURL, o.issuer)
	if err != nil {
		return nil, err
	}
	got, err := pulsaroauth2.NewTokenRetriever(o.issuer).ExchangeClientCredentials(pulsaroauth2.ClientCredentialsExchangeRequest{
		TokenEndpoint: endpoints.TokenEndpoint, Audience: o.settings.Audience, ClientID: key.ClientID, ClientSecret: key.ClientSecret,
		Scopes:     append(strings.Fields(o.settings.Scope), strings.Fields(key.Scope)...),
		AuthMethod: pulsaroauth2.TokenEndpointAuthMethodClientSecretPost,
	})
	if err == nil && got.AccessToken == "" {
		err = errors.New("the issuer's answer has no token")
	}
	return got, err
}

// Init implements auth.Provider.
func (o *oauth2) Init() (err error) {
	o.Provider, err = auth.NewAuthenticationOAuth2WithParams(map[string]string{
		auth.ConfigParamType:      auth.ConfigParamTypeClientCredentials,
		auth.ConfigParamIssuerURL: o.settings.IssuerURL,
		auth.ConfigParamAudience:  o.settings.Audience,
		auth.ConfigParamScope:     o.settings.Scope,
		auth.ConfigParamKeyFile:   "file://" + o.settings.KeyFile,
	})
	if err != nil {
		return fmt.Errorf("pulsar.oauth2: %w", err)
	}
	return o.Provider.Init()
}

// admin returns the client of the admin API of the settings.
func (d *pulsarAuth) admin() pulsaradmin.Client {
	return pulsaradmin.Client{URL: d.settings.AdminURL, HTTP: d.adminClient()}
}

// adminClient calls the admin API with the credentials of the other clients.
func (d *pulsarAuth) adminClient() *http.Client {
	return &http.Client{Transport: &adminTransport{auth: d}}
}

// adminTransport authorizes each request, including those after a redirect: brokers
// redirect a request about a topic to its owner. It does not follow a redirect from TLS
// to plain HTTP.
type adminTransport struct {
	auth *pulsarAuth

	once     sync.Once
	provider auth.Provider
	failed   error
	asking   sync.WaitGroup
}

// RoundTrip implements http.RoundTripper.
func (t *adminTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	t.once.Do(t.open)
	if t.failed != nil {
		return nil, t.failed
	}
	request = request.Clone(request.Context())
	if t.provider != nil && t.provider.Name() == "token" {
		if first := request.Response; first != nil && first.Request.URL.Scheme == "https" && request.URL.Scheme != "https" {
			return nil, errors.New("the admin API redirects from https to http: the token is not sent there")
		}
		token, err := t.token(request.Context()) //nolint:contextcheck // it is that of the request
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+string(token))
	}
	// Calls are rare: each has a connection of its own, with the certificates of now.
	transport := &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}
	if t.auth.store != nil {
		transport.TLSClientConfig = t.auth.tls()
	}
	return transport.RoundTrip(request)
}

// token asks the provider, which takes no context, and may call an issuer. If ctx ends first, the call is abandoned,
// and ends by itself.
func (t *adminTransport) token(ctx context.Context) ([]byte, error) {
	start := func(call func()) error {
		t.asking.Go(call)
		return nil
	}
	return pulsarsend.Await(ctx, start, t.provider.GetData, func([]byte) {})
}

func (t *adminTransport) open() {
	if t.provider = t.auth.provider(); t.provider != nil {
		t.failed = t.provider.Init()
	}
}

// greetTimeout bounds the time for a broker's answer to the first lookup.
const greetTimeout = 3 * time.Second

// preflight makes one lookup before any other client starts, and returns its error. transient:
// waiting may help, for example if the broker cannot be reached. Waiting does not help if
// authentication fails or the broker's certificate is wrong; later, the client reports such
// failures only in the log of each attempt.
func (d *pulsarAuth) preflight(ctx context.Context, topic string) (transient bool, err error) {
	heard, options := new(complaint), d.quietOptions()
	options.Logger = pulsarlog.New(slog.New(listener{heard, nil}))
	options.OperationTimeout, options.ConnectionTimeout = greetTimeout, greetTimeout
	options.KeepAliveInterval = greetTimeout // bounds the first word of a broker that accepts and says nothing
	client, err := pulsar.NewClient(options)
	if err != nil {
		if mayPass(err) {
			return true, fmt.Errorf("the issuer of tokens does not answer: %w", err)
		}
		return false, fmt.Errorf("pulsar: %w: look at pulsar.token, pulsar.oauth2 or pulsar.tls (docs/security.md)", err)
	}
	answer := make(chan error, 1)
	var asking sync.WaitGroup
	asking.Go(func() {
		_, err := client.TopicPartitions(topic)
		answer <- err
	})
	defer asking.Wait()
	defer client.Close()
	select {
	case <-ctx.Done():
		return true, ctx.Err() // the node reports the cancellation
	case err = <-answer:
	}
	if err == nil {
		return true, nil
	}
	if why := heard.explain(err); why != nil {
		return false, why
	}
	if said := err.Error(); strings.Contains(said, "connection error") { // the client preserves only the text
		return true, fmt.Errorf("the broker did not answer the lookup: %w: %s", errNoConnection, strings.ReplaceAll(said, "\n", "; "))
	}
	return true, fmt.Errorf("the broker did not answer the lookup: %w", err)
}

// errNoConnection says that no program has spoken as a broker does.
var errNoConnection = errors.New("no connection")

// complaint records why the client could not connect: the client only logs that.
type complaint struct {
	mu   sync.Mutex // guards why, which goroutines of the client write
	why  error
	told bool // by the broker, in words
}

// explain returns why err is permanent, nil if it may.
func (c *complaint) explain(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.why != nil && c.told:
		return fmt.Errorf("pulsar.url: the broker does not authenticate the router: %w: look at pulsar.token, pulsar.oauth2 or pulsar.tls (docs/security.md)", c.why)
	case c.why != nil:
		return fmt.Errorf("pulsar.url: no TLS with the broker: %w: look at pulsar.tls (docs/security.md)", c.why)
	case strings.Contains(err.Error(), "AuthorizationError"):
		return fmt.Errorf("pulsar.topics: the broker accepts the router, but denies access to the topic: %w: grant the router's role produce and consume", err)
	}
	return nil
}

// listener is a log handler that keeps the last complaint.
type listener struct {
	*complaint
	err error // that goes with the lines of this logger
}

// Enabled implements slog.Handler.
func (listener) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler.
func (l listener) Handle(_ context.Context, r slog.Record) error {
	const refused = "Failed to establish connection with broker: "
	l.mu.Lock()
	defer l.mu.Unlock()
	said, ok := strings.CutPrefix(r.Message, refused)
	switch {
	case ok && strings.Contains(strings.ToLower(said), "authenticat"): // not "too many connections"
		l.why, l.told = errors.New(strings.Trim(said, "'")), true
	case l.err != nil && strings.Contains(r.Message, "credentials") && !mayPass(l.err):
		l.why, l.told = l.err, true
	case l.err != nil && ofTLS(l.err):
		l.why, l.told = l.err, false
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (l listener) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if err, ok := a.Value.Any().(error); ok {
			l.err = err
		}
	}
	return l
}

// WithGroup implements slog.Handler.
func (l listener) WithGroup(string) slog.Handler { return l }

// ofTLS reports whether an error concerns a certificate or TLS itself, which waiting does not
// fix. It compares texts, because the client preserves only the text of most errors. Any other
// error may come from a broker that is starting or stopping.
func ofTLS(err error) bool {
	said := err.Error()
	return strings.Contains(said, "tls: ") || strings.Contains(said, "x509: ") || strings.Contains(said, "certificate")
}

// mayPass reports whether an error is one of a network, and not of a certificate.
func mayPass(err error) bool {
	var remote *net.OpError
	if errors.As(err, &remote) && remote.Op == "remote error" { // the other side ends TLS, and says why
		return false
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
