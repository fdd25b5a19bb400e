package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/netx/reload"
)

// askTimeout bounds the time for an answer, in addition to any wait in the question itself. A
// member waits for its peers at most two seconds, and eight if all of 256 are silent.
const askTimeout = 10 * time.Second

// answerBytesMax is the longest answer that is read.
const answerBytesMax = 64 << 20

// asker asks the admin endpoint of a router.
type asker struct {
	address   string // flag --admin
	tokenFile string
	caFile    string
	tlsName   string
	file      string // with settings

	settings *config.Config // instead of those that are read; nil: those
}

// addTo adds the flags to a command.
func (a *asker) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.address, "admin", "", "admin endpoint of a router: HOST:PORT or a URL (default: admin.listen of the settings)")
	f.StringVar(&a.tokenFile, "token-file", "", "file with the admin token (default: admin.token or admin.token_file of the settings)")
	f.StringVar(&a.caFile, "ca-file", "", "file with the CAs that sign its certificate (default: it shows admin.tls.cert_file of the settings, or those of the system)")
	f.StringVar(&a.tlsName, "tls-name", "", "name in its certificate, with --ca-file (default: the host of --admin)")
	f.StringVar(&a.file, "config", "", "file with the settings of that router, in YAML")
}

// endpoint is the address and the credentials of the router to query.
type endpoint struct {
	base   string // URL
	token  string
	client *http.Client
}

// endpoint reads the flags and the settings: those of the router, if this runs beside it.
func (a *asker) endpoint() (endpoint, error) {
	settings := a.settings
	if settings == nil {
		loaded, err := config.Read(config.Sources{File: a.file, Environ: os.Environ()})
		if err != nil {
			return endpoint{}, usageError{err}
		}
		settings = &loaded.Config
	}
	address := cmp.Or(a.address, settings.Admin.Listen)
	e := endpoint{base: strings.TrimSuffix(address, "/")}
	if u, err := url.Parse(e.base); err == nil && u.User != nil || strings.Contains(e.base, "@") {
		return endpoint{}, usageError{errors.New("--admin has a user in it, which would be shown: want HOST:PORT or a URL without one, and --token-file")}
	}
	if !strings.Contains(e.base, "://") {
		host, port, err := net.SplitHostPort(e.base)
		if err != nil {
			return endpoint{}, usageError{fmt.Errorf("--admin = %q, want HOST:PORT or a URL", address)}
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1" // it listens everywhere: here too
		}
		scheme := "http://"
		if a.caFile != "" || settings.Admin.TLS.Enabled() {
			scheme = "https://"
		}
		e.base = scheme + net.JoinHostPort(host, port)
	}
	var err error
	if e.client, err = a.client(settings.Admin.TLS); err != nil {
		return endpoint{}, err
	}
	e.token, err = a.token(settings.Admin)
	return e, err
}

// client returns an HTTP client that accepts only the router's certificate: one signed by
// --ca-file, or else the certificate in the settings.
func (a *asker) client(own config.AdminTLS) (*http.Client, error) {
	files, setting := mtls.Files{CAFile: a.caFile}, "--ca-file"
	switch {
	case a.caFile != "":
	case a.tlsName != "":
		return nil, usageError{errors.New("--tls-name is for --ca-file")}
	case !own.Enabled():
		return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, nil // without a proxy of the environment, which would read the token
	default:
		files, setting = mtls.Files{CertFile: own.CertFile, KeyFile: own.KeyFile}, "admin.tls"
	}
	store, err := mtls.Open("admin", files, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", setting, err)}
	}
	verify := store.Twin()
	if a.caFile != "" {
		verify = store.ClientByHost()
		verify.ServerName = a.tlsName // empty: the host that is dialed
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: verify, DisableKeepAlives: true}}, nil
}

func (a *asker) token(settings config.Admin) (string, error) {
	if a.tokenFile == "" {
		if path := settings.TokenFile; path != "" {
			return readToken("admin.token_file", path)
		}
		return string(settings.Token), nil
	}
	return readToken("--token-file", a.tokenFile)
}

// readToken reads a secret from a file, without the end of its line.
func readToken(setting, path string) (string, error) {
	text, err := reload.Bounded(path, reload.BytesMax)
	if err != nil {
		return "", usageError{fmt.Errorf("%s: %w", setting, err)}
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" { // it would ask without a token
		return "", usageError{fmt.Errorf("%s: %s is empty", setting, path)}
	}
	return secret, nil
}

// get puts the answer to a question into answer.
func (a *asker) get(ctx context.Context, path string, answer any) error {
	_, text, err := a.call(ctx, http.MethodGet, path, askTimeout)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("unexpected answer to %s, perhaps from another version of the router: %w", path, err)
	}
	return nil
}

// call makes a request and returns the answer, if it is a good one.
func (a *asker) call(ctx context.Context, method, path string, timeout time.Duration) (code int, text []byte, err error) {
	e, err := a.endpoint()
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, e.base+path, http.NoBody)
	if err != nil {
		return 0, nil, usageError{fmt.Errorf("--admin: %w", err)}
	}
	if e.token != "" {
		request.Header.Set("Authorization", "Bearer "+e.token)
	}
	response, err := e.client.Do(request)
	if err != nil {
		if cause, ok := errors.AsType[*url.Error](err); ok {
			err = cause.Err // without the path: it may have a key in it
		}
		if isNotHTTP(err) {
			return 0, nil, fmt.Errorf("%s is no admin endpoint: its answer is not HTTP; check that this is the router's admin.listen, or use --admin HOST:PORT", e.base)
		}
		return 0, nil, fmt.Errorf("cannot reach %s: %w; check that the router runs and that this is its admin.listen, or use --admin HOST:PORT", e.base, err)
	}
	defer response.Body.Close()
	text, err = io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	if err != nil {
		return 0, nil, fmt.Errorf("the answer of %s ends early: %w", e.base, err)
	}
	return response.StatusCode, text, responseError(e, response.StatusCode, strings.TrimSpace(string(text)))
}

// isNotHTTP reports whether a server has answered in another protocol, or written before the request. net/http has no errors to compare with.
func isNotHTTP(err error) bool {
	return strings.Contains(err.Error(), "malformed HTTP") || strings.Contains(err.Error(), "readLoopPeekFailLocked: %!w(<nil>)")
}

// responseError turns a non-2xx response into an error with a hint; nil for 200 and 202.
func responseError(e endpoint, code int, says string) error {
	switch code {
	case http.StatusOK, http.StatusAccepted:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		if e.token == "" {
			return fmt.Errorf("%s requires a token (%s): use --token-file, or the router's settings", e.base, says)
		}
		if code == http.StatusForbidden {
			return fmt.Errorf("%s refuses the request with any token: %s", e.base, says)
		}
		return fmt.Errorf("%s rejects the token (%s): compare it with admin.token", e.base, says)
	case http.StatusNotFound:
		if strings.HasPrefix(says, "404") { // it has no such page at all
			return fmt.Errorf("%s does not know this request: it is an older version of the router, or not a router", e.base)
		}
	}
	if strings.HasPrefix(says, "<") { // as the web service of a broker answers
		return fmt.Errorf("%s is no admin endpoint: it answers with a page and status %d; check that this is the router's admin.listen, or use --admin HOST:PORT", e.base, code)
	}
	return errors.New(says)
}
