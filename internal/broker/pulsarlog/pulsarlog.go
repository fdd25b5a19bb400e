// Package pulsarlog passes log lines of Pulsar's client on to slog without the contents of messages.
//
// The client (v0.21.0) writes whole commands with their payloads at debug, and messages at
// other levels when it fails: keys, properties and payloads. So this package writes an argument
// only if its type cannot hold such contents: the client's own text, numbers, errors, message
// ids, addresses. Of a command it writes the name, of any other argument the name of its type.
// This also covers later versions of the client that log more.
//
// # Concurrency
//
// Loggers are safe for concurrent use.
package pulsarlog

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"reflect"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar/log"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// textMax is how many bytes of one argument are written.
const textMax = 512

// New returns a log for Pulsar's client.
func New(to *slog.Logger) log.Logger { return logger{to: to} }

// logger implements log.Logger and log.Entry.
type logger struct {
	to  *slog.Logger
	err string // the error that the line is about, "" if it has none
}

// The client's words about a consumer that is closed right after it has subscribed, as the router does to create a subscription. The client
// writes them as errors.
const (
	closedLine  = "Failed to redeliver closing or closed consumer"
	closedError = "consumer closing or closed"
)

// The client's words, at the level of errors, about a subscription that has a consumer already, as when several routers create that of the dead
// letter topic at once, or somebody reads it. The router makes sure in that way that the subscription exists, so it gets the answer that it wants.
const (
	busyLine  = "Failed to create consumer"
	busyError = "ConsumerBusy"
)

// SubLogger implements log.Logger.
func (l logger) SubLogger(fields log.Fields) log.Logger { return l.with(fields) }

// WithFields implements log.Logger.
func (l logger) WithFields(fields log.Fields) log.Entry { return l.with(fields) }

// WithField implements log.Logger.
func (l logger) WithField(name string, value any) log.Entry {
	l.to = l.to.With(name, harmless(value))
	return l
}

// WithError implements log.Logger.
func (l logger) WithError(err error) log.Entry {
	l.to, l.err = l.to.With("error", harmless(err)), ""
	if err != nil {
		l.err = err.Error()
	}
	return l
}

func (l logger) with(fields log.Fields) logger {
	attrs := make([]any, 0, 2*len(fields))
	for name, value := range fields {
		attrs = append(attrs, name, harmless(value))
	}
	l.to = l.to.With(attrs...)
	return l
}

// Debug implements log.Logger.
func (l logger) Debug(args ...any) { l.print(slog.LevelDebug, args) }

// Info implements log.Logger.
func (l logger) Info(args ...any) { l.print(slog.LevelInfo, args) }

// Warn implements log.Logger.
func (l logger) Warn(args ...any) { l.print(slog.LevelWarn, args) }

// Error implements log.Logger.
func (l logger) Error(args ...any) { l.print(slog.LevelError, args) }

// Debugf implements log.Logger.
func (l logger) Debugf(format string, args ...any) { l.printf(slog.LevelDebug, format, args) }

// Infof implements log.Logger.
func (l logger) Infof(format string, args ...any) { l.printf(slog.LevelInfo, format, args) }

// Warnf implements log.Logger.
func (l logger) Warnf(format string, args ...any) { l.printf(slog.LevelWarn, format, args) }

// Errorf implements log.Logger.
func (l logger) Errorf(format string, args ...any) { l.printf(slog.LevelError, format, args) }

// expected reports whether a line is about what the router has brought about itself, see above.
func (l logger) expected(args []any) bool {
	if l.err == closedError {
		return true
	}
	return len(args) == 1 && (args[0] == closedLine || args[0] == busyLine && strings.Contains(l.err, busyError))
}

func (l logger) print(level slog.Level, args []any) {
	if l.expected(args) {
		level = slog.LevelDebug
	}
	if ctx := context.Background(); l.to.Enabled(ctx, level) {
		l.to.Log(ctx, level, fmt.Sprint(allHarmless(args)...)) //nolint:sloglint // the words are the client's
	}
}

func (l logger) printf(level slog.Level, format string, args []any) {
	if ctx := context.Background(); l.to.Enabled(ctx, level) {
		l.to.Log(ctx, level, fmt.Sprintf(format, allHarmless(args)...)) //nolint:sloglint // the words are the client's
	}
}

func allHarmless(args []any) []any {
	all := make([]any, len(args))
	for i, arg := range args {
		all[i] = harmless(arg)
	}
	return all
}

// messageID is a [pulsar.MessageID].
type messageID interface {
	LedgerID() int64
	EntryID() int64
	String() string
}

// harmless returns the part of an argument that may be logged.
func harmless(arg any) any {
	v := reflect.ValueOf(arg)
	if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return "nothing"
	}
	switch arg := arg.(type) {
	case error:
		return shortError{arg}
	case messageID:
		return cut(arg.String())
	case *url.URL:
		return cut(arg.Redacted())
	case net.Addr:
		return cut(arg.String())
	case []string: // names of topics
		return cut(strings.Join(arg, ", "))
	case proto.Message:
		return command(arg.ProtoReflect())
	}
	switch {
	case v.Kind() == reflect.String:
		return cut(v.String())
	case isNumber(v.Kind()):
		return arg // by its own name, if it has one
	case v.Kind() == reflect.Pointer && isNumber(v.Elem().Kind()):
		return v.Elem().Interface()
	}
	return fmt.Sprintf("(%T)", arg)
}

// isNumber reports whether values of a kind neither are nor contain text.
func isNumber(kind reflect.Kind) bool { return kind >= reflect.Bool && kind <= reflect.Complex128 }

// command returns the name of a command without its contents.
func command(m protoreflect.Message) string {
	name := string(m.Descriptor().Name())
	field := m.Descriptor().Fields().ByName("type")
	if field == nil || field.Kind() != protoreflect.EnumKind || field.IsList() {
		return name
	}
	if kind := field.Enum().Values().ByNumber(m.Get(field).Enum()); kind != nil {
		return name + " " + string(kind.Name())
	}
	return name
}

// shortError cuts the text of an error. Handlers can unwrap it.
type shortError struct{ error }

// Error implements error.
func (e shortError) Error() string { return cut(e.error.Error()) }

// Unwrap returns the whole error.
func (e shortError) Unwrap() error { return e.error }

func cut(text string) string {
	if len(text) > textMax {
		return text[:textMax] + "…"
	}
	return text
}
