package membroker

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/ringfence/router/internal/base/event"
)

// Record is one record of a log.
type Record struct {
	At   event.Position
	Data []byte // never written to
}

// recordLog is a log in total order. It keeps its newest records.
type recordLog struct {
	next    event.Position
	records []Record
	grown   chan struct{} // closed and replaced when a record is appended
}

// AppendRecord appends to a log, which is made if it is not there.
func (b *Broker) AppendRecord(name string, data []byte) (event.Position, error) {
	if name == "" {
		return event.Position{}, fmt.Errorf("%w: a log without a name", ErrInvalid)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.log(name)
	at := l.next
	l.records = append(l.records, Record{at, data})
	if excess := len(l.records) - b.cfg.RecordsMax; excess >= b.cfg.RecordsMax/4+1 {
		l.records = slices.Clone(l.records[excess:])
	}
	l.next.Entry++
	if l.next.Entry == int64(b.cfg.LedgerEntriesMax) {
		l.next = event.Position{Ledger: b.newLedger()}
	}
	close(l.grown)
	l.grown = make(chan struct{})
	return at, nil
}

func (b *Broker) log(name string) *recordLog {
	l := b.logs[name]
	if l == nil {
		l = &recordLog{next: event.Position{Ledger: b.newLedger()}, grown: make(chan struct{})}
		b.logs[name] = l
	}
	return l
}

// TailRecords calls record for each record at or after from, in order, as they come, until ctx
// ends or record returns an error, which it returns. A zero from begins with records appended
// from now on; if records were deleted, it begins with the oldest remaining one. opened is
// called once the position is fixed.
func (b *Broker) TailRecords(ctx context.Context, name string, from event.Position, opened func(), record func(Record) error) error {
	if name == "" {
		return fmt.Errorf("%w: a log without a name", ErrInvalid)
	}
	b.mu.Lock()
	if from.IsZero() {
		from = b.log(name).next
	}
	b.mu.Unlock()
	opened()
	for {
		b.mu.Lock()
		l := b.log(name)
		first := sort.Search(len(l.records), func(i int) bool { return !l.records[i].At.Before(from) })
		records, grown := l.records[first:len(l.records):len(l.records)], l.grown
		b.mu.Unlock()
		for _, r := range records {
			if err := record(r); err != nil {
				return err
			}
			from = event.Position{Ledger: r.At.Ledger, Entry: r.At.Entry + 1}
		}
		if len(records) > 0 {
			continue
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
