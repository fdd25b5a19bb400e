package bridge

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// startSecure runs a bridge to an application with TLS whose certificate it trusts.
func startSecure(t *testing.T, r *clienttest.Router, app *httptest.Server, absenceMax time.Duration) {
	t.Helper()
	trusted := x509.NewCertPool()
	trusted.AddCert(app.Certificate())
	target, err := url.Parse(app.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.To, cfg.AbsenceMax = app.URL, absenceMax
	b := newBridge(cfg, target, &tls.Config{RootCAs: trusted}, slog.New(slog.DiscardHandler))
	startBridge(t, r, b)
}

// secureApp is an application whose TLS can be broken: then it ends each connection before the handshake, as a proxy without a backend does.
type secureApp struct {
	*httptest.Server

	broken, refused, handled atomic.Int32
}

func newSecureApp(t *testing.T, http2 bool) *secureApp {
	t.Helper()
	a := new(secureApp)
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		a.handled.Add(1)
		if r.Header.Get("ce-partitionkey") == "broken" {
			panic(http.ErrAbortHandler)
		}
	}))
	a.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.EnableHTTP2 = http2
	a.Config.SetKeepAlivesEnabled(http2) // a request that crosses the end of an idle connection fails
	a.Listener = breaking{a.Listener, a}
	a.StartTLS()
	t.Cleanup(a.Close)
	return a
}

type breaking struct {
	net.Listener
	app *secureApp
}

func (b breaking) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil || b.app.broken.Load() == 0 {
			return conn, err
		}
		b.app.refused.Add(1)
		_ = conn.Close()
	}
}

// An application whose TLS fails has seen nothing: its events wait, no worker takes further ones, and nothing counts as a failure.
func TestHandshakeThatFails(t *testing.T) {
	app, r := newSecureApp(t, false), clienttest.NewRouter(t)
	app.broken.Store(1)
	startSecure(t, r, app.Server, time.Second)
	early := r.Deliver(&client.Event{Key: "k"})
	eventually.True(t, "the bridge tries", func() bool { return app.refused.Load() > 2 })
	select {
	case <-early.Over():
		t.Fatalf("an event was taken without TLS: %+v", early.Outcome())
	default:
	}
	app.broken.Store(0)
	if got := early.Outcome(); got.Kind != clienttest.Done {
		t.Fatalf("outcome = %+v, want done", got)
	}

	app.broken.Store(1)
	waits := r.Deliver(&client.Event{Key: "k"})
	if got := waits.Outcome(); got.Kind != clienttest.Cancelled {
		t.Errorf("an event whose request was not sent: %+v, want cancelled, which counts as no failure", got)
	}
	app.broken.Store(0)
	if got := waits.Redeliver().Outcome(); got.Kind != clienttest.Done {
		t.Errorf("outcome = %+v, want done", got)
	}
	if n := app.handled.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}

// A certificate that is not trusted is an application that accepts no connection.
func TestCertificateThatIsNotTrusted(t *testing.T) {
	app := newSecureApp(t, true)
	cfg := DefaultConfig()
	cfg.To = app.URL
	b, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if b.await(ctx) {
		t.Error("it is taken for there")
	}
	response, sent, err := b.send(t.Context(), &client.Event{Key: "k"})
	if err == nil {
		_ = response.Body.Close()
	}
	if err == nil || sent {
		t.Errorf("sent %t: %v, want an error before anything was sent", sent, err)
	}
	if n := app.handled.Load(); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A request that had its connection may have been seen, also over HTTP/2.
func TestRequestWithTLSThatBreaks(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		app, r := newSecureApp(t, http2), clienttest.NewRouter(t)
		startSecure(t, r, app.Server, time.Second)
		if got := r.Deliver(&client.Event{Key: "broken"}).Outcome(); got.Kind != clienttest.Retry {
			t.Errorf("HTTP/2 %t: outcome = %+v, want one that counts as a failure", http2, got)
		}
	}
}
