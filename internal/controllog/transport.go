package controllog

import (
	"context"
	"errors"
	"fmt"

	"github.com/ringfence/router/internal/base/event"
)

// Entry is one record as it lies in the log.
type Entry struct {
	At   event.Position
	Data []byte // never written to
}

// Transport moves records of bytes in one total order. All methods may be called concurrently,
// before and during Run; calls before Run has connected wait or fail, as each method describes.
type Transport interface {
	// Run connects, keeps the resources of the other methods, and blocks until ctx ends; then
	// it cleans up and returns nil. An error means that this log cannot be used at all, such as
	// [ErrPartitioned]; an outage is not an error.
	Run(ctx context.Context) error

	// Append sends one record, behind those that were appended before. It does not
	// block. While Run runs, done is called exactly once, from any goroutine; it must
	// not block. An error means that the record may or may not stand in the log, now
	// or later.
	Append(data []byte, done func(error))

	// Tail reads in order from the record at from on, inclusive, which is behind the newest record if the log has not reached it, or, if from is zero, records
	// appended from now on, or, if from is [First], all records that the log still has, or, if from is
	// [Anchored], those that the anchor keeps, and perhaps earlier ones; it
	// blocks until ctx ends or the reader is lost. It misses and repeats no record. It calls opened once the reader is open,
	// then record for each record; both may block. prefetch is the number of records that may
	// be in flight to record.
	Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(Entry)) error

	// End returns the position of the newest record. An entry below 0 means that the log has
	// none, or cannot tell: to find the end, append a record and read it back.
	End(ctx context.Context) (event.Position, error)

	// MoveAnchor lets the log delete the records at or before this position. Until it is
	// called, no record appended since the first Tail is deleted.
	MoveAnchor(ctx context.Context, to event.Position) error
}

// First is the position from which [Transport.Tail] reads everything that the log still has.
var First = event.Position{Ledger: -1, Entry: -1}

// Anchored is the position from which [Transport.Tail] reads the records behind the anchor. There is always one, since
// a reader appends a record before it reads.
var Anchored = event.Position{Ledger: -2, Entry: -1}

// endUnknown is End's result for a log that is empty or cannot tell.
var endUnknown = event.Position{Entry: -1}

// Errors of a Transport.
var (
	// ErrPartitioned says that the topic of a log has partitions and so no total order.
	ErrPartitioned = errors.New("controllog: the topic is partitioned, and partitions have no common order; " +
		"create it as a non-partitioned topic, or name another one")

	// ErrDenied means that the broker accepts this router, but denies access to the topic.
	ErrDenied = errors.New("controllog: the broker accepts this router, but its pulsar role may not produce to and consume from the topic")

	// ErrReaderLost says that a reader broke and that its place must be read again.
	ErrReaderLost = errors.New("controllog: reader lost")

	// ErrReplaced says that the log lacks a record that was read from it: it was deleted, trimmed, truncated or restored. Of a log without new records only
	// [Watched] finds it out.
	ErrReplaced = fmt.Errorf("%w: the log lacks the record that was read last: it was deleted, trimmed, truncated or restored", ErrReaderLost)

	errNotConnected = errors.New("controllog: not connected")
	errBusy         = errors.New("controllog: too many records in flight")
)
