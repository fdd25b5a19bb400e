package adminhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/ringfence/router/internal/adminhttp"
	"github.com/ringfence/router/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request asks a handler and returns the status and the body of its answer.
func request(h http.Handler, method, target string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Code, w.Body.String()
}

func TestProbes(t *testing.T) {
	fine := adminhttp.Check{Name: "listeners", Ask: func() error { return nil }}
	workerless := adminhttp.Check{Name: "app", Ask: func() error { return errors.New("no worker is connected") }}
	brokerless := adminhttp.Check{Name: "broker", Ask: func() error { return errors.Join(errors.New("a is down"), errors.New("b is down")) }}
	stuck := adminhttp.Check{Name: "driver", Ask: func() error { return errors.New("stuck for 10s") }}
	h := adminhttp.NewHandler(adminhttp.Options{
		Startup: []adminhttp.Check{fine},
		Ready:   []adminhttp.Check{fine, workerless, brokerless, stuck},
		Metrics: telemetry.NewRegistry("v1.2.3"),
	})
	for target, want := range map[string]struct {
		status int
		body   string
	}{
		"/startupz": {200, "ok\n"},
		"/livez":    {200, "ok\n"}, // nothing is asked
		"/readyz":   {503, "app: no worker is connected\nbroker: a is down; b is down\ndriver: stuck for 10s\n"},
	} {
		if status, body := request(h, "GET", target); status != want.status || body != want.body {
			t.Errorf("%s: %d %q, want %d %q", target, status, body, want.status, want.body)
		}
	}
	if status, body := request(h, "GET", "/metrics"); status != 200 || !strings.Contains(body, `ringfence_build_info{`) || !strings.Contains(body, `version="v1.2.3"`) {
		t.Errorf("/metrics: %d, without the version of the build", status)
	}
	noticed := adminhttp.NewHandler(adminhttp.Options{Ready: []adminhttp.Check{fine}, Notice: "not what you think", Metrics: telemetry.NewRegistry("v1")})
	if status, body := request(noticed, "GET", "/readyz"); status != 200 || body != "ok\nnot what you think\n" {
		t.Errorf("/readyz with a notice: %d %q", status, body)
	}
	noticed = adminhttp.NewHandler(adminhttp.Options{Ready: []adminhttp.Check{stuck}, Notice: "not what you think", Metrics: telemetry.NewRegistry("v1")})
	w := httptest.NewRecorder()
	noticed.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
	if body := w.Body.String(); w.Code != 503 || body != "driver: stuck for 10s\nnot what you think\n" {
		t.Errorf("a failing /readyz with a notice: %d %q", w.Code, body)
	}
	if text := w.Header().Get("Content-Type"); text != "text/plain; charset=utf-8" { // a check may quote what outsiders wrote
		t.Errorf("/readyz has the type %q", text)
	}
	if status, _ := request(h, "POST", "/readyz"); status != 405 {
		t.Errorf("POST /readyz: %d, want 405", status)
	}
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := 0
		drained := make(chan struct{})
		h := adminhttp.NewHandler(adminhttp.Options{
			Metrics: prometheus.NewRegistry(),
			Drain: func() <-chan struct{} {
				begun++
				return drained
			},
		})
		expect := func(method, target string, wantStatus int, wantBody string, wantTook time.Duration) {
			t.Helper()
			began := time.Now()
			status, body := request(h, method, target)
			if took := time.Since(began); status != wantStatus || body != wantBody || took != wantTook {
				t.Errorf("%s %s: %d %q after %v, want %d %q after %v", method, target, status, body, took, wantStatus, wantBody, wantTook)
			}
		}
		expect("HEAD", "/drain", 405, "", 0)
		expect("GET", "/drain?wait=soon", 400, "wait = \"soon\", want a duration such as 30s\n", 0)
		expect("GET", "/drain?wait=-1s", 400, "wait = \"-1s\", want a duration such as 30s\n", 0)
		if begun != 0 {
			t.Fatalf("bad requests began %d drains", begun)
		}
		expect("POST", "/drain", 202, "draining\n", 0)
		expect("GET", "/drain?wait=0s", 202, "draining\n", 0)
		expect("GET", "/drain?wait=5s", 202, "draining\n", 5*time.Second)
		expect("GET", "/drain?wait=2h", 202, "draining\n", adminhttp.WaitMax)
		time.AfterFunc(2*time.Second, func() { close(drained) })
		expect("GET", "/drain?wait=5s", 200, "drained\n", 2*time.Second)
		expect("POST", "/drain", 200, "drained\n", 0)
	})
}

// A drain in progress says what it waits for.
func TestDrainWaits(t *testing.T) {
	waits := "2 handlers still running"
	h := adminhttp.NewHandler(adminhttp.Options{
		Metrics: prometheus.NewRegistry(), DrainWaits: func() string { return waits },
		Drain: func() <-chan struct{} { return make(chan struct{}) },
	})
	for _, want := range []string{"draining: 2 handlers still running\n", "draining\n"} {
		if status, body := request(h, "POST", "/drain"); status != 202 || body != want {
			t.Errorf("%d %q, want 202 %q", status, body, want)
		}
		waits = "" // it is over at this moment
	}
}

func TestUndrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{})
		ending := false
		h := adminhttp.NewHandler(adminhttp.Options{
			Metrics: prometheus.NewRegistry(),
			Undrain: func() (<-chan struct{}, error) {
				if ending {
					return nil, errors.New("it ends")
				}
				return begun, nil
			},
		})
		expect := func(method, target string, wantStatus int, wantBody string, wantTook time.Duration) {
			t.Helper()
			began := time.Now()
			status, body := request(h, method, target)
			if took := time.Since(began); status != wantStatus || body != wantBody || took != wantTook {
				t.Errorf("%s %s: %d %q after %v, want %d %q after %v", method, target, status, body, took, wantStatus, wantBody, wantTook)
			}
		}
		for _, method := range []string{"HEAD", "GET", "PUT"} {
			expect(method, "/undrain", 405, "Method Not Allowed\n", 0)
		}
		expect("POST", "/undrain?wait=now", 400, "wait = \"now\", want a duration such as 30s\n", 0)
		expect("POST", "/undrain", 202, "it comes back when its drain is over\n", 0)
		time.AfterFunc(2*time.Second, func() { close(begun) })
		expect("POST", "/undrain?wait=5s", 200, "undrained\n", 2*time.Second)
		expect("POST", "/undrain", 200, "undrained\n", 0)
		ending = true
		expect("POST", "/undrain?wait=5s", 409, "it ends\n", 0)
	})
}

// A client that goes away must not hold the handler.
func TestDrainEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := adminhttp.NewHandler(adminhttp.Options{
			Metrics: prometheus.NewRegistry(),
			Drain:   func() <-chan struct{} { return nil },
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/drain?wait=1h", nil))
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// deadlines notes how long an answer may still take, at each change; 0 for no limit.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Duration
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	if at.IsZero() {
		d.set = append(d.set, 0)
	} else {
		d.set = append(d.set, time.Until(at))
	}
	return nil
}

// A drain may take longer than the server allows other answers to take; a client that does not read its answer may not.
func TestDrainOutlastsTheServersTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := adminhttp.NewHandler(adminhttp.Options{
			Metrics: prometheus.NewRegistry(),
			Drain:   func() <-chan struct{} { return make(chan struct{}) },
		})
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/drain?wait=1m", nil))
		if want := []time.Duration{0, 10 * time.Second}; w.Code != 202 || !slices.Equal(w.set, want) {
			t.Errorf("%d, with the deadlines %v, want %v", w.Code, w.set, want)
		}
	})
}

// One profile at a time, each bounded, with a pause after it as long as it took.
func TestProfilesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := adminhttp.NewDebugHandler()
		expect := func(target string, want int) {
			t.Helper()
			if status, body := request(h, "GET", target); status != want {
				t.Errorf("%s: %d %.100q, want %d", target, status, body, want)
			}
		}
		expect("/debug/pprof/", 200)
		expect("/debug/pprof/cmdline", 200)
		for _, target := range []string{"profile?seconds=31", "profile?seconds=-1", "trace?seconds=6", "heap?seconds=3600", "trace?seconds=0.5", "profile?seconds=99999999"} {
			expect("/debug/pprof/"+target, 400)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			expect("/debug/pprof/heap?seconds=20", 200)
		}()
		synctest.Wait()
		for _, name := range []string{"profile", "trace", "heap", "goroutine", "mutex", "block", "allocs", "threadcreate"} {
			expect("/debug/pprof/"+name, 429)
		}
		<-ended
		expect("/debug/pprof/goroutine", 429)
		time.Sleep(19 * time.Second)
		expect("/debug/pprof/goroutine", 429)
		time.Sleep(1100 * time.Millisecond)
		expect("/debug/pprof/goroutine?debug=2", 200)
		time.Sleep(4 * time.Second)
		expect("/debug/pprof/heap", 429)
		time.Sleep(1100 * time.Millisecond)
		expect("/debug/pprof/heap?seconds=0", 200) // as if nothing was said
		expect("/debug/pprof/nothing", 404)
		if status, _ := request(h, "POST", "/debug/pprof/symbol"); status != 405 {
			t.Errorf("POST symbol: %d", status)
		}
	})
}

// A page is rendered twice a second at most, however many clients ask. A client that goes away cancels no other client's answer.
func TestRendered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var works atomic.Int64
		page := adminhttp.Rendered(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			work := works.Add(1)
			time.Sleep(100 * time.Millisecond)
			w.Header().Set("Content-Type", "text/page")
			if r.URL.Query().Get("member") == "unknown" {
				w.WriteHeader(http.StatusNotFound)
			}
			if r.Context().Err() != nil {
				t.Error("the page was cut")
			}
			fmt.Fprintf(w, "%s %d", r.URL.Query().Get("member"), work)
		}), func(r *http.Request) string { return r.URL.Query().Get("member") })
		hasty, gone := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer gone()
		go page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(hasty, "GET", "/?member=a", nil))
		synctest.Wait()
		for range 60 {
			go func() {
				for range 10 {
					if status, body := request(page, "GET", "/?member=a"); status != 200 || body != "a 1" {
						t.Errorf("%d %q", status, body)
					}
				}
			}()
		}
		time.Sleep(200 * time.Millisecond)
		if status, body := request(page, "GET", "/?member=unknown"); status != 404 || body != "unknown 2" {
			t.Errorf("%d %q", status, body)
		}
		time.Sleep(400 * time.Millisecond)
		if _, body := request(page, "GET", "/?member=a"); body != "a 3" {
			t.Errorf("%q, want a new one", body)
		}
		for i := range 200 { // more than are remembered: no client is refused
			go request(page, "GET", fmt.Sprintf("/?member=%d", i))
		}
		synctest.Wait()
		time.Sleep(time.Second)
		if works.Load() != 203 {
			t.Errorf("it worked %d times", works.Load())
		}
		for range 2 {
			for i := range 200 {
				go request(page, "GET", fmt.Sprintf("/?member=%d", i))
				synctest.Wait()
			}
			time.Sleep(200 * time.Millisecond)
		}
		if n := works.Load() - 203; n != 200+200-64 { // only 64 of the first are given again
			t.Errorf("it worked %d times for 200 forms that were requested twice", n)
		}
		time.Sleep(time.Second) // until they are forgotten
	})
}

// gatherer counts how often metrics are gathered.
type gatherer struct {
	prometheus.Gatherer
	times atomic.Int64
}

func (g *gatherer) Gather() ([]*dto.MetricFamily, error) {
	g.times.Add(1)
	return g.Gatherer.Gather()
}

// Metrics are gathered once, whatever header strangers invent.
func TestMetricsAreGatheredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gatherer{Gatherer: telemetry.NewRegistry("v1")}
		h := adminhttp.NewHandler(adminhttp.Options{Metrics: g})
		for i := range 100 {
			r := httptest.NewRequest("GET", "/metrics", nil)
			r.Header.Set("Accept", fmt.Sprintf("text/plain;version=0.0.4;q=0.%d", i))
			r.Header.Set("Accept-Encoding", fmt.Sprintf("br;q=0.%d", i))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != 200 || !strings.Contains(w.Body.String(), "ringfence_build_info") {
				t.Fatalf("%d %.100q", w.Code, w.Body)
			}
		}
		if n := g.times.Load(); n != 1 {
			t.Errorf("metrics were gathered %d times", n)
		}
		for _, encoding := range []string{"deflate, gzip", ""} { // each gets its own, though both come within the same half second
			r, w := httptest.NewRequest("GET", "/metrics", nil), httptest.NewRecorder()
			r.Header.Set("Accept-Encoding", encoding)
			h.ServeHTTP(w, r)
			if zipped := w.Header().Get("Content-Encoding") == "gzip"; w.Code != 200 || zipped != (encoding != "") {
				t.Errorf("accepting %q: %d, compressed: %v", encoding, w.Code, zipped)
			}
		}
	})
}

// With exemplars, scrapers that accept OpenMetrics get it; without them the format of the series stays as it is.
func TestOpenMetrics(t *testing.T) {
	for exemplars, want := range map[bool]string{true: "application/openmetrics-text", false: "text/plain"} {
		h := adminhttp.NewHandler(adminhttp.Options{Metrics: telemetry.NewRegistry("v1"), Exemplars: exemplars})
		r, w := httptest.NewRequest("GET", "/metrics", nil), httptest.NewRecorder()
		r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Content-Type"); w.Code != 200 || !strings.HasPrefix(got, want) {
			t.Errorf("exemplars %t: %d in %q, want %s", exemplars, w.Code, got, want)
		}
	}
}

// TestRenderedPageThatPanics: callers that wait for a page that panics get an error, not an empty page.
func TestRenderedPageThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := adminhttp.Rendered(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("half"))
			time.Sleep(100 * time.Millisecond)
			panic("a bug")
		}), func(*http.Request) string { return "" })
		go func() {
			defer func() { _ = recover() }() // as the server does
			request(page, "GET", "/")
		}()
		synctest.Wait()
		if status, body := request(page, "GET", "/"); status != http.StatusInternalServerError || body != "the page cannot be shown: see the log of the router\n" {
			t.Errorf("%d %q", status, body)
		}
		time.Sleep(time.Second) // until it is forgotten
	})
}
