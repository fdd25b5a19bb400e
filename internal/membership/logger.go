package membership

import (
	"context"
	"log"
	"log/slog"
	"strings"
)

// newLogger returns a logger for memberlist that writes to slog, and calls suspect
// with the name of each node that did not answer a probe of ours.
//
// memberlist has callbacks for members that come and go, but none for suspicion:
// its log line is the only sign, seconds before the member is declared dead. A test
// holds the wording; without the line we would merely learn of deaths later.
func newLogger(to *slog.Logger, suspect func(name string)) *log.Logger {
	return log.New(lineWriter{to: to, suspect: suspect}, "", 0)
}

// lineWriter is called once per line.
type lineWriter struct {
	to      *slog.Logger
	suspect func(name string)
}

// memberlist's line about a probe that nobody answered: prefix, name, suffix.
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
	w.to.Log(context.Background(), level, "memberlist", "text", text)
	return len(line), nil
}

// parseLine takes a line like "[WARN] memberlist: text" apart. Only what memberlist
// warns of is of interest, and nothing of it is an error here: it copes, and says so.
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
