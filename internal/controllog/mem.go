package controllog

import (
	"context"
	"slices"
	"sort"
	"sync"

	"github.com/ringfence/router/internal/base/event"
)

// memRecordsMax is the number of records that a Mem remembers; older ones are forgotten as
// a broker trims them. At two Beats a second from each of ten members it is an hour.
const memRecordsMax = 1 << 16

// Mem is a control log in memory, shared by all holders of the same Mem. Make one with
// [NewMem]. It never fails; it is safe for concurrent use.
type Mem struct {
	mu      sync.Mutex
	records []Entry        // ascending
	next    event.Position // of the record to come
	grown   chan struct{}  // closed and replaced by each append
	topic   int            // counts restores
}

var _ Transport = (*Mem)(nil)

// NewMem returns an empty log. Its first ledger is 1: position zero is no record.
func NewMem() *Mem {
	return &Mem{next: event.Position{Ledger: 1}, grown: make(chan struct{})}
}

// Put appends one record and returns its position.
func (m *Mem) Put(data []byte) event.Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.next
	m.next.Entry++
	if len(m.records) == memRecordsMax {
		m.records = slices.Clone(m.records[memRecordsMax/2:])
	}
	m.records = append(m.records, Entry{At: at, Data: slices.Clone(data)})
	close(m.grown)
	m.grown = make(chan struct{})
	return at
}

// Roll ends the present ledger, as a broker does when it unloads the topic.
func (m *Mem) Roll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = event.Position{Ledger: m.next.Ledger + 1}
}

// Restore empties the log and restarts it at this position, as when the topic was deleted by
// force or its cluster was restored. A Tail that has read from the former log ends with the next record.
func (m *Mem) Restore(next event.Position) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records, m.next = nil, next
	m.topic++
	close(m.grown)
	m.grown = make(chan struct{})
}

// Forget drops the records before this position, as a broker does that trims
// behind the anchor. A reader that is not past them misses them without a word.
func (m *Mem) Forget(before event.Position) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records = slices.Clone(m.records[m.index(before):])
}

// Run has nothing to keep alive.
func (m *Mem) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Append implements [Transport].
func (m *Mem) Append(data []byte, done func(error)) {
	m.Put(data)
	done(nil)
}

// Tail implements [Transport]. It needs no prefetch.
func (m *Mem) Tail(ctx context.Context, from event.Position, _ int, opened func(), record func(Entry)) error {
	topic, end := m.end()
	switch {
	case from.IsZero(), end.Before(from): // a broker takes a place that the log has not reached for its end
		from = end
	case from == Anchored: // memory is short: it keeps nothing that is older for long
		from = First
	}
	opened()
	read := false
	for ctx.Err() == nil {
		if now, _ := m.end(); now != topic {
			if from = First; !read {
				topic = now
			}
		}
		entries, grown := m.from(from)
		for _, e := range entries {
			if ctx.Err() != nil {
				break
			}
			if now, _ := m.end(); now != topic && read { // as a reader of a broker
				return ErrReplaced
			}
			record(e)
			read = true
			from = event.Position{Ledger: e.At.Ledger, Entry: e.At.Entry + 1}
		}
		if len(entries) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-grown:
		}
	}
	return ctx.Err()
}

// End implements [Transport].
func (m *Mem) End(context.Context) (event.Position, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.records) == 0 {
		return endUnknown, nil
	}
	return m.records[len(m.records)-1].At, nil
}

// MoveAnchor does nothing: memory is bounded by the number of records alone.
func (m *Mem) MoveAnchor(context.Context, event.Position) error { return nil }

// from returns the records at or after a position, and a channel that is closed when there are
// more.
func (m *Mem) from(p event.Position) ([]Entry, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[m.index(p):len(m.records):len(m.records)], m.grown
}

// end returns how often the log was restored, and where its next record will stand.
func (m *Mem) end() (topic int, next event.Position) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.topic, m.next
}

// index finds the first record at or after p.
func (m *Mem) index(p event.Position) int {
	return sort.Search(len(m.records), func(i int) bool { return !m.records[i].At.Before(p) })
}
