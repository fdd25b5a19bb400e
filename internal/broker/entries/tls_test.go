package entries

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
)

// These tests run in real time, because certificates expire in real time.

func pairOf(t *testing.T, p tlstest.Pair) tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// secured returns a cluster of two brokers, of which the second serves the topic. Both require a certificate of the CA. Connections use
// TCP: without a buffer, both sides of TLS 1.3 would wait for each other when one refuses.
func secured(t *testing.T, ca *tlstest.CA, names ...string) (*fakebroker.Cluster, func(context.Context, string) (net.Conn, error)) {
	t.Helper()
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	cluster := fakebroker.New()
	t.Cleanup(cluster.Close)
	brokers := map[string]*fakebroker.Broker{}
	for _, address := range []string{"a:6651", "b:6651"} {
		brokers[address] = cluster.Broker(address)
		brokers[address].TLS = &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pairOf(t, ca.Issue(t, names...))}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		}
	}
	cluster.Own(topicName, brokers["b:6651"])
	return cluster, func(ctx context.Context, address string) (net.Conn, error) {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		client, err := new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
		if err != nil {
			return nil, err
		}
		server, err := listener.Accept()
		if err == nil {
			brokers[address].Accept(server)
		}
		return client, err
	}
}

func TestTLS(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	ours := ca.Issue(t, "router")
	for name, c := range map[string]struct {
		names []string
		tls   func() *tls.Config
		shows *tls.Certificate // of the provider
		want  string
	}{
		"by host":           {names: []string{"a", "b"}, tls: func() *tls.Config { return ca.ClientConfig(t, "", ours) }},
		"by name":           {names: []string{"cluster"}, tls: func() *tls.Config { return ca.ClientConfig(t, "cluster", ours) }},
		"of the provider":   {names: []string{"a", "b"}, tls: func() *tls.Config { return ca.ClientConfig(t, "") }, shows: new(pairOf(t, ours))},
		"another host":      {names: []string{"c"}, tls: func() *tls.Config { return ca.ClientConfig(t, "", ours) }, want: "no TLS with a:6651"},
		"unknown authority": {names: []string{"a", "b"}, tls: func() *tls.Config { return other.ClientConfig(t, "", ours) }, want: "unknown authority"},
		"no certificate":    {names: []string{"a", "b"}, tls: func() *tls.Config { return ca.ClientConfig(t, "") }, want: "certificate required"},
		"the system's CAs":  {names: []string{"a", "b"}, want: "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, dial := secured(t, ca, c.names...)
			cfg := DefaultConfig()
			cfg.URL = "pulsar+ssl://a"
			access := Access{TLS: c.tls, Dial: dial}
			if c.shows != nil {
				access.Auth = &provider{certificate: c.shows}
			}
			client, err := New(cfg, access, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			q := NewQueue()
			_, err = client.Subscribe(t.Context(), Subscription{Topic: topicName, Name: "s", Type: Shared, Permits: 1, Queue: q})
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("err = %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			cluster.Publish(topicName, fakebroker.Message("x"), 1)
			if got, err := q.Receive(t.Context(), nil, 1); err != nil || string(got[0].Entry.Payload) != "x" {
				t.Errorf("received %v, %v", got, err)
			}
		})
	}
}

// A TLS connection to a broker without TLS fails at once.
func TestNoTLSOnTheOtherSide(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if socket, err := listener.Accept(); err == nil {
			_, _ = socket.Write([]byte("SSH-2.0-OpenSSH_9.9\r\n"))
			_ = socket.Close()
		}
	}()
	cfg := DefaultConfig()
	cfg.URL = "pulsar+ssl://" + listener.Addr().String()
	client, err := New(cfg, Access{}, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Partitions(context.WithoutCancel(t.Context()), topicName)
	if err == nil || !strings.Contains(err.Error(), "no TLS with 127.0.0.1:") {
		t.Errorf("err = %v", err)
	}
	<-done
}
