package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ringfence/router/internal/base/clock"
)

// reader reads the records of one journal in order.
type reader struct {
	path string
	file *os.File
	buf  *bufio.Reader
	line int
	last clock.Instant // of the newest record
	torn bool          // the file ended within a line
}

func openReader(path string) (*reader, error) {
	file, err := os.Open(path) //nolint:gosec // the path comes from the command line
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	r := &reader{path: path, file: file, buf: bufio.NewReaderSize(file, lineBytesMax)}
	first, err := r.buf.ReadString('\n')
	switch {
	case errors.Is(err, io.EOF): // killed before the header was out
		r.torn = first != ""
	case err != nil:
		err = fmt.Errorf("journal: %w", err)
	case first != header && first != headerNoTurns:
		err = fmt.Errorf("journal: %s: not a journal of this version: it begins with %.40q", path, first)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, file.Close())
	}
	r.line = 1
	return r, nil
}

// next returns the next record, or io.EOF after the last complete one.
func (r *reader) next() (record, error) {
	line, err := r.buf.ReadSlice('\n')
	if errors.Is(err, io.EOF) {
		r.torn = r.torn || len(line) > 0
		return record{}, io.EOF
	}
	r.line++
	if err != nil {
		return record{}, fmt.Errorf("journal: %s:%d: %w", r.path, r.line, err)
	}
	rec, err := parseRecord(string(line[:len(line)-1]))
	if err != nil {
		return record{}, fmt.Errorf("journal: %s:%d: %w", r.path, r.line, err)
	}
	if rec.at.Before(r.last) {
		return record{}, fmt.Errorf("journal: %s:%d: goes back in time by %v", r.path, r.line, r.last.Sub(rec.at))
	}
	r.last = rec.at
	return rec, nil
}

func (r *reader) close() error { return r.file.Close() }
