package adminhttp_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/adminhttp"
	"github.com/ringfence/router/internal/telemetry"
)

// The level changes at once, for every logger made before, and the change is in the log.
func TestLevelPages(t *testing.T) {
	var out bytes.Buffer
	log, level, err := telemetry.NewLogger(&out, telemetry.LogConfig{Level: "info", Format: "json", Keys: "hide"})
	if err != nil {
		t.Fatal(err)
	}
	component := log.With("component", "forward")
	h := adminhttp.NewHandler(adminhttp.Options{Metrics: prometheus.NewRegistry(), Pages: adminhttp.LevelPages(level, log)})
	put := func(body string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/log/level", strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	for _, step := range []struct {
		body   string
		status int
		answer string
		level  slog.Level
	}{
		{"debug", 200, "debug\n", slog.LevelDebug},
		{" ERROR\n", 200, "error\n", slog.LevelError},
		{"loud", 400, "telemetry: Level = \"loud\", want debug, info, warn or error\n", slog.LevelError},
		{"", 400, "telemetry: Level = \"\", want debug, info, warn or error\n", slog.LevelError},
		{strings.Repeat("x", 100), 400, "want debug, info, warn or error as the body\n", slog.LevelError},
		{"info", 200, "info\n", slog.LevelInfo},
	} {
		if status, answer := put(step.body); status != step.status || answer != step.answer || level.Level() != step.level {
			t.Errorf("PUT %.10q: %d %q and level %v, want %d %q and %v", step.body, status, answer, level.Level(), step.status, step.answer, step.level)
		}
		if status, answer := request(h, "GET", "/log/level"); status != 200 || answer != strings.ToLower(level.Level().String())+"\n" {
			t.Errorf("GET after %.10q: %d %q", step.body, status, answer)
		}
		out.Reset()
		component.Debug("step")
		if seen := out.Len() > 0; seen != (step.level == slog.LevelDebug) {
			t.Errorf("after %.10q a line at debug is written: %v", step.body, seen)
		}
	}
	out.Reset()
	put("warn")
	if !strings.Contains(out.String(), `"level_before":"info","level_now":"warn"`) {
		t.Errorf("the change is not in the log: %q", out.String())
	}
}
