package source

import (
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar/log"
)

// discardWords is the line that the client (v0.21.0) logs when it acks an entry that it cannot
// read. It reports this nowhere else.
const discardWords = "Discarding corrupted message"

// logHooks maps an exact client log line to a callback: the client reports these failures
// nowhere else.
type logHooks map[string]func()

func (h logHooks) call(args []any) {
	if hook := h[fmt.Sprint(args...)]; hook != nil {
		hook()
	}
}

// hookedLogger is the client's log with hooks.
type hookedLogger struct {
	log.Logger
	hooks logHooks
}

// SubLogger implements log.Logger.
func (w hookedLogger) SubLogger(fields log.Fields) log.Logger {
	return hookedLogger{w.Logger.SubLogger(fields), w.hooks}
}

// WithFields implements log.Logger.
func (w hookedLogger) WithFields(fields log.Fields) log.Entry {
	return hookedEntry{w.Logger.WithFields(fields), w.hooks}
}

// WithField implements log.Logger.
func (w hookedLogger) WithField(name string, value any) log.Entry {
	return hookedEntry{w.Logger.WithField(name, value), w.hooks}
}

// Warn implements log.Logger.
func (w hookedLogger) Warn(args ...any) {
	w.hooks.call(args)
	w.Logger.Warn(args...)
}

// hookedEntry is an entry of that log with hooks.
type hookedEntry struct {
	log.Entry
	hooks logHooks
}

// WithFields implements log.Entry.
func (w hookedEntry) WithFields(fields log.Fields) log.Entry {
	return hookedEntry{w.Entry.WithFields(fields), w.hooks}
}

// WithField implements log.Entry.
func (w hookedEntry) WithField(name string, value any) log.Entry {
	return hookedEntry{w.Entry.WithField(name, value), w.hooks}
}

// Error implements log.Entry.
func (w hookedEntry) Error(args ...any) {
	w.hooks.call(args)
	w.Entry.Error(args...)
}
