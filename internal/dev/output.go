package dev

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
)

// output is a terminal that many processes share: a line is never torn, and says whose
// it is. It is safe for concurrent use.
type output struct {
	colours bool
	width   int // of the names

	mu sync.Mutex
	w  io.Writer
}

// palette tells neighbours apart on light and dark screens.
var palette = []string{"36", "33", "35", "32", "34", "31"}

// own is the name under which this process itself speaks.
const own = "dev"

// line writes one line of a process. The number in its name gives it its colour, so
// that a member and its application have the same.
func (o *output) line(name, text string) {
	prefix := fmt.Sprintf("%-*s |", o.width, name)
	if o.colours {
		prefix = "\x1b[" + colourOf(name) + "m" + prefix + "\x1b[0m"
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = fmt.Fprintln(o.w, prefix, text) // a terminal that has gone reads nothing
}

func colourOf(name string) string {
	var n int
	if _, err := fmt.Sscanf(name[strings.LastIndexByte(name, '-')+1:], "%d", &n); err != nil || n < 1 {
		return "1" // bold
	}
	return palette[(n-1)%len(palette)]
}

func (o *output) note(format string, args ...any) { o.line(own, fmt.Sprintf(format, args...)) }

// stream returns a writer whose lines are those of a process. Not for concurrent use.
func (o *output) stream(name string) io.Writer { return &stream{output: o, name: name} }

type stream struct {
	output *output
	name   string
	rest   []byte // a line without its end
}

// wholeLines passes on what is written to it in whole lines, so that others can write
// to the same place. Not for concurrent use.
type wholeLines struct {
	w    io.Writer
	rest []byte
}

// Write implements io.Writer.
func (l *wholeLines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	end := bytes.LastIndexByte(l.rest, '\n') + 1
	if end == 0 && len(l.rest) > lineMax {
		end = len(l.rest)
	}
	if end > 0 {
		if _, err := l.w.Write(l.rest[:end]); err != nil {
			return 0, err
		}
		l.rest = append(l.rest[:0], l.rest[end:]...)
	}
	return len(b), nil
}

// end ends the last line.
func (l *wholeLines) end() {
	if len(l.rest) > 0 {
		_, _ = l.w.Write(append(l.rest, '\n')) // who no longer reads misses nothing
		l.rest = nil
	}
}

// lineMax is where a line is broken that has no end.
const lineMax = 64 << 10

// Write implements io.Writer.
func (s *stream) Write(b []byte) (int, error) {
	s.rest = append(s.rest, b...)
	for {
		i := bytes.IndexByte(s.rest, '\n')
		switch {
		case i >= 0:
			s.output.line(s.name, string(s.rest[:i]))
			s.rest = s.rest[i+1:]
		case len(s.rest) > lineMax:
			s.output.line(s.name, string(s.rest))
			s.rest = nil
		default:
			return len(b), nil
		}
	}
}
