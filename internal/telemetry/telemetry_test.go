package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	logger, level, err := telemetry.NewLogger(&out, telemetry.LogConfig{Level: "warn", Format: "auto", Keys: "hide"})
	if err != nil {
		t.Fatal(err)
	}
	logger.Info("not to be seen")
	logger.Warn("disk is slow", "component", "journal")
	var line struct{ Level, Msg, Component string }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%q is not one line of JSON: %v", out.String(), err)
	}
	if line.Level != "WARN" || line.Msg != "disk is slow" || line.Component != "journal" {
		t.Errorf("got %+v", line)
	}
	out.Reset()
	level.Set(slog.LevelDebug)
	logger.Debug("now to be seen")
	if out.Len() == 0 {
		t.Error("the level did not change")
	}
}

// What stands in a line is for people, in either form.
func TestLoggerWritesForPeople(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		logger, _, err := telemetry.NewLogger(&out, telemetry.LogConfig{Level: "info", Format: format, Keys: "hide"})
		if err != nil {
			t.Fatal(err)
		}
		logger.Info("stream ended", "took", 981942*time.Microsecond, "peer", forward.Peer{220, 95, 231, 146, 196}, "incarnation", ownership.Incarnation{1, 2})
		for _, want := range []string{"981.942ms", "dc5fe792", "01020000"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s lacks %s: %s", format, want, out.String())
			}
		}
	}
}

func TestLoggerFormats(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0) // a character device, as a terminal is
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var buffer bytes.Buffer
	for name, test := range map[string]struct {
		w      io.Writer
		format string
		text   bool
	}{
		"auto on a terminal": {null, "auto", true},
		"auto elsewhere":     {&buffer, "auto", false},
		"text":               {&buffer, "text", true},
		"json on a terminal": {null, "json", false},
	} {
		logger, _, err := telemetry.NewLogger(test.w, telemetry.LogConfig{Level: "info", Format: test.format, Keys: "hide"})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, text := logger.Handler().(*slog.TextHandler); text != test.text {
			t.Errorf("%s: text is %v, want %v", name, text, test.text)
		}
	}
	_, _, err = telemetry.NewLogger(&buffer, telemetry.LogConfig{Level: "loud", Format: "xml", Keys: "some"})
	if err == nil || !strings.Contains(err.Error(), `Level = "loud"`) || !strings.Contains(err.Error(), `Format = "xml"`) || !strings.Contains(err.Error(), `Keys = "some"`) {
		t.Errorf("error %v, want all three fields in it", err)
	}
	if err := telemetry.DefaultLogConfig().Validate(); err != nil {
		t.Errorf("the default is invalid: %v", err)
	}
}

// request asks a handler and returns the status and the body of its answer.
func request(h http.Handler, method, target string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Code, w.Body.String()
}

func TestProbes(t *testing.T) {
	fine := telemetry.Check{Name: "listeners", Ask: func() error { return nil }}
	workerless := telemetry.Check{Name: "app", Ask: func() error { return errors.New("no worker is connected") }}
	stuck := telemetry.Check{Name: "driver", Ask: func() error { return errors.New("stuck for 10s") }}
	h := telemetry.NewAdminHandler(telemetry.Admin{
		Startup: []telemetry.Check{fine},
		Ready:   []telemetry.Check{fine, workerless, stuck},
		Metrics: telemetry.NewRegistry("v1.2.3"),
	})
	for target, want := range map[string]struct {
		status int
		body   string
	}{
		"/startupz": {200, "ok\n"},
		"/livez":    {200, "ok\n"}, // nothing is asked
		"/readyz":   {503, "app: no worker is connected\ndriver: stuck for 10s\n"},
	} {
		if status, body := request(h, "GET", target); status != want.status || body != want.body {
			t.Errorf("%s: %d %q, want %d %q", target, status, body, want.status, want.body)
		}
	}
	if status, body := request(h, "GET", "/metrics"); status != 200 || !strings.Contains(body, `ringfence_build_info{`) || !strings.Contains(body, `version="v1.2.3"`) {
		t.Errorf("/metrics: %d, without the version of the build", status)
	}
	noticed := telemetry.NewAdminHandler(telemetry.Admin{Ready: []telemetry.Check{fine}, Notice: "not what you think", Metrics: telemetry.NewRegistry("v1")})
	if status, body := request(noticed, "GET", "/readyz"); status != 200 || body != "ok\nnot what you think\n" {
		t.Errorf("/readyz with a notice: %d %q", status, body)
	}
	if status, _ := request(h, "POST", "/readyz"); status != 405 {
		t.Errorf("POST /readyz: %d, want 405", status)
	}
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := 0
		drained := make(chan struct{})
		h := telemetry.NewAdminHandler(telemetry.Admin{
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
		expect("GET", "/drain?wait=5s", 202, "draining\n", 5*time.Second)
		time.AfterFunc(2*time.Second, func() { close(drained) })
		expect("GET", "/drain?wait=5s", 200, "drained\n", 2*time.Second)
		expect("POST", "/drain", 200, "drained\n", 0)
	})
}

func TestUndrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{})
		ending := false
		h := telemetry.NewAdminHandler(telemetry.Admin{
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
		expect("HEAD", "/undrain", 405, "", 0)
		expect("POST", "/undrain?wait=now", 400, "wait = \"now\", want a duration such as 30s\n", 0)
		expect("POST", "/undrain", 202, "it comes back when its drain is over\n", 0)
		time.AfterFunc(2*time.Second, func() { close(begun) })
		expect("GET", "/undrain?wait=5s", 200, "undrained\n", 2*time.Second)
		expect("POST", "/undrain", 200, "undrained\n", 0)
		ending = true
		expect("POST", "/undrain?wait=5s", 409, "it ends\n", 0)
	})
}

// A client that goes away must not hold the handler.
func TestDrainEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := telemetry.NewAdminHandler(telemetry.Admin{
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

func TestDebugHandler(t *testing.T) {
	if status, body := request(telemetry.NewDebugHandler(), "GET", "/debug/pprof/"); status != 200 || !strings.Contains(body, "goroutine") {
		t.Errorf("%d %.100q", status, body)
	}
}

func TestServe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		result <- telemetry.Serve(ctx, listener, telemetry.NewAdminHandler(telemetry.Admin{Metrics: prometheus.NewRegistry()}))
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + listener.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "ok\n" {
		t.Errorf("%q, %v", body, err)
	}
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := telemetry.Serve(t.Context(), listener, http.NotFoundHandler()); err == nil {
		t.Error("serving on a closed listener succeeded")
	}
}
