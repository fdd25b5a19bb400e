package membership

import (
	"context"
	"log"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Limits of log lines of memberlist and about outsiders: a burst, and then one in each
// interval.
const (
	libraryEvery = 10 * time.Second // of one kind
	refusedEvery = 10 * time.Second
	debugEvery   = 100 * time.Millisecond
	debugBurst   = 100

	evidenceEvery = 5 * time.Second
	evidenceBurst = 32

	libraryTextMax = 300 // bytes of a line that are shown
)

// newLogger returns a logger for memberlist that writes to slog, and calls suspect with the
// name of each node that did not answer a probe of ours.
//
// memberlist has callbacks for members that join and leave, but none for suspicion: its log
// line is the only sign, seconds before the member is declared dead. A test checks the wording;
// without the line we would only learn of deaths later.
//
// Any node that reaches the port can cause such lines: those of each kind are limited.
func newLogger(to *slog.Logger, suspect func(name string), metrics *Metrics) *log.Logger {
	w := lineWriter{to: to, suspect: suspect, metrics: metrics, warnings: make(map[string]*loglimit.Limit)}
	for _, k := range lineKinds {
		w.warnings[k.kind] = loglimit.New(to, "memberlist_"+k.kind, libraryEvery, metrics.lines)
	}
	w.warnings[otherLines] = loglimit.New(to, "memberlist_"+otherLines, libraryEvery, metrics.lines)
	w.debug = loglimit.NewBurst(to, "memberlist_debug", debugEvery, debugBurst, metrics.lines)
	return log.New(w, "", 0)
}

// lineKinds are the kinds of memberlist's warnings, each by a text in its lines; the first
// match counts.
var lineKinds = []struct {
	kind     string
	contains []string
}{
	{"decrypt", []string{"ecrypt packet", "ecryption", "no installed keys", "not encrypted", "is encrypted"}},
	{"refused", []string{"ignoring alive", "Ignoring an alive", "Rejected", string(refusedMembers), "membership: refused"}},
	{"conflict", []string{"Conflicting address", "Refuting", "unexpected node"}},
	{"overflow", []string{"queue full", "Too many pending"}},
	{"stream", []string{errNothing.Error()}}, // its line names a label, too
	{"malformed", []string{"decode", "decompress", "truncated", "checksum", "not supported", "msgType", "label", "missing message type", "too short"}},
	{"stream", []string{"failed to receive", "Failed to receive", "Failed to read", "Failed push/pull", "Failed fallback", "Push/Pull", "Failed to push", "Failed to send"}},
	{"probe", []string{"acks received", "Was able to connect", "probe"}},
}

const otherLines = "other"

func kindOf(text string) string {
	for _, k := range lineKinds {
		if slices.ContainsFunc(k.contains, func(part string) bool { return strings.Contains(text, part) }) {
			return k.kind
		}
	}
	return otherLines
}

// lineWriter is called once per line.
type lineWriter struct {
	to       *slog.Logger
	suspect  func(name string)
	metrics  *Metrics
	warnings map[string]*loglimit.Limit // by kind
	debug    *loglimit.Limit
}

// memberlist's line about an unanswered probe: prefix, name, suffix.
const (
	suspectPrefix = "Suspect "
	suspectSuffix = " has failed, no acks received"
)

func (w lineWriter) Write(line []byte) (int, error) {
	level, text := parseLine(string(line))
	if name, ok := strings.CutPrefix(text, suspectPrefix); ok {
		if name, ok := strings.CutSuffix(name, suspectSuffix); ok {
			w.suspect(name)
		}
	}
	limit := w.debug
	if level == slog.LevelWarn {
		kind := kindOf(text)
		w.metrics.library.WithLabelValues(kind).Inc()
		limit = w.warnings[kind]
	} else if !w.to.Enabled(context.Background(), slog.LevelDebug) {
		return len(line), nil
	}
	if to, due := limit.Line(); due {
		to.Log(context.Background(), level, "memberlist", "text", untrusted.Short(text, libraryTextMax))
	}
	return len(line), nil
}

// parseLine splits a line like "[WARN] memberlist: text". Only memberlist's warnings matter,
// and none of them is an error here: memberlist handles the condition, and reports it.
func parseLine(line string) (slog.Level, string) {
	line = strings.TrimSpace(line)
	level := slog.LevelDebug
	if mark, rest, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(mark, "[") {
		if mark == "[WARN" || strings.HasPrefix(mark, "[ERR") {
			level = slog.LevelWarn
		}
		line = rest
	}
	return level, strings.TrimPrefix(line, "memberlist: ")
}
