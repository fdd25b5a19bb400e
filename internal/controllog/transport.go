package controllog

import (
	"context"
	"errors"

	"github.com/ringfence/router/internal/base/event"
)

// Entry is one record as it lies in the log.
type Entry struct {
	At   event.Position
	Data []byte // never written to
}

// Transport moves records of bytes in one total order. All methods may be called
// concurrently, before and during Run; what is asked for before Run has connected
// waits or fails, as the method says.
type Transport interface {
	// Run connects, keeps what the other methods need, and blocks until ctx ends;
	// then it cleans up and returns nil. An error means that this log cannot be used
	// at all, such as [ErrPartitioned]; an outage is no error.
	Run(ctx context.Context) error

	// Append sends one record, behind those that were appended before. It does not
	// block. While Run runs, done is called exactly once, from any goroutine; it must
	// not block. An error means that the record may or may not stand in the log, now
	// or later.
	Append(data []byte, done func(error))

	// Tail reads in order from the record at from on, inclusive, or, if from is zero,
	// what is appended from now on, or, if from is [First], all that the log still has;
	// it blocks until ctx ends or the reader is lost.
	// It calls opened once the reader stands, then record for each record; both may
	// block. prefetch is how many records may be under way to record.
	Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(Entry)) error

	// End returns the position of the newest record. An entry below 0 means that the log
	// has none, or cannot tell: who has to know appends a record and reads it back.
	End(ctx context.Context) (event.Position, error)

	// MoveAnchor lets the log forget what lies at or before this position. Until it is
	// called, nothing is forgotten that was appended since the first Tail.
	MoveAnchor(ctx context.Context, to event.Position) error
}

// First is where [Transport.Tail] begins to read all that the log still has.
var First = event.Position{Ledger: -1, Entry: -1}

// endUnknown is what End returns for a log that is empty or cannot tell.
var endUnknown = event.Position{Entry: -1}

// Errors of a Transport.
var (
	// ErrPartitioned says that the topic of a log has partitions and so no total order.
	ErrPartitioned = errors.New("controllog: the topic is partitioned, and partitions have no common order; " +
		"create it as a non-partitioned topic, or name another one")

	// ErrDenied says that the broker lets this router in, but not to the topic.
	ErrDenied = errors.New("controllog: the broker lets this router in, but its pulsar role may not produce to and consume from the topic")

	// ErrReaderLost says that a reader broke and that its place must be read again.
	ErrReaderLost = errors.New("controllog: reader lost")

	errNotConnected = errors.New("controllog: not connected")
	errBusy         = errors.New("controllog: too many records under way")
)
