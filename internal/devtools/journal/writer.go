package journal

import (
	"fmt"
	"os"
	"sync"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// Writer writes the journal of one application process. All its methods are safe
// for concurrent use.
type Writer struct {
	mu     sync.Mutex // orders the records of the file by time
	file   *os.File
	now    func() clock.Instant
	line   []byte
	newest Handling
	broken error // the first write error: a line may be torn, so nothing may follow it
}

// Create creates the journal at path. It fails if the file exists: every process
// has a journal of its own, a restarted one too.
func Create(path string) (*Writer, error) { return create(path, clock.Shared) }

func create(path string, now func() clock.Instant) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // the path comes from the command line
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if _, err := file.WriteString(header); err != nil {
		_ = file.Close() // the write error is more precise
		return nil, fmt.Errorf("journal: %w", err)
	}
	return &Writer{file: file, now: now}, nil
}

// Start records the start of a handling: call it before the handler does anything. eventID is
// the publisher's name of the event, the same for each of its deliveries; fence is that of the
// delivery, 0 when there is none.
func (w *Writer) Start(eventID string, key event.Key, fence event.Fence) (Handling, error) {
	if len(eventID) > EventBytesMax || len(key) > event.KeyMax {
		return 0, fmt.Errorf("journal: event id of %d and key of %d bytes, want at most %d and %d",
			len(eventID), len(key), EventBytesMax, event.KeyMax)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.newest++
	return w.newest, w.write(record{at: w.now(), handling: w.newest, fence: fence, event: eventID, key: key})
}

// Deadline records until when a running handling may go on, unless a later call says otherwise. A holder of a reservation calls it before it
// does anything under a new deadline.
func (w *Writer) Deadline(h Handling, until clock.Instant) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.write(record{at: w.now(), handling: h, deadline: until})
}

// End writes that a handling is over: call it when the handler does nothing any
// more, and before the router hears of the result.
func (w *Writer) End(h Handling, outcome Outcome) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.write(record{at: w.now(), handling: h, outcome: outcome})
}

// write is called with the lock held.
func (w *Writer) write(r record) error {
	if w.broken != nil {
		return w.broken
	}
	w.line = r.appendTo(w.line[:0])
	if _, err := w.file.Write(w.line); err != nil {
		w.broken = fmt.Errorf("journal: %w", err)
	}
	return w.broken
}

// Err returns why the journal takes no more records, nil as long as it does.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken
}

// Close closes the file. Every record has been written before.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.file.Close(); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}
