// Package written keeps what goroutines and processes write, as their logs and outputs, for a test that reads it meanwhile.
package written

import (
	"strings"
	"sync"
)

// Text holds all that was written to it. Its zero value is empty. It is safe for concurrent use.
type Text struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements [io.Writer]. It does not fail.
func (t *Text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

// String returns the text so far.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// With returns the lines so far that contain part, each with its end.
func (t *Text) With(part string) (lines []string) {
	for line := range strings.Lines(t.String()) {
		if strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return lines
}
