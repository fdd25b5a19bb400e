package listen

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/internal/testing/eventually"
)

// greeter is a service behind a listener. A Check of "hello" counts as a Hello; under a name other
// than that of the health service it is an ordinary call.
type greeter struct {
	healthv1.UnimplementedHealthServer
}

func (greeter) Check(ctx context.Context, request *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if p, _ := peer.FromContext(ctx); request.GetService() == "hello" {
		p.AuthInfo.(interface{ Greeted() }).Greeted()
	}
	return &healthv1.HealthCheckResponse{}, nil
}

type callersRig struct {
	t        *testing.T
	listener *bufconn.Listener
	metrics  *Metrics
	log      lines
	callers  *Callers
}

// wideBounds are bounds that a test does not reach unless it changes them.
func wideBounds() StrangerBounds {
	return StrangerBounds{ConnectionsMax: 100, BytesMax: 1 << 20, LastMax: time.Hour, CallsMax: 100, CallMax: time.Hour, StuckMax: time.Hour}
}

func newCallersRig(t *testing.T, bounds StrangerBounds, token func() string) *callersRig {
	t.Helper()
	r := &callersRig{t: t, listener: bufconn.Listen(1 << 20), metrics: NewMetrics(prometheus.NewRegistry()), log: make(lines, 1000)}
	r.callers = NewCallers("app", insecure.NewCredentials(), bounds, token, r.metrics, slog.New(slog.NewTextHandler(r.log, nil)))
	server := grpc.NewServer(r.callers.Options()...)
	healthv1.RegisterHealthServer(server, greeter{})
	other := healthv1.Health_ServiceDesc
	other.ServiceName = "other" // the same, and not about health
	server.RegisterService(&other, greeter{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(r.listener) }) // it ends with Stop
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
		if n := r.callers.strangers.Load(); n != 0 {
			t.Errorf("%d strangers are counted after the end", n)
		}
		eventually.True(r.t, "no call is waited for after the end", func() bool {
			r.callers.mu.Lock()
			defer r.callers.mu.Unlock()
			return r.callers.calls == 0
		})
	})
	return r
}

func (r *callersRig) dial() *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///name", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.listener.DialContext(ctx) }))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// check asks over conn; "hello" is a Hello.
func (r *callersRig) check(conn *grpc.ClientConn, service string) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	return err
}

func (r *callersRig) turned(why string) float64 {
	return testutil.ToFloat64(r.metrics.rejected.WithLabelValues("app", why))
}

// A stranger may send a bounded number of bytes; after its Hello it may send any number.
func TestBytesBeforeTheHello(t *testing.T) {
	bounds := wideBounds()
	bounds.BytesMax = 16 << 10
	r := newCallersRig(t, bounds, NoToken)
	long := strings.Repeat("x", 64<<10)
	if err := r.check(r.dial(), long); status.Code(err) != codes.Unavailable {
		t.Errorf("64 KiB from a stranger: %v, want a connection that is closed", err)
	}
	if got := r.turned(bytesBefore); got != 1 {
		t.Errorf("%v were rejected for their bytes, want 1", got)
	}
	conn := r.dial()
	for _, service := range []string{"hello", long, long} {
		if err := r.check(conn, service); err != nil {
			t.Errorf("%d bytes on a connection with a Hello: %v", len(service), err)
		}
	}
	if line := <-r.log; !strings.Contains(line, "rejected") || !strings.Contains(line, "reason=bytes") {
		t.Errorf("log line = %q", line)
	}
}

func TestConnectionsWithoutAHelloAreFew(t *testing.T) {
	bounds := wideBounds()
	bounds.ConnectionsMax = 2
	r := newCallersRig(t, bounds, NoToken)
	first, second := r.dial(), r.dial()
	for _, conn := range []*grpc.ClientConn{first, second} {
		if err := r.check(conn, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.check(r.dial(), "hello"); status.Code(err) != codes.Unavailable {
		t.Errorf("the third one: %v, want a connection that is closed", err)
	}
	if got := r.turned(strangers); got == 0 {
		t.Error("no caller is counted as rejected")
	}
	if err := r.check(first, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := r.check(r.dial(), "hello"); err != nil {
		t.Errorf("one after another has said Hello: %v", err)
	}
	_ = second.Close()
	eventually.True(r.t, "no caller is a stranger", func() bool { return r.callers.strangers.Load() == 0 })
}

func TestASilentConnectionEnds(t *testing.T) {
	bounds := wideBounds()
	bounds.LastMax = 50 * time.Millisecond
	r := newCallersRig(t, bounds, NoToken)
	conn, err := r.listener.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	for buf := make([]byte, 1<<10); err == nil; {
		_, err = conn.Read(buf)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is open still")
	}
	if got := r.turned(silent); got != 1 {
		t.Errorf("%v were rejected for their silence, want 1", got)
	}
}

// open begins a call and sends nothing.
func (r *callersRig) open(conn *grpc.ClientConn) grpc.ClientStream {
	r.t.Helper()
	stream, err := conn.NewStream(r.t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/grpc.health.v1.Health/Check")
	if err != nil {
		r.t.Fatal(err)
	}
	return stream
}

// waiting returns how many calls without a first message take a place.
func (r *callersRig) waiting() int {
	r.callers.mu.Lock()
	defer r.callers.mu.Unlock()
	return r.callers.calls
}

// A connection with a Hello does not lend its freedom to calls of which nothing has come.
func TestCallsThatDoNotBegin(t *testing.T) {
	bounds := wideBounds()
	bounds.CallsMax = 2
	r := newCallersRig(t, bounds, NoToken)
	conn := r.dial()
	if err := r.check(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	first := r.open(conn)
	r.open(conn)
	eventually.True(r.t, "two calls wait", func() bool { return r.waiting() == 2 })
	if err := r.check(conn, ""); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the third one: %v, want ResourceExhausted", err)
	}
	if got := r.turned(calls); got != 1 {
		t.Errorf("%v were rejected, want 1", got)
	}
	if err := first.SendMsg(&healthv1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := first.CloseSend(); err != nil {
		t.Fatal(err)
	}
	eventually.True(r.t, "one call waits", func() bool { return r.waiting() == 1 })
	if err := r.check(conn, ""); err != nil {
		t.Errorf("one after another has begun: %v", err)
	}
}

// Calls that a stranger has opened before its Hello take places when it comes.
func TestCallsFromBeforeTheHello(t *testing.T) {
	bounds := wideBounds()
	bounds.CallsMax = 2
	r := newCallersRig(t, bounds, NoToken)
	conn := r.dial()
	const opened = 5
	var ended atomic.Int64
	for range opened {
		stream := r.open(conn)
		go func() {
			if stream.RecvMsg(&healthv1.HealthCheckResponse{}) != nil {
				ended.Add(1)
			}
		}()
	}
	if err := r.check(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	eventually.True(r.t, "those without a place end", func() bool { return ended.Load() == opened-2 })
	if got := r.waiting(); got != 2 {
		t.Errorf("%d calls wait, want 2", got)
	}
}

func TestACallWhoseMessageDoesNotCome(t *testing.T) {
	bounds := wideBounds()
	bounds.CallMax = 20 * time.Millisecond
	r := newCallersRig(t, bounds, NoToken)
	conn := r.dial()
	if err := r.check(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := r.open(conn).RecvMsg(&healthv1.HealthCheckResponse{}); status.Code(err) == codes.OK {
		t.Error("it got an answer")
	}
	if got := r.turned(silent); got != 1 {
		t.Errorf("%v were rejected for their silence, want 1", got)
	}
}

// One that never reads is cut, whatever it sends.
func TestACallerThatTakesNothing(t *testing.T) {
	bounds := wideBounds()
	bounds.StuckMax = 20 * time.Millisecond
	r := newCallersRig(t, bounds, NoToken)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	conn, _, err := callersCreds{insecure.NewCredentials(), r.callers}.ServerHandshake(ours)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = theirs.Read(make([]byte, 4)) }()
	if _, err := conn.Write([]byte("taken")[:4]); err != nil {
		t.Errorf("a Write that is taken: %v", err)
	}
	if _, err := conn.Write([]byte("never taken")); err == nil {
		t.Error("the Write has ended without an error")
	}
	if got := r.turned(stuck); got != 1 {
		t.Errorf("%v were rejected, want 1", got)
	}
}

func TestTokenOfCalls(t *testing.T) {
	var current atomic.Pointer[string]
	set := func(token string) { current.Store(&token) }
	set("hush")
	r := newCallersRig(t, wideBounds(), func() string { return *current.Load() })
	conn := r.dial()
	ask := func(method string, headers ...string) codes.Code {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), headers...), 20*time.Second)
		defer cancel()
		err := conn.Invoke(ctx, method, &healthv1.HealthCheckRequest{}, &healthv1.HealthCheckResponse{})
		if says := status.Convert(err).Message(); status.Code(err) == codes.Unauthenticated && !strings.Contains(says, "RINGFENCE_APP_TOKEN_FILE") {
			t.Errorf("%q does not say where an application gives its token", says)
		}
		return status.Code(err)
	}
	const work = "/other/Check"
	for name, c := range map[string]struct {
		headers []string
		want    codes.Code
	}{
		"none":           {nil, codes.Unauthenticated},
		"the right one":  {[]string{"authorization", "Bearer hush"}, codes.OK},
		"a wrong one":    {[]string{"authorization", "Bearer hus"}, codes.Unauthenticated},
		"a longer one":   {[]string{"authorization", "Bearer hushh"}, codes.Unauthenticated},
		"an empty one":   {[]string{"authorization", "Bearer "}, codes.Unauthenticated},
		"another scheme": {[]string{"authorization", "Basic hush"}, codes.Unauthenticated},
		"none at all":    {[]string{"authorization", "hush"}, codes.Unauthenticated},
	} {
		if got := ask(work, c.headers...); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := r.turned(token); got != 6 {
		t.Errorf("%v were rejected, want 6", got)
	}
	if got := ask("/grpc.health.v1.Health/Check"); got != codes.OK {
		t.Errorf("a question about health: %v", got)
	}
	set("changed")
	if got := ask(work, "authorization", "Bearer hush"); got != codes.Unauthenticated {
		t.Errorf("the old token: %v", got)
	}
	if got := ask(work, "authorization", "Bearer changed"); got != codes.OK {
		t.Errorf("the new token: %v", got)
	}
	set("")
	if got := ask(work); got != codes.OK {
		t.Errorf("where none is asked for: %v", got)
	}
}
