package listen

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// served is an HTTP listener in this process.
type served struct {
	address string
	metrics *Metrics
}

// serve answers by handler until the test ends, on a listener as set changes it.
func serve(t *testing.T, handler http.Handler, set func(*HTTP)) served {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	h := HTTP{
		Name: "admin", Listener: listener, ConnectionsMax: 64, Probes: []string{"/livez", "/readyz"}, Bodies: []string{"PUT /log/level"},
		Metrics: NewMetrics(registry), LogMetrics: loglimit.NewMetrics(registry), Log: slog.New(slog.DiscardHandler),
	}
	if set != nil {
		set(&h)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(ctx, handler) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return served{listener.Addr().String(), h.Metrics}
}

func (s served) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (s served) rejected(why string) float64 {
	return testutil.ToFloat64(s.metrics.rejected.WithLabelValues("admin", why))
}

// probe asks as the kubelet does: on a connection of its own, for no longer than it would wait.
func (s served) probe(path string) error {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + s.address + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

var fine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })

// write sends bytes as they are.
func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// The server does not wait for a body that it does not read: it answers, and closes the connection.
func TestBodiesAreNotWaitedFor(t *testing.T) {
	s := serve(t, fine, nil)
	for i, head := range []string{
		"POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
		"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n",
		"POST /drain HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST /drain HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf",
	} {
		conn := s.dial(t)
		write(t, conn, head)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		text, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 413 ") {
			t.Errorf("%q: %q, %v", head, text, err)
		}
		if got := s.rejected(body); got != float64(i+1) {
			t.Errorf("%v bodies were counted, want %d", got, i+1)
		}
	}
}

// OPTIONS * is a request like any other: it takes its turn, meets the guard, and its body is not waited for.
func TestOptionsOfTheServerAreBounded(t *testing.T) {
	asked := make(chan string, 2)
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.RequestURI
		http.Error(w, "no", http.StatusForbidden)
	}), nil)
	conn := s.dial(t)
	write(t, conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout + 3*time.Second))
	if text, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 413 ") {
		t.Errorf("with a body that does not come: %q, %v", text, err)
	}
	conn = s.dial(t)
	write(t, conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if text, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 403 ") {
		t.Errorf("without one: %q, %v", text, err)
	}
	if got := len(asked); got != 1 {
		t.Errorf("the handler had %d of the requests, want the one without a body", got)
	}
}

// Where a body is wanted it has to come within its time.
func TestBodiesHaveADeadline(t *testing.T) {
	read := make(chan error, 1)
	s := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		read <- err
	}), nil)
	write(t, s.dial(t), "PUT /log/level HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nin")
	if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a body that does not come ends with %v", err)
	}
}

// TestProbesAreAnsweredUnderAttack: connections without a request, with half of one, with a body that does not come,
// or with a client that does not read, in twice the allowed number, delay no probe.
func TestProbesAreAnsweredUnderAttack(t *testing.T) {
	const connections = 128
	large := strings.Repeat("x", 4<<20)
	for name, request := range map[string]string{
		"silent":            "",
		"half a request":    "GET /livez HT",
		"no body":           "POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
		"a body that waits": "PUT /log/level HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
		"a slow reader":     "GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				if r.URL.Path == "/large" {
					_, _ = io.WriteString(w, large)
				}
			}), nil)
			for range connections {
				conn := s.dial(t)
				_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
				write(t, conn, request)
			}
			for range 3 {
				if err := s.probe("/livez"); err != nil {
					t.Errorf("a probe: %v", err)
				}
			}
			if s.rejected(evicted)+s.rejected(body) == 0 {
				t.Error("nothing is counted")
			}
			if got := testutil.ToFloat64(s.metrics.connections.WithLabelValues("admin")); got > 64 {
				t.Errorf("%v connections are open", got)
			}
		})
	}
}

// A request that was admitted and waits, as a drain does, is not closed to make room.
func TestDrainsAreKept(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	guard := Guard{Name: "admin", Token: NoToken, DrainPath: "/drain", DrainOpen: true, Metrics: NewMetrics(prometheus.NewRegistry())}
	s := serve(t, guard.Protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		select {
		case <-end:
		case <-r.Context().Done():
			t.Error("the request was cut")
		}
		fmt.Fprintln(w, "drained")
	})), func(h *HTTP) { h.ConnectionsMax = 4 })
	drain := s.dial(t)
	write(t, drain, "GET /drain HTTP/1.1\r\nHost: x\r\n\r\n")
	<-begun
	for range 20 {
		s.dial(t)
	}
	for s.rejected(evicted) < 17 {
		time.Sleep(time.Millisecond)
	}
	close(end)
	_ = drain.SetReadDeadline(time.Now().Add(10 * time.Second))
	if line, err := bufio.NewReader(drain).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Errorf("%q, %v", line, err)
	}
}

// A request that is too long gets an error, and is not buffered.
func TestRequestsAreBounded(t *testing.T) {
	read := make(chan error, 1)
	s := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		read <- err
	}), nil)
	ask := func(header string, body int) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+s.address+"/log/level", strings.NewReader(strings.Repeat("x", body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Filler", header)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	if status := ask("short", bodyBytesMax); status != http.StatusOK || <-read != nil {
		t.Errorf("the longest body gets %d", status)
	}
	ask("short", bodyBytesMax+1)
	if err := <-read; err == nil {
		t.Error("a longer body was read to its end")
	}
	if status := ask(strings.Repeat("x", 2*headerBytesMax), 0); status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a long header gets %d", status)
	}
	for s.rejected(malformed) != 1 { // once the connection is closed
		time.Sleep(time.Millisecond)
	}
}

// Pages wait for their turn, and probes do not wait for pages.
func TestPagesWaitForTheirTurn(t *testing.T) {
	s := serve(t, fine, nil)
	began := clock.Now()
	pages := make(chan error)
	const asked = pagesPerSecond * 2
	for range 10 {
		go func() {
			var err error
			for range asked / 10 {
				err = errors.Join(err, s.probe("/v1/members"))
			}
			pages <- err
		}()
	}
	if err := s.probe("/livez"); err != nil {
		t.Error(err)
	}
	for range 10 {
		if err := <-pages; err != nil {
			t.Error(err)
		}
	}
	if took, want := clock.Now().Sub(began), time.Second*(asked-pagesPerSecond)/pagesPerSecond; took < want*9/10 {
		t.Errorf("%d pages took %v, want %v at least", asked, took, want)
	}
}

// TLS: a caller without TLS, or without a request, is rejected, counted, and logged at a
// limited rate.
func TestHTTPWithTLS(t *testing.T) {
	ca := tlstest.NewCA(t)
	pair := ca.Issue(t, "router")
	store, err := mtls.Open("admin", mtls.Files{CertFile: pair.CertFile, KeyFile: pair.KeyFile}, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	told := make(lines, 8)
	s := serve(t, fine, func(h *HTTP) { h.TLS, h.Log = store.Public(), slog.New(slog.NewTextHandler(told, nil)) })
	client := http.Client{Transport: &http.Transport{TLSClientConfig: ca.ClientConfig(t, "router")}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("https://" + s.address + "/v1/members")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 1 {
		t.Errorf("%s by %s", answer.Status, answer.Proto)
	}
	if err := s.probe("/livez"); err == nil {
		t.Error("a probe in the clear is answered")
	}
	if line := <-told; !strings.Contains(line, "rejected") {
		t.Errorf("log line = %q", line)
	}
	if got := s.rejected(handshake); got != 1 {
		t.Errorf("%v handshakes failed, want 1", got)
	}
}

// The listener closes the connection that has been slow for longest, of the address with the most connections.
func TestCrowd(t *testing.T) {
	for range 100 { // it has them in a map
		crowdMakesRoom(t)
	}
}

func crowdMakesRoom(t *testing.T) {
	t.Helper()
	c := newCrowd(4)
	enter := func(id uint64, source string, now clock.Instant, want uint64) {
		t.Helper()
		victim, evicts, enters := c.enter(id, source, now)
		if !enters || victim != want || evicts != (want != 0) {
			t.Errorf("%d: %d makes room (%v), it enters: %v; want %d", id, victim, evicts, enters, want)
		}
	}
	enter(1, "kubelet", 1, 0)
	enter(2, "stranger", 2, 0)
	enter(3, "stranger", 3, 0)
	enter(4, "stranger", 4, 0)
	c.moved(2, 5)
	enter(5, "stranger", 6, 3) // not the kubelet's, which is older
	c.keep(4)
	c.keep(5) // one is kept at most
	enter(6, "stranger", 7, 2)
	enter(7, "stranger", 8, 5)
	c.moved(4, 9) // it is no longer kept
	enter(8, "prometheus", 10, 6)
	enter(9, "kubelet", 11, 7)
	c.leave(4)
	c.leave(4)
	enter(10, "kubelet", 12, 0)
	enter(11, "kubelet", 13, 1)
	same := newCrowd(3)
	for id := range uint64(3) {
		same.enter(id+1, "a", 1)
	}
	if victim, _, _ := same.enter(4, "a", 2); victim != 1 {
		t.Errorf("of those that came at once %d makes room, want 1", victim)
	}
	again := newCrowd(4) // of which one is kept
	again.enter(1, "a", 1)
	again.keep(1)
	again.moved(1, 2)
	again.enter(2, "a", 3)
	again.keep(2)
	again.enter(3, "a", 4)
	again.enter(4, "a", 5)
	if victim, _, _ := again.enter(5, "a", 6); victim != 1 {
		t.Errorf("%d makes room, want 1, whose answer has ended", victim)
	}
	if victim, _, _ := again.enter(6, "a", 7); victim != 3 {
		t.Errorf("%d makes room, want 3: 2 is kept", victim)
	}
	one := newCrowd(1)
	one.enter(1, "a", 1)
	one.keep(1)
	if _, _, enters := one.enter(2, "b", 2); enters {
		t.Error("one enters where the only other one is kept")
	}
}

// Serve ends with its context, and otherwise returns the reason of its end.
func TestServe(t *testing.T) {
	s := serve(t, fine, nil)
	if err := s.probe("/livez"); err != nil {
		t.Error(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	registry := prometheus.NewRegistry()
	h := HTTP{Name: "admin", Listener: listener, ConnectionsMax: 1, Metrics: NewMetrics(registry), LogMetrics: loglimit.NewMetrics(registry), Log: slog.New(slog.DiscardHandler)}
	if err := h.Serve(t.Context(), fine); err == nil {
		t.Error("serving on a closed listener succeeded")
	}
}

// An answer without an end learns when its listener ends, and need not be cut.
func TestAnswersLearnOfTheEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	h := HTTP{Name: "admin", Listener: listener, ConnectionsMax: 4, Metrics: NewMetrics(registry), LogMetrics: loglimit.NewMetrics(registry), Log: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- h.Serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "begin, ")
			_ = http.NewResponseController(w).Flush()
			<-Ending(r)
			fmt.Fprint(w, "end")
		}))
	}()
	answer, err := http.Get("http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	stop()
	if text, err := io.ReadAll(answer.Body); string(text) != "begin, end" || err != nil {
		t.Errorf("the answer is %q (%v)", text, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// callsOf is a listener for calls: with bodies below a path, and answers that come late.
func callsOf(t *testing.T, handler http.HandlerFunc, set func(*HTTP)) served {
	t.Helper()
	return serve(t, handler, func(h *HTTP) {
		h.Bodies, h.Header = []string{"POST /v1/"}, map[string]string{"X-Outcome": "none"}
		h.Bounds = Bounds{BodyBytesMax: 1 << 20, AnswerMax: time.Minute, RequestsPerSecond: 100_000, KeptMax: h.ConnectionsMax}
		if set != nil {
			set(h)
		}
	})
}

// A body below the path may be large, its connection is used again, and its deadline does not end the handler.
func TestBodiesOfCalls(t *testing.T) {
	t.Parallel()
	var conns []string
	s := callsOf(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		conns = append(conns, r.RemoteAddr)
		if r.URL.Path == "/v1/slow" {
			select {
			case <-r.Context().Done():
				t.Error("the deadline of its body has ended the request")
			case <-time.After(bodyTimeout + 500*time.Millisecond):
			}
		}
		fmt.Fprint(w, n, err)
	}, nil)
	client := http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, test := range []struct {
		path string
		body int
		want string
	}{
		{"/v1/slow", 5, "5 <nil>"},
		{"/v1/large", 1 << 20, "1048576 <nil>"},
		{"/v1/larger", 1<<20 + 1, "1048576 http: request body too large"},
	} {
		answer, err := client.Post("http://"+s.address+test.path, "", strings.NewReader(strings.Repeat("x", test.body)))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if string(text) != test.want || answer.Header.Get("X-Outcome") != "none" {
			t.Errorf("%s: %q %v", test.path, text, answer.Header)
		}
	}
	if conns[0] != conns[1] {
		t.Error("the connection of a body was not used again")
	}
	answer, err := client.Post("http://"+s.address+"/v2/", "", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusRequestEntityTooLarge || answer.Header.Get("X-Outcome") != "none" {
		t.Errorf("a body elsewhere: %s %v", answer.Status, answer.Header)
	}
}

// TestNothingRunsBehindChunks: the request that follows the last chunk of a body does not run, since a proxy that goes by the length takes it for a part of the body.
func TestNothingRunsBehindChunks(t *testing.T) {
	t.Parallel()
	for _, lengths := range []string{"Transfer-Encoding: chunked\r\nContent-Length: 4", "Content-Length: 4\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked"} {
		var paths []string
		s := callsOf(t, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			paths = append(paths, r.URL.Path)
			fmt.Fprint(w, n, err)
		}, nil)
		conn := s.dial(t)
		write(t, conn, "POST /v1/first HTTP/1.1\r\nHost: x\r\n"+lengths+"\r\n\r\n1\r\nx\r\n0\r\n\r\nPOST /v1/hidden HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		text, err := io.ReadAll(conn)
		if err != nil || strings.Count(string(text), "HTTP/1.1 ") != 1 || !strings.Contains(string(text), "1 <nil>") || !slices.Equal(paths, []string{"/v1/first"}) {
			t.Errorf("%q: %v ran, answers %q, %v", lengths, paths, text, err)
		}
	}
}

// The time to take an answer begins with the answer, however late it comes.
func TestAnswersMayComeLate(t *testing.T) {
	t.Parallel()
	late := make(chan struct{})
	s := callsOf(t, func(w http.ResponseWriter, _ *http.Request) {
		<-late
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "late")
	}, nil)
	time.AfterFunc(writeTimeout+time.Second, func() { close(late) })
	answer, err := http.Post("http://"+s.address+"/v1/", "", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); string(text) != "late" {
		t.Errorf("%q, %v", text, err)
	}
}

// A full listener closes no connection whose request is being answered, and a caller that goes is noticed.
func TestCallsAreNotClosedForOthers(t *testing.T) {
	inside, gone := make(chan struct{}, 8), make(chan struct{}, 8)
	s := callsOf(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		keep(r.Context()) // as a guard does
		inside <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	}, func(h *HTTP) { h.ConnectionsMax, h.Bounds.KeptMax = 2, 2 })
	calls := []net.Conn{s.dial(t), s.dial(t)}
	for _, c := range calls {
		write(t, c, "POST /v1/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
		<-inside
	}
	if _, err := io.ReadAll(s.dial(t)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Logf("the third connection: %v", err)
	}
	if s.rejected(full) != 1 || s.rejected(evicted) != 0 {
		t.Errorf("%v were too many, %v were closed for others", s.rejected(full), s.rejected(evicted))
	}
	for _, c := range calls {
		c.Close()
		<-gone
	}
}

// A request whose caller has closed its side of the connection while it waited for its turn is refused: without an answer net/http would say 200.
func TestARequestIsRefusedAlsoIfItsCallerIsGone(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	h := HTTP{Metrics: NewMetrics(prometheus.NewRegistry())}
	w := httptest.NewRecorder()
	h.bounded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it ran") })).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody).WithContext(gone))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
		t.Errorf("status %d, want %d, and when to ask again: %v", w.Code, http.StatusTooManyRequests, w.Header())
	}
}

// A listener with a rate of its own has no other one for pages: a call waits only for that.
func TestRequestsOfAListenerWithItsOwnRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := HTTP{Metrics: NewMetrics(prometheus.NewRegistry()), Bounds: Bounds{RequestsPerSecond: 20 * pagesPerSecond}}
		begun, ran := time.Now(), 0
		page := h.bounded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran++ }))
		const burst = 20 * pagesPerSecond / 10
		for range burst {
			page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		}
		if took := time.Since(begun); ran != burst || took > 0 {
			t.Errorf("%d of %d requests ran, in %v", ran, burst, took)
		}
		page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		if took := time.Since(begun); ran != burst+1 || took == 0 {
			t.Errorf("one more ran after %v", took)
		}
	})
}
