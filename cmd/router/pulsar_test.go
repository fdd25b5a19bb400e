package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
)

// adminPage is an admin API that records the tokens of its requests.
func adminPage(t *testing.T) (server *httptest.Server, asked *[]string) {
	t.Helper()
	asked = new([]string)
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, "1")
	}))
	t.Cleanup(server.Close)
	return server, asked
}

// issuerOf is an OAuth 2.0 server that gives one token, and tells of each request for it.
func issuerOf(t *testing.T, token string, seconds int64, asked func(*http.Request)) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	issuer := httptest.NewServer(mux)
	t.Cleanup(issuer.Close)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": issuer.URL, "token_endpoint": issuer.URL + "/token"})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		asked(r)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": seconds})
	})
	return issuer
}

// A token comes from an OAuth 2.0 server, for the clients and for the admin API.
func TestOAuth2(t *testing.T) {
	var secret, audience string
	issuer := issuerOf(t, "fresh", 3600, func(r *http.Request) { secret, audience = r.FormValue("client_secret"), r.FormValue("audience") })
	file := write(t, filepath.Join(t.TempDir(), "client.json"), `{"type": "client_credentials", "client_id": "me", "client_secret": "hush"}`)
	d := authTo(t, config.Pulsar{URL: "pulsar://x:1", Oauth2: config.PulsarOAuth2{IssuerURL: issuer.URL, Audience: "urn:pulsar", KeyFile: file}})
	provider := d.provider()
	if err := provider.Init(); err != nil {
		t.Fatal(err)
	}
	if token, err := provider.GetData(); err != nil || string(token) != "fresh" || secret != "hush" || audience != "urn:pulsar" {
		t.Errorf("the token is %q (%v), asked for with %q for %q", token, err, secret, audience)
	}
	server, asked := adminPage(t)
	server.Start()
	if _, err := (pulsaradmin.Client{URL: server.URL, HTTP: d.adminClient()}).Do(t.Context(), http.MethodGet, "x", nil); err != nil || (*asked)[0] != "Bearer fresh" {
		t.Errorf("the admin API is asked with %q (%v)", *asked, err)
	}
	own := provider.(*oauth2)
	issuer.Close()
	own.until = clock.Now() // it is to be replaced, and the issuer is away
	if token, err := provider.GetData(); err != nil || string(token) != "fresh" {
		t.Errorf("a token that is good for a minute is %q (%v)", token, err)
	}
	own.until = clock.Now().Add(-tokenSpare)
	if token, err := provider.GetData(); err == nil {
		t.Errorf("%q is given out though it has expired", token)
	}
}

// An issuer whose tokens never expire may say so in more seconds than a Duration holds: it is asked once all the same.
func TestOAuth2TokenThatNeverExpires(t *testing.T) {
	asked := 0
	issuer := issuerOf(t, "lasting", 9_999_999_999, func(*http.Request) { asked++ })
	file := write(t, filepath.Join(t.TempDir(), "client.json"), `{"type": "client_credentials", "client_id": "me", "client_secret": "hush"}`)
	own := newOAuth2(config.PulsarOAuth2{IssuerURL: issuer.URL, KeyFile: file})
	for range 3 {
		if token, err := own.GetData(); err != nil || string(token) != "lasting" {
			t.Fatalf("the token is %q (%v)", token, err)
		}
	}
	if asked != 1 {
		t.Errorf("the issuer was asked %d times", asked)
	}
}

// hangingIssuer is an OAuth 2.0 server that accepts connections and never answers, and the settings of a client of it.
func hangingIssuer(t *testing.T, broker string) config.Pulsar {
	t.Helper()
	issuer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { issuer.Close() })
	file := write(t, filepath.Join(t.TempDir(), "client.json"), `{"type": "client_credentials", "client_id": "me", "client_secret": "hush"}`)
	return config.Pulsar{URL: "pulsar://" + broker, Oauth2: config.PulsarOAuth2{IssuerURL: "http://" + issuer.Addr().String(), KeyFile: file}}
}

// An issuer that does not answer keeps no call of the admin API beyond its time, nor those after it, nor the first lookup after the order to end.
func TestIssuerThatHangs(t *testing.T) {
	t.Parallel()
	server, asked := adminPage(t)
	server.Start()
	d := authTo(t, hangingIssuer(t, server.Listener.Addr().String()))
	admin := d.adminClient()
	call := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := pulsaradmin.Client{URL: server.URL, HTTP: admin}.Do(ctx, http.MethodGet, "x", nil)
		return err
	}
	preflight := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := d.preflight(ctx, "persistent://public/default/orders")
		return err
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{{"a call", call}, {"the next one", call}, {"the first lookup", preflight}} {
		ended := make(chan error, 1)
		go func() { ended <- step.do() }()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s ended with %v", step.name, err)
			}
		case <-time.After(4 * issuerTimeout):
			t.Errorf("%s does not end", step.name)
		}
	}
	if len(*asked) > 0 {
		t.Errorf("the admin API was asked with %q", *asked)
	}
}

// While an issuer hangs, a token that is good still is given to all who ask, not to each after another wait.
func TestGoodTokenWhileTheIssuerHangs(t *testing.T) {
	t.Parallel()
	own := newOAuth2(hangingIssuer(t, "x:1").Oauth2)
	own.token, own.until = "good", clock.Now()
	begun := time.Now()
	for range 3 {
		if token, err := own.GetData(); err != nil || string(token) != "good" {
			t.Fatalf("%q (%v)", token, err)
		}
	}
	if took := time.Since(begun); took > 2*issuerTimeout {
		t.Errorf("three connections got the token after %v", took)
	}
}

// The token of a file is that of the moment.
func TestTokenFileIsReadAgain(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "token"), "one\n")
	provider := authTo(t, config.Pulsar{URL: "pulsar://x:1", TokenFile: file}).provider()
	for _, want := range []string{"one", "two"} {
		write(t, file, want+"\n")
		if token, err := provider.GetData(); err != nil || string(token) != want {
			t.Errorf("the token is %q (%v), want %q", token, err, want)
		}
	}
}

// A file that becomes bad changes nothing; one that is bad at the start ends it.
func TestTokenFileThatBecomesBad(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "token"), "one\n")
	d := authTo(t, config.Pulsar{URL: "pulsar://x:1", TokenFile: file})
	provider := d.provider()
	for name, spoil := range map[string]func() error{
		"empty":    func() error { return os.WriteFile(file, []byte("\n"), 0o600) },
		"writable": func() error { return errors.Join(os.WriteFile(file, []byte("two\n"), 0o600), os.Chmod(file, 0o666)) },
		"gone":     func() error { return os.Remove(file) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if token, err := provider.GetData(); err != nil || string(token) != "one" {
			t.Errorf("%s: the token is %q (%v), want the one from before", name, token, err)
		}
		settings := config.Pulsar{URL: "pulsar://x:1", TokenFile: file}
		if _, err := newPulsarAuth(settings, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "pulsar.token_file: ") {
			t.Errorf("%s at the start: %v", name, err)
		}
		_ = os.Remove(file)
		write(t, file, "one\n")
	}
}

// The admin API is asked through TLS with the own certificate, and only when its own is good.
func TestAdminAPIThroughTLS(t *testing.T) {
	ca := tlstest.NewCA(t)
	server, asked := adminPage(t)
	serving := ca.ClientConfig(t, "", ca.Issue(t, "127.0.0.1", "broker.test"))
	serving.ClientAuth, serving.ClientCAs = tls.RequireAndVerifyClientCert, serving.RootCAs
	server.TLS = serving
	server.StartTLS()
	own := ca.Issue(t, "router")
	for name, c := range map[string]struct {
		tls  config.PulsarTLS
		want string // of the error
	}{
		"by host":              {config.PulsarTLS{CAFile: ca.File, CertFile: own.CertFile, KeyFile: own.KeyFile}, ""},
		"by name":              {config.PulsarTLS{CAFile: ca.File, CertFile: own.CertFile, KeyFile: own.KeyFile, Name: "broker.test"}, ""},
		"by another name":      {config.PulsarTLS{CAFile: ca.File, CertFile: own.CertFile, KeyFile: own.KeyFile, Name: "other.test"}, "not for other.test"},
		"of another CA":        {config.PulsarTLS{CAFile: tlstest.NewCA(t).File, CertFile: own.CertFile, KeyFile: own.KeyFile}, "unknown authority"},
		"without certificates": {config.PulsarTLS{CAFile: ca.File}, "certificate required"},
	} {
		*asked = nil
		d := authTo(t, config.Pulsar{URL: "pulsar+ssl://x:1", Token: "hush", TLS: c.tls})
		_, err := (pulsaradmin.Client{URL: server.URL, HTTP: d.adminClient()}).Do(t.Context(), http.MethodGet, "x", nil)
		switch {
		case c.want == "" && (err != nil || len(*asked) != 1 || (*asked)[0] != "Bearer hush"):
			t.Errorf("%s: asked with %q (%v)", name, *asked, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q in it", name, err, c.want)
		}
	}
}

// A broker sends a question on to another one: the token goes along, but not out of TLS.
func TestTokenFollowsRedirects(t *testing.T) {
	ca := tlstest.NewCA(t)
	inTLS, heard := adminPage(t)
	inTLS.TLS = ca.ClientConfig(t, "", ca.Issue(t, "127.0.0.1"))
	inTLS.StartTLS()
	inTheClear, overheard := adminPage(t)
	inTheClear.Start()
	to := ""
	first := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusTemporaryRedirect) }))
	first.TLS = ca.ClientConfig(t, "", ca.Issue(t, "127.0.0.1"))
	first.StartTLS()
	defer first.Close()
	client := pulsaradmin.Client{URL: first.URL, HTTP: authTo(t, config.Pulsar{URL: "pulsar+ssl://x:1", Token: "hush", TLS: config.PulsarTLS{CAFile: ca.File}}).adminClient()}

	to = inTLS.URL
	if _, err := client.Do(t.Context(), http.MethodGet, "x", nil); err != nil || len(*heard) != 1 || (*heard)[0] != "Bearer hush" {
		t.Errorf("the second broker is asked with %q (%v)", *heard, err)
	}
	to = inTheClear.URL
	if _, err := client.Do(t.Context(), http.MethodGet, "x", nil); err == nil || len(*overheard) > 0 {
		t.Errorf("a redirect out of TLS is followed with %q (%v)", *overheard, err)
	}
}

// The client's message about a broker is an error only if waiting does not help.
func TestComplaints(t *testing.T) {
	for name, c := range map[string]struct {
		message string
		err     error
		want    string
	}{
		"not let in":           {"Failed to establish connection with broker: 'Unable to authenticate'", nil, "does not authenticate the router: Unable to authenticate"},
		"too many connections": {"Failed to establish connection with broker: 'Reached the maximum number of connections'", nil, ""},
		"not there":            {"Failed to connect to broker.", &timeout{}, ""},
		"hung up":              {"Failed to perform initial handshake", io.EOF, ""},
		"ends or begins":       {"Failed to connect to broker.", errors.New("unable to read frame size: EOF"), ""},
		"is killed":            {"Failed to connect to broker.", errors.New("unable to read frame size: read tcp 10.0.0.1:1->10.0.0.2:2: read: connection reset by peer"), ""},
		"not TLS":              {"Failed to connect to broker.", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, "no TLS with the broker"},
		"wrong certificate":    {"Failed to connect to broker.", errors.New("tls: failed to verify certificate"), "no TLS with the broker"},
		"no token to read":     {"Failed to load auth credentials", errors.New("empty token credentials"), "does not authenticate the router: empty token"},
	} {
		t.Run(name, func(t *testing.T) {
			why := new(complaint)
			log := slog.New(listener{why, nil}).With("broker", "x")
			if c.err != nil {
				log = log.With("error", c.err)
			}
			log.Warn(c.message) //nolint:sloglint // the client's messages are not constant
			err := why.explain(errors.New("connection error"))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

type timeout struct{}

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

// The reader of entries gets the credentials of the other clients: each client has a provider of its own, and each connection the TLS of
// the moment.
func TestAccessOfTheReaderOfEntries(t *testing.T) {
	if access := authTo(t, config.Pulsar{URL: "pulsar://x:1"}).access(); access.Auth != nil || access.TLS != nil {
		t.Errorf("access in the clear and without credentials is %+v", access)
	}
	access := authTo(t, config.Pulsar{URL: "pulsar://x:1", Token: "secret"}).access()
	if err := access.Auth.Init(); err != nil {
		t.Fatal(err)
	}
	if token, err := access.Auth.GetData(); err != nil || string(token) != "secret" {
		t.Errorf("the token is %q, %v", token, err)
	}
	ca := tlstest.NewCA(t)
	settings := config.Pulsar{URL: "pulsar+ssl://x:1"}
	settings.TLS.CAFile = ca.File
	byHost := authTo(t, settings).access().TLS()
	settings.TLS.Name = "broker.test"
	byName := authTo(t, settings).access().TLS()
	if byHost.InsecureSkipVerify || byHost.RootCAs == nil || byName.VerifyConnection == nil {
		t.Errorf("TLS by host is %+v, by name %+v", byHost, byName)
	}
}
