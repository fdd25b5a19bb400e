package dev

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
)

// output is a terminal shared by many processes. Lines are never interleaved, and each names its
// process. It is safe for concurrent use.
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
func (o *output) stream(name string) io.Writer {
	return &lines{each: func(line []byte) error {
		o.line(name, string(bytes.TrimSuffix(line, []byte{'\n'})))
		return nil
	}}
}

// wholeLines returns a writer that passes on its input in whole lines, so that others can write
// to the same place. Not for concurrent use.
func wholeLines(w io.Writer) *lines {
	return &lines{each: func(line []byte) error {
		_, err := w.Write(line)
		return err
	}}
}

// lines splits its input into lines. Each line has its end, except an overlong one.
type lines struct {
	each func(line []byte) error // does not keep it
	rest []byte                  // a line without its end
}

// lineMax is the length at which a line without an end is broken.
const lineMax = 64 << 10

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		end := bytes.IndexByte(l.rest, '\n') + 1
		if end == 0 && len(l.rest) > lineMax {
			end = len(l.rest)
		}
		if end == 0 {
			return len(b), nil
		}
		line := l.rest[:end]
		l.rest = l.rest[end:]
		if err := l.each(line); err != nil {
			return 0, err
		}
	}
}

// end ends the last line.
func (l *lines) end() {
	if len(l.rest) > 0 {
		_ = l.each(append(l.rest, '\n')) // a closed reader misses nothing
		l.rest = nil
	}
}
