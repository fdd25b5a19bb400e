package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
	"github.com/ringfence/router/internal/testing/address"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a bridge to a URL beside a router in memory until the test ends, or until the function
// that it returns is called, which waits for the bridge's end.
func start(t *testing.T, r *clienttest.Router, to string, change func(*Config), options ...client.Option) (stop func()) {
	t.Helper()
	return startLogging(t, r, slog.New(slog.DiscardHandler), to, change, options...)
}

func startLogging(t *testing.T, r *clienttest.Router, log *slog.Logger, to string, change func(*Config), options ...client.Option) (stop func()) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.To = to
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	return startBridge(t, r, b, options...)
}

func startBridge(t *testing.T, r *clienttest.Router, b *Bridge, options ...client.Option) (stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.Serve(listener)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		options := append([]client.Option{r.WithClock(), client.WithLogger(slog.New(slog.DiscardHandler))}, options...)
		if err := b.Run(ctx, listener.Addr().String(), options...); err != nil {
			t.Error(err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
		b.http.CloseIdleConnections()
	}
	t.Cleanup(stop)
	return stop
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL + "/events"
}

func TestVerdicts(t *testing.T) {
	answers := map[string]func(w http.ResponseWriter){
		"200":        func(w http.ResponseWriter) { fmt.Fprint(w, "fine") },
		"204":        func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
		"422":        func(w http.ResponseWriter) { http.Error(w, "no such product", http.StatusUnprocessableEntity) },
		"422 long":   func(w http.ResponseWriter) { http.Error(w, strings.Repeat("é", 5000), http.StatusUnprocessableEntity) },
		"422 binary": func(w http.ResponseWriter) { http.Error(w, "a\xffb", http.StatusUnprocessableEntity) },
		"429": func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		},
		"503": func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		"503 nonsense": func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "soon")
			w.WriteHeader(http.StatusServiceUnavailable)
		},
		"500":  func(w http.ResponseWriter) { http.Error(w, "the database is away", http.StatusInternalServerError) },
		"302":  func(w http.ResponseWriter) { w.Header().Set("Location", "/elsewhere"); w.WriteHeader(http.StatusFound) },
		"404":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"none": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}
	to := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/events" || r.Method != http.MethodPost {
			t.Errorf("%s %s, want POST /events alone", r.Method, r.URL.Path)
		}
		key, err := url.PathUnescape(r.Header.Get("ce-partitionkey"))
		if err != nil {
			t.Error(err)
		}
		answers[key](w)
	})
	r := clienttest.NewRouter(t)
	start(t, r, to, nil)
	for key, want := range map[string]clienttest.Outcome{
		"200":          {Kind: clienttest.Done},
		"204":          {Kind: clienttest.Done},
		"422":          {Kind: clienttest.Reject, Reason: "422 Unprocessable Entity: no such product"},
		"422 binary":   {Kind: clienttest.Reject, Reason: "422 Unprocessable Entity: a\uFFFDb"},
		"429":          {Kind: clienttest.Retry, After: 7 * time.Second, Reason: "429 Too Many Requests"},
		"503":          {Kind: clienttest.Retry, Reason: "503 Service Unavailable"},
		"503 nonsense": {Kind: clienttest.Retry, Reason: "503 Service Unavailable"},
		"500":          {Kind: clienttest.Retry, Reason: "500 Internal Server Error: the database is away"},
		"302":          {Kind: clienttest.Retry, Reason: "302 Found"},
		"404":          {Kind: clienttest.Retry, Reason: "404 Not Found"},
		"none":         {Kind: clienttest.Retry, Reason: "the application did not answer: EOF"},
	} {
		if got := r.Deliver(&client.Event{Key: key}).Outcome(); got != want {
			t.Errorf("%s: %+v, want %+v", key, got, want)
		}
	}
	if got := r.Deliver(&client.Event{Key: "422 long"}).Outcome(); got.Kind != clienttest.Reject || len(got.Reason) < 900 || len(got.Reason) > reasonMax {
		t.Errorf("a long reason: %v with %d bytes, want a reject with the part that fits", got.Kind, len(got.Reason))
	}
}

// A request holds all that an event has, in the form of CloudEvents.
func TestRequest(t *testing.T) {
	type request struct {
		header http.Header
		body   string
	}
	requests := make(chan request, 10)
	to := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests <- request{r.Header, string(body)}
	})
	r := clienttest.NewRouter(t)
	start(t, r, to, func(c *Config) { c.Type = "order placed" })
	at := time.Date(2026, 11, 27, 8, 0, 0, 5_000_000, time.UTC)
	r.Deliver(&client.Event{
		ID: client.MessageID{Ledger: 7, Entry: 8, Batch: 9, TopicPartition: -1}, Key: "user 1\xff\"%", Topic: "persistent://public/default/orders",
		Payload: []byte(`{"cents": 500}`), PublishTime: at, Attempt: 3, Fence: client.Fence{Token: 4, Turn: 5},
		Properties: []client.Property{{Name: "Traceparent", Value: "00-1-2-01"}, {Name: "colour", Value: "grün\n"}, {Name: "colour", Value: "second"}},
	}).Outcome()
	got := <-requests
	if got.body != `{"cents": 500}` {
		t.Errorf("body = %q", got.body)
	}
	for name, want := range map[string]string{
		"ce-specversion": "1.0", "ce-id": "7:8:-1:9", "ce-source": "persistent://public/default/orders", "ce-type": "order%20placed",
		"ce-time": "2026-11-27T08:00:00.005Z", "ce-partitionkey": "user%201%FF%22%25", "ce-attempt": "3", "ce-fence": client.Fence{Token: 4, Turn: 5}.String(),
		"content-type": "application/json", "traceparent": "00-1-2-01", "ringfence-properties": `{%22colour%22:%22gr%C3%BCn\n%22}`,
	} {
		if got := got.header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	until, err := time.Parse(time.RFC3339Nano, got.header.Get("ce-deadline"))
	if left := time.Until(until); err != nil || left < 30*time.Minute || left > time.Hour {
		t.Errorf("ce-deadline = %q, want the end of the lease in about an hour", got.header.Get("ce-deadline"))
	}

	r.Deliver(&client.Event{Key: "k", Payload: []byte("\x00plain")}).Outcome()
	if got := (<-requests).header.Get("content-type"); got != "application/octet-stream" {
		t.Errorf("content-type of bytes = %q", got)
	}
	r.Deliver(&client.Event{Key: "k", Payload: []byte("a;b"), Properties: []client.Property{{Name: "Content-Type", Value: "text/csv; header=absent"}}}).Outcome()
	if got := (<-requests).header.Get("content-type"); got != "text/csv; header=absent" {
		t.Errorf("content-type = %q, want the producer's", got)
	}
}

// When the deadline of a key has passed, its request is cut.
func TestRequestIsCut(t *testing.T) {
	started, cut := make(chan struct{}), make(chan struct{})
	to := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server watches the connection once the body is read
		close(started)
		<-r.Context().Done()
		close(cut)
	})
	r := clienttest.NewRouter(t)
	start(t, r, to, nil)
	d := r.Deliver(&client.Event{Key: "k"})
	<-started
	r.Lose("k")
	<-cut
	if got := d.Outcome(); got.Kind != clienttest.Cancelled {
		t.Errorf("outcome = %v, want cancelled", got)
	}
}

// An application that is started late, or again, has not failed.
func TestAbsentApplication(t *testing.T) {
	place, free := address.Held(t)
	r := clienttest.NewRouter(t)
	start(t, r, "http://"+place, func(c *Config) { c.AbsenceMax = time.Hour })
	var handled atomic.Int32
	come := func() *http.Server {
		t.Helper()
		free()
		var listener net.Listener
		eventually.NoError(t, eventually.Most, "the address is free", func() (err error) {
			listener, err = net.Listen("tcp", place)
			return err
		})
		s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled.Add(1) }), ReadHeaderTimeout: time.Minute}
		// A request that crosses the end of an idle connection fails, since the application may have seen it: let there be none.
		s.SetKeepAlivesEnabled(false)
		go func() { _ = s.Serve(listener) }() // it returns at Close
		return s
	}
	first := r.Deliver(&client.Event{Key: "k"})
	select {
	case <-first.Over():
		t.Fatalf("an event was taken before there was an application: %v", first.Outcome())
	case <-time.After(100 * time.Millisecond):
	}
	app := come()
	if got := first.Outcome(); got.Kind != clienttest.Done {
		t.Errorf("outcome = %v, want done", got)
	}

	if err := app.Close(); err != nil {
		t.Fatal(err)
	}
	d := r.Deliver(&client.Event{Key: "k"})
	select {
	case <-d.Over():
		t.Fatalf("outcome without an application: %+v", d.Outcome())
	case <-time.After(200 * time.Millisecond):
	}
	app = come()
	if got := d.Outcome(); got.Kind != clienttest.Done {
		t.Errorf("outcome = %v, want done at the first attempt", got)
	}
	if n := handled.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	if err := app.Close(); err != nil {
		t.Fatal(err)
	}
}

// leavingApp is an application that accepts no further connections while it works on its requests, as
// one that stops in order.
type leavingApp struct {
	address  string
	listener net.Listener
	requests chan *http.Request
	release  chan struct{}
}

func newLeavingApp(t *testing.T) *leavingApp {
	t.Helper()
	a := &leavingApp{requests: make(chan *http.Request, 10), release: make(chan struct{})}
	a.serve(t, "127.0.0.1:0")
	a.address = a.listener.Addr().String()
	return a
}

func (a *leavingApp) serve(t *testing.T, address string) {
	t.Helper()
	var err error
	eventually.NoError(t, eventually.Most, "the address is free", func() error {
		a.listener, err = net.Listen("tcp", address)
		return err
	})
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		a.requests <- r
		if r.Header.Get("ce-partitionkey") == "runs" {
			<-a.release
		}
	})}
	go func() { _ = s.Serve(a.listener) }() // it returns when the listener is closed
	t.Cleanup(func() { _ = s.Close() })
}

// When the application is away for longer than AbsenceMax the worker drains: its running requests have the
// drain grace, events whose requests were not sent go back at once and uncounted, and none is taken
// until the application is there again.
func TestDrainAtAbsence(t *testing.T) {
	app := newLeavingApp(t)
	r := clienttest.NewRouter(t)
	var lines written.Text
	startLogging(t, r, slog.New(slog.NewTextHandler(&lines, nil)), "http://"+app.address, func(c *Config) { c.AbsenceMax = time.Second }, client.WithDrainGrace(time.Hour))
	runs := r.Deliver(&client.Event{Key: "runs"})
	<-app.requests
	if err := app.listener.Close(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	waits := r.Deliver(&client.Event{Key: "waits"})
	if got := waits.Outcome(); got.Kind != clienttest.Cancelled {
		t.Errorf("an event whose request was not sent: %+v, want cancelled, which counts as no failure", got)
	}
	if took := time.Since(begun); took < time.Second {
		t.Errorf("the worker drained after %v, want the AbsenceMax of 1 s", took)
	}
	select {
	case <-runs.Over():
		t.Fatalf("a running request was cut by the drain: %+v", runs.Outcome())
	case <-time.After(100 * time.Millisecond):
	}
	close(app.release)
	if got := runs.Outcome(); got.Kind != clienttest.Done {
		t.Errorf("a request that was running at the drain: %+v, want done", got)
	}
	eventually.True(t, "the log says that no events are taken", func() bool {
		return strings.Contains(lines.String(), "no events are taken until the application accepts connections")
	})

	later := r.Deliver(&client.Event{Key: "later"})
	select {
	case <-later.Over():
		t.Fatalf("an event was taken without an application: %+v", later.Outcome())
	case <-time.After(100 * time.Millisecond):
	}
	app.serve(t, app.address)
	again := waits.Redeliver()
	for _, d := range []*clienttest.Delivery{again, later} {
		if got := d.Outcome(); got.Kind != clienttest.Done {
			t.Errorf("outcome with the application back: %+v, want done", got)
		}
		if attempt := (<-app.requests).Header.Get("ce-attempt"); attempt != "1" {
			t.Errorf("ce-attempt = %s, want 1: the absence is no failure", attempt)
		}
	}
}

// A bridge that is stopped while the application is away does not wait for the drain grace.
func TestStopWhileAbsent(t *testing.T) {
	app := newLeavingApp(t)
	r := clienttest.NewRouter(t)
	stop := start(t, r, "http://"+app.address, func(c *Config) { c.AbsenceMax = time.Hour }, client.WithDrainGrace(time.Hour))
	runs := r.Deliver(&client.Event{Key: "runs"})
	<-app.requests
	if err := app.listener.Close(); err != nil {
		t.Fatal(err)
	}
	waits := r.Deliver(&client.Event{Key: "waits"})
	select {
	case <-waits.Over():
		t.Fatalf("outcome without an application: %+v", waits.Outcome())
	case <-time.After(100 * time.Millisecond):
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	if got := waits.Outcome(); got.Kind != clienttest.Cancelled {
		t.Errorf("outcome = %+v, want cancelled", got)
	}
	close(app.release)
	if got := runs.Outcome(); got.Kind != clienttest.Done {
		t.Errorf("the running request: %+v, want done", got)
	}
	<-stopped
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 27, 8, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"0": 0, "30": 30 * time.Second, "4294967295": retryAfterMax,
		"Fri, 27 Nov 2026 08:01:00 GMT": time.Minute, "Fri, 27 Nov 2026 07:00:00 GMT": 0,
		"": -1, "-1": -1, "soon": -1, "99999999999999999999": -1,
	} {
		got, ok := retryAfter(header, now)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %v, %v, want %v", header, got, ok, want)
		}
	}
}

func TestConfig(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"no URL":        {func(c *Config) { c.To = "" }, "--to is missing"},
		"no URL at all": {func(c *Config) { c.To = "http://[::1" }, "--to"},
		"ftp":           {func(c *Config) { c.To = "ftp://host/" }, "want http:// or https://"},
		"no host":       {func(c *Config) { c.To = "http:///events" }, "want http:// or https://"},
		"password":      {func(c *Config) { c.To = "http://me:secret@host/" }, "me:xxxxx@host"},
		"a bad escape":  {func(c *Config) { c.To = "http://me:secret%zz@host/" }, "--to"},
		"a bad port":    {func(c *Config) { c.To = "http://me:pw/secret@host:x/" }, "--to"},
		"no type":       {func(c *Config) { c.Type = "" }, "--type"},
		"no requests":   {func(c *Config) { c.InFlight = 0 }, "--max-in-flight = 0, want 1 to 100000"},
		"no absence":    {func(c *Config) { c.AbsenceMax = time.Millisecond }, "--absence-max = 1ms, want at least 1s"},
	} {
		cfg := DefaultConfig()
		cfg.To = "https://localhost/events"
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		test.change(&cfg)
		_, err := New(cfg, slog.New(slog.DiscardHandler))
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}
