package telemetry_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

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

// Log lines are readable for people, in either form.
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
	if err == nil || !strings.Contains(err.Error(), `level = "loud"`) || !strings.Contains(err.Error(), `format = "xml"`) || !strings.Contains(err.Error(), `keys = "some"`) {
		t.Errorf("error %v, want all three fields in it", err)
	}
	if err := telemetry.DefaultLogConfig().Validate(); err != nil {
		t.Errorf("the default is invalid: %v", err)
	}
}
