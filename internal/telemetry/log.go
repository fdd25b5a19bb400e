// Package telemetry provides a process's log, metrics and traces.
//
// # Concurrency
//
// Everything is safe for concurrent use after its construction.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/ringfence/router/internal/base/setting"
)

// LogConfig sets the level and the form of the log.
type LogConfig struct {
	Level  string `words:"debug,info,warn,error"` // lowest level that is logged: debug, info, warn or error
	Format string `words:"auto,json,text"`        // json, text, or auto: text on a terminal, else json
	Keys   string `words:"hide,reveal"`           // hide or reveal events' keys, which may be personal data, in log lines and spans, and to all who may read the admin endpoint
}

// The values of LogConfig.Keys.
const (
	KeysHidden   = "hide"
	KeysRevealed = "reveal"
)

// DefaultLogConfig returns the settings for production.
func DefaultLogConfig() LogConfig { return LogConfig{Level: "info", Format: "auto", Keys: KeysHidden} }

// Validate reports every field that is out of the range of its tag.
func (c LogConfig) Validate() error { return setting.Check(c) }

// ParseLevel returns the level with this name: debug, info, warn or error.
func ParseLevel(name string) (slog.Level, error) {
	switch name {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("telemetry: Level = %q, want debug, info, warn or error", name)
}

// NewLogger returns a logger that writes to w, usually os.Stderr. The level can be
// changed while it is in use.
func NewLogger(w io.Writer, cfg LogConfig) (*slog.Logger, *slog.LevelVar, error) {
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	at, err := ParseLevel(cfg.Level)
	if err != nil {
		return nil, nil, err
	}
	level := new(slog.LevelVar)
	level.Set(at)
	options := &slog.HandlerOptions{Level: level}
	logger := func(w io.Writer, text bool) *slog.Logger {
		if text {
			return slog.New(slog.NewTextHandler(w, options))
		}
		options.ReplaceAttr = legibleDuration
		return slog.New(slog.NewJSONHandler(w, options))
	}
	text := cfg.Format == "text" || cfg.Format == "auto" && isTerminal(w)
	if o, ok := w.(*Output); ok {
		o.setDirect(logger(o.to, text))
	}
	return logger(w, text), level, nil
}

// legibleDuration writes durations with their unit, as the text form does: a bare number of
// nanoseconds is hard to read.
func legibleDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

func isTerminal(w io.Writer) bool {
	if o, behind := w.(*Output); behind {
		w = o.to
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
