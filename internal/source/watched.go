package source

import (
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar/log"
)

// discardWords is the line of the client's log (v0.21.0) that says that it acks an entry which it
// cannot read. It has no other way to tell.
const discardWords = "Discarding corrupted message"

// ears say what to do about a line of the client's log.
type ears map[string]func()

func (e ears) hear(args []any) {
	if heard := e[fmt.Sprint(args...)]; heard != nil {
		heard()
	}
}

// watched is the client's log, with an ear for what the client does on its own.
type watched struct {
	log.Logger
	ears ears
}

// SubLogger implements log.Logger.
func (w watched) SubLogger(fields log.Fields) log.Logger {
	return watched{w.Logger.SubLogger(fields), w.ears}
}

// WithFields implements log.Logger.
func (w watched) WithFields(fields log.Fields) log.Entry {
	return watchedEntry{w.Logger.WithFields(fields), w.ears}
}

// WithField implements log.Logger.
func (w watched) WithField(name string, value any) log.Entry {
	return watchedEntry{w.Logger.WithField(name, value), w.ears}
}

// Warn implements log.Logger.
func (w watched) Warn(args ...any) {
	w.ears.hear(args)
	w.Logger.Warn(args...)
}

// watchedEntry is a line of that log.
type watchedEntry struct {
	log.Entry
	ears ears
}

// WithFields implements log.Entry.
func (w watchedEntry) WithFields(fields log.Fields) log.Entry {
	return watchedEntry{w.Entry.WithFields(fields), w.ears}
}

// WithField implements log.Entry.
func (w watchedEntry) WithField(name string, value any) log.Entry {
	return watchedEntry{w.Entry.WithField(name, value), w.ears}
}

// Error implements log.Entry.
func (w watchedEntry) Error(args ...any) {
	w.ears.hear(args)
	w.Entry.Error(args...)
}
