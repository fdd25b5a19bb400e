package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
)

// socketPath returns a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "name") //nolint:usetesting // t.TempDir has the name of the test in it: too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func TestSocketPermissions(t *testing.T) {
	for _, mode := range []string{"0600", "0660", "666"} {
		path := socketPath(t)
		listener, err := Listen(t.Context(), "unix:"+path, Socket{SocketMode: mode, SocketOwner: fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())})
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%o", info.Mode().Perm()); got != strings.TrimPrefix(mode, "0") {
			t.Errorf("the socket has the permissions %s, want %s", got, mode)
		}
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Errorf("its owner cannot connect: %v", err)
			continue
		}
		conn.Close()
	}
}

func TestStaleSocketsGiveWayAndNothingElse(t *testing.T) {
	path := socketPath(t)
	first, err := Listen(t.Context(), "unix:"+path, DefaultSocket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix:"+path, DefaultSocket()); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a socket in use: %v", err)
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false) // as after a crash
	first.Close()
	second, err := Listen(t.Context(), "unix:"+path, DefaultSocket())
	if err != nil {
		t.Fatalf("a socket that was left behind: %v", err)
	}
	second.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a closed listener leaves its socket: %v", err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix:"+path, DefaultSocket()); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("a file: %v", err)
	}
	if content, _ := os.ReadFile(path); string(content) != "precious" {
		t.Errorf("the file holds %q", content)
	}
	path = socketPath(t)
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	if _, err := Listen(t.Context(), "unix:"+path, DefaultSocket()); err == nil || !strings.Contains(err.Error(), "is there") {
		t.Errorf("a socket of another kind: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket of another kind: %v", err)
	}
}

// TestSocketsWithLongPaths: the longest path works, and the error of a longer one says what is wrong.
func TestSocketsWithLongPaths(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // the test's own folder has a long path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, strings.Repeat("x", UnixPathBytesMax-len(dir)-1))
	l, err := Listen(t.Context(), "unix:"+path, DefaultSocket())
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	_, err = Listen(t.Context(), "unix:"+path+"x", DefaultSocket())
	if err == nil || !strings.Contains(err.Error(), "want at most") {
		t.Errorf("a longer path: %v", err)
	}
}

func TestSocketSettings(t *testing.T) {
	for _, good := range []Socket{DefaultSocket(), {"0777", ":5"}, {"660", "7"}, {"0", "1:2"}} {
		if err := errors.Join(good.CheckMode(), good.CheckOwner()); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []Socket{{"", ""}, {"0888", ""}, {"1777", ""}, {"0600", "app"}, {"0600", "1:-2"}, {"0600", "4294967295"}, {"0600", ":2147483648"}} {
		if bad.CheckMode() == nil && bad.CheckOwner() == nil {
			t.Errorf("%+v is accepted", bad)
		}
		path := socketPath(t)
		if _, err := Listen(t.Context(), "unix:"+path, bad); err == nil {
			t.Errorf("a socket with %+v", bad)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%+v leaves a socket: %v", bad, err)
		}
	}
}

func TestIsLocal(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true, "unix:/run/s": true,
		"0.0.0.0:1": false, ":1": false, "[::]:1": false, "10.0.0.7:1": false, "router:1": false, "unix:": false, "127.0.0.1": false,
	} {
		if got := IsLocal(address); got != want {
			t.Errorf("IsLocal(%q) = %v", address, got)
		}
	}
}

// Beyond the limit connections are closed at once, and a place that becomes free is used.
func TestLimit(t *testing.T) {
	listener, err := Listen(t.Context(), "127.0.0.1:0", DefaultSocket())
	if err != nil {
		t.Fatal(err)
	}
	metrics := NewMetrics(prometheus.NewRegistry())
	limited := Limit(listener, "app", 2, metrics)
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			conn, err := limited.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	dial()
	dial()
	first, second := <-accepted, <-accepted
	third := dial()
	_ = third.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := third.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the third one is not closed: %v", err)
	}
	first.Close()
	first.Close() // twice, as net/http does: it had one place
	dial()
	(<-accepted).Close()
	second.Close()
	if got := testutil.ToFloat64(metrics.rejected.WithLabelValues("app", full)); got != 1 {
		t.Errorf("%v were rejected, want 1", got)
	}
	if got := testutil.ToFloat64(metrics.connections.WithLabelValues("app")); got != 0 {
		t.Errorf("%v connections are open, want 0", got)
	}
	limited.Close()
	if _, open := <-accepted; open {
		t.Error("a caller was accepted after the end")
	}
}

// gRPC behind a listener accepts callers with the certificate, and counts all others.
func TestServerCredentials(t *testing.T) {
	ca := tlstest.NewCA(t)
	open := func(pair tlstest.Pair) *mtls.Store {
		store, err := mtls.Open("peer", mtls.Files{CertFile: pair.CertFile, KeyFile: pair.KeyFile, CAFile: ca.File},
			mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	metrics := NewMetrics(prometheus.NewRegistry())
	told := make(lines, 8)
	creds := ServerCredentials("peer", open(ca.Issue(t, "orders")).Server("orders"), metrics, slog.New(slog.NewTextHandler(told, nil)))
	server := grpc.NewServer(grpc.Creds(creds))
	healthv1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	ask := func(option grpc.DialOption) error {
		conn, err := grpc.NewClient(listener.Addr().String(), option)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		return err
	}
	if err := ask(grpc.WithTransportCredentials(credentials.NewTLS(open(ca.Issue(t, "orders")).Client("orders")))); err != nil {
		t.Errorf("one with the certificate: %v", err)
	}
	if err := ask(grpc.WithTransportCredentials(credentials.NewTLS(open(ca.Issue(t, "payments")).Client("orders")))); err == nil {
		t.Error("one with the certificate of another service got in")
	}
	// The client knows before the server has logged it, and the log limit suppresses the next line.
	select {
	case line := <-told:
		if !strings.Contains(line, "rejected") || !strings.Contains(line, "payments, not for orders") {
			t.Errorf("log line = %q", line)
		}
	case <-time.After(time.Minute):
		t.Error("the rejected callers are not logged")
	}
	if err := ask(grpc.WithTransportCredentials(insecure.NewCredentials())); err == nil {
		t.Error("one without TLS got in")
	}
	server.Stop()
	if err := <-served; err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("Serve: %v", err)
	}
	if got := testutil.ToFloat64(metrics.rejected.WithLabelValues("peer", handshake)); got < 2 {
		t.Errorf("%v were rejected, want 2 at least", got)
	}
	if len(told) > 0 {
		t.Errorf("unwanted log line: %q", <-told)
	}
}

// lines is a log, a line at a time.
type lines chan string

// Write implements [io.Writer].
func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
