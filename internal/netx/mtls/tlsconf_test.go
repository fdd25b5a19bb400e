package mtls_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
	"github.com/ringfence/router/internal/netx/reload"
)

func open(t *testing.T, files mtls.Files) *mtls.Store {
	t.Helper()
	s, err := mtls.Open("peer", files, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func filesOf(ca *tlstest.CA, pair tlstest.Pair) mtls.Files {
	return mtls.Files{CertFile: pair.CertFile, KeyFile: pair.KeyFile, CAFile: ca.File}
}

// handshake connects two sides over a socket, and returns why each of them refuses: a client of TLS 1.3
// has finished before the server has seen its certificate, so one byte goes each way.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			defer conn.Close()
			err = exchange(tls.Server(conn, server))
		}
		served <- err
	}()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	if client.ServerName == "" {
		client = client.Clone()
		client.ServerName = "127.0.0.1"
	}
	clientErr = exchange(tls.Client(dialed, client))
	dialed.Close()
	return <-served, clientErr
}

func exchange(conn *tls.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if err := conn.Handshake(); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

const account = "spiffe://cluster.local/ns/shop/sa/orders"

// Each side accepts only a certificate of the CA, for that side, with the name.
func TestWhoGetsIn(t *testing.T) {
	ca, stranger := tlstest.NewCA(t), tlstest.NewCA(t)
	serverOnly := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	clientOnly := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for name, test := range map[string]struct {
		name           string
		server, client mtls.Files
		serverSays     string // "": it lets the client in
		clientSays     string
	}{
		"DNS name":               {name: "orders", server: filesOf(ca, ca.Issue(t, "orders")), client: filesOf(ca, ca.Issue(t, "else", "orders"))},
		"URI":                    {name: account, server: filesOf(ca, ca.Issue(t, account)), client: filesOf(ca, ca.Issue(t, account))},
		"DNS name in other case": {name: "Orders.shop.svc", server: filesOf(ca, ca.Issue(t, "orders.shop.svc")), client: filesOf(ca, ca.Issue(t, "ORDERS.shop.svc"))},
		"IP address":             {name: "10.0.0.7", server: filesOf(ca, ca.Issue(t, "10.0.0.7")), client: filesOf(ca, ca.Issue(t, "10.0.0.7"))},
		"client with a wildcard": {
			name: "orders.shop.svc", server: filesOf(ca, ca.Issue(t, "orders.shop.svc")), client: filesOf(ca, ca.Issue(t, "*.shop.svc")),
			serverSays: "is for *.shop.svc, not for orders.shop.svc",
		},
		"server with a wildcard": {
			name: "orders.shop.svc", server: filesOf(ca, ca.Issue(t, "*.shop.svc")), client: filesOf(ca, ca.Issue(t, "orders.shop.svc")),
			clientSays: "is for *.shop.svc, not for orders.shop.svc",
		},
		"client with a longer URI": {
			name: account, server: filesOf(ca, ca.Issue(t, account)), client: filesOf(ca, ca.Issue(t, account+"/else")),
			serverSays: "not for " + account,
		},
		"client of a neighbour": {
			name: "orders", server: filesOf(ca, ca.Issue(t, "orders")), client: filesOf(ca, ca.Issue(t, "payments")),
			serverSays: "is for payments, not for orders",
		},
		"server of a neighbour": {
			name: account, server: filesOf(ca, ca.Issue(t, account+"-x")), client: filesOf(ca, ca.Issue(t, account)),
			clientSays: "is for " + account + "-x, not for " + account,
		},
		"client of another CA": {
			name: "orders", server: filesOf(ca, ca.Issue(t, "orders")), client: filesOf(ca, stranger.Issue(t, "orders")),
			serverSays: "unknown authority",
		},
		"server of another CA": {
			name: "orders", server: filesOf(ca, stranger.Issue(t, "orders")), client: filesOf(ca, ca.Issue(t, "orders")),
			clientSays: "unknown authority",
		},
		"client without a certificate": {
			name: "orders", server: filesOf(ca, ca.Issue(t, "orders")), client: mtls.Files{CAFile: ca.File},
			serverSays: "didn't provide a certificate",
		},
		"client with the certificate of a server": {
			name: "orders", server: filesOf(ca, ca.Issue(t, "orders")), client: filesOf(ca, ca.IssueFor(t, time.Hour, serverOnly, "orders")),
			serverSays: "incompatible key usage",
		},
		"server with the certificate of a client": {
			name: "orders", server: filesOf(ca, ca.IssueFor(t, time.Hour, clientOnly, "orders")), client: filesOf(ca, ca.Issue(t, "orders")),
			clientSays: "incompatible key usage",
		},
		"client whose certificate has ended": {
			name: "orders", server: filesOf(ca, ca.Issue(t, "orders")), client: filesOf(ca, ca.IssueFor(t, -time.Minute, clientOnly, "orders")),
			serverSays: "expired",
		},
	} {
		t.Run(name, func(t *testing.T) {
			serverErr, clientErr := handshake(t, open(t, test.server).Server(test.name), open(t, test.client).Client(test.name))
			if test.serverSays == "" && test.clientSays == "" {
				if serverErr != nil || clientErr != nil {
					t.Errorf("the server's error is %v, the client's %v", serverErr, clientErr)
				}
				return
			}
			if serverErr == nil || clientErr == nil {
				t.Fatalf("the connection was accepted: the server's error is %v, the client's %v", serverErr, clientErr)
			}
			if !strings.Contains(serverErr.Error(), test.serverSays) {
				t.Errorf("the server's error is %v, want %q in it", serverErr, test.serverSays)
			}
			if !strings.Contains(clientErr.Error(), test.clientSays) {
				t.Errorf("the client's error is %v, want %q in it", clientErr, test.clientSays)
			}
		})
	}
}

// A client by host takes a certificate for the address that it dials, and for no other.
func TestClientByHost(t *testing.T) {
	ca := tlstest.NewCA(t)
	client := open(t, mtls.Files{CAFile: ca.File}).ClientByHost()
	for address, want := range map[string]string{"127.0.0.1": "", "127.0.0.2": "127.0.0.2"} {
		pair := ca.Issue(t, address)
		certificate, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		_, err = handshake(t, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}, client)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("a server with a certificate for %s: %v", address, err)
		}
	}
}

// Replaced files take effect at the next connection, without a new configuration.
func TestRotation(t *testing.T) {
	t.Parallel() // it waits
	first, second := tlstest.NewCA(t), tlstest.NewCA(t)
	ca, ours, theirs := first.File, first.Issue(t, "orders"), first.Issue(t, "orders")
	server := open(t, filesOf(first, ours)).Server("orders")
	client := open(t, filesOf(first, theirs)).Client("orders")
	connects := func(when string, want bool) {
		t.Helper()
		time.Sleep(reload.Interval + 50*time.Millisecond)
		serverErr, clientErr := handshake(t, server, client)
		if got := serverErr == nil && clientErr == nil; got != want {
			t.Errorf("%s: connected: %v, want %v (the server's error is %v, the client's %v)", when, got, want, serverErr, clientErr)
		}
	}
	trust := func(cas ...[]byte) {
		t.Helper()
		if err := os.WriteFile(ca, bytes.Join(cas, nil), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) []byte {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	old, successor := read(first.File), read(second.File)

	connects("before", true)
	trust(old, successor)
	ours.Replace(t, second.Issue(t, "orders"))
	connects("with one certificate of the next CA", true)
	theirs.Replace(t, second.Issue(t, "orders"))
	trust(successor)
	connects("with the next CA alone", true)
	theirs.Replace(t, first.Issue(t, "orders"))
	connects("with a certificate of the CA that is gone", false)
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	ca := tlstest.NewCA(t)
	pair, other := ca.Issue(t, "orders"), ca.Issue(t, "orders")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		files mtls.Files
		want  string
	}{
		"no such file":            {mtls.Files{CAFile: "none.pem"}, "none.pem"},
		"key of another":          {mtls.Files{CertFile: pair.CertFile, KeyFile: other.KeyFile}, "does not match"},
		"key without certificate": {mtls.Files{KeyFile: pair.KeyFile}, "go together"},
		"empty CA":                {mtls.Files{CAFile: empty}, "no certificate in PEM"},
		"key as a CA":             {mtls.Files{CAFile: pair.KeyFile}, "a private key among the CAs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mtls.Open("peer", test.files, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Open = %v, want %q in it", err, test.want)
			}
		})
	}
}

// The metrics show the end of a certificate's validity, and a change to unusable files.
func TestMetrics(t *testing.T) {
	t.Parallel() // it waits
	ca := tlstest.NewCA(t)
	pair := ca.Issue(t, "orders")
	registry := prometheus.NewPedanticRegistry()
	s, err := mtls.Open("peer", filesOf(ca, pair), mtls.NewMetrics(registry), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pair.CertFile, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(reload.Interval)
	if _, err := registry.Gather(); err != nil { // which looks at the files
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if got["ringfence_tls_certificate_expiry_timestamp_seconds"] != float64(s.NotAfter().Unix()) || got["ringfence_tls_reloads_total"] != 1 {
		t.Errorf("the metrics are %v", got)
	}
}

// A member whose own certificate the others will refuse says why, at its start and when the certificate is replaced: only the others would see it otherwise.
func TestOwnCertificateThatTheOthersWillRefuse(t *testing.T) {
	ca, both := tlstest.NewCA(t), []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for name, test := range map[string]struct {
		pair tlstest.Pair
		want string // "": it says nothing
	}{
		"good":              {ca.Issue(t, "orders"), ""},
		"ended":             {ca.IssueFor(t, -time.Minute, both, "orders"), "expired"},
		"of another CA":     {tlstest.NewCA(t).Issue(t, "orders"), "unknown authority"},
		"for servers alone": {ca.IssueFor(t, time.Hour, both[:1], "orders"), "incompatible key usage"},
		"for clients alone": {ca.IssueFor(t, time.Hour, both[1:], "orders"), "incompatible key usage"},
		"of another name":   {ca.Issue(t, "bills"), "it is for bills, not for orders"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			said := func(text string) bool {
				return strings.Contains(text, "the other members will refuse this router's certificate") && strings.Contains(text, test.want)
			}
			open := func(pair tlstest.Pair, log *bytes.Buffer) *mtls.Store {
				s, err := mtls.OpenAlike("peer", filesOf(ca, pair), "orders", mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(log, nil)))
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			var log bytes.Buffer
			if open(test.pair, &log); said(log.String()) != (test.want != "") {
				t.Errorf("at the start it says %q, want %q", log.String(), test.want)
			}
			log.Reset()
			first := ca.Issue(t, "orders")
			s := open(first, &log)
			first.Replace(t, test.pair)
			time.Sleep(reload.Interval)
			if s.Certificate(); said(log.String()) != (test.want != "") {
				t.Errorf("after the change it says %q, want %q", log.String(), test.want)
			}
		})
	}
}
