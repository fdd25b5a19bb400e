package controllog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// Whole returns a transport whose Tail misses no record that the log has. It is for readers that do not check positions
// themselves, as the machine of ownership does.
//
// The reader of Pulsar's client reconnects by itself, and drops the record that waits for its caller at that moment if another one is queued.
// So a record that is not the next entry of the same ledger is passed on only after a second reader, opened at the record before, has it as the next one too.
// A topic with few records has one in each ledger, so the first reader reads on for some time, and the second one checks all of that.
func Whole(t Transport, log *slog.Logger) Transport { return whole{t, log} }

type whole struct {
	Transport

	log *slog.Logger
}

// Tail implements [Transport]. The first record of a reader that begins at the end of the log, or at the anchor, is not checked: another
// reader would begin elsewhere.
func (w whole) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(Entry)) error {
	p := passage{from: from, record: record, log: w.log}
	opened = sync.OnceFunc(opened)
	for {
		reading, stop := context.WithCancel(ctx)
		p.doubts = false
		err := w.Transport.Tail(reading, p.from, prefetch, opened, func(e Entry) {
			switch {
			case reading.Err() != nil || p.take(e):
			case len(p.ahead) == 1:
				time.AfterFunc(aheadFor, stop)
			case len(p.ahead) == aheadMax:
				stop()
			}
		})
		again := reading.Err() != nil && ctx.Err() == nil
		stop()
		if !again {
			return err
		}
	}
}

// Bounds of what a reader reads on from a record in doubt.
const (
	aheadFor = 50 * time.Millisecond // a new record waits that long
	aheadMax = 1000                  // records
)

// passage passes on the records of several readers as those of one.
type passage struct {
	from   event.Position   // where the next reader is opened: the newest record that was passed on, if there is one
	last   event.Position   // the newest record that was passed on; zero: none
	ahead  []event.Position // the records that the reader before had next after from, or that this one has; none is in doubt: empty
	doubts bool             // this reader is in doubt: it only fills ahead
	record func(Entry)
	log    *slog.Logger
}

// take takes a record. It returns false if another reader has to show first whether one is missing before it.
func (p *passage) take(e Entry) bool {
	switch {
	case p.doubts:
		if p.ahead[len(p.ahead)-1] != e.At {
			p.ahead = append(p.ahead, e.At)
		}
		return false
	case e.At == p.last:
		return true // the first record of a reader opened there
	}
	p.noteMissed(e.At)
	switch {
	case len(p.ahead) > 0 && e.At == p.ahead[0]:
		p.ahead = p.ahead[1:]
	case p.follows(e.At):
		p.ahead = nil
	default:
		p.ahead, p.doubts = []event.Position{e.At}, true
		return false
	}
	if p.last.Before(e.At) { // a position that falls is the caller's to judge
		p.from, p.last = e.At, e.At
	}
	p.record(e)
	return true
}

// follows reports whether no record can be missing before the one at a position.
func (p *passage) follows(at event.Position) bool {
	switch {
	case p.from.IsZero(), p.from == Anchored, at == p.from, at.Before(p.last):
		return true
	default:
		return !p.last.IsZero() && at.Ledger == p.last.Ledger && at.Entry == p.last.Entry+1
	}
}

// noteMissed logs that the reader before has missed the record at a position.
func (p *passage) noteMissed(at event.Position) {
	if len(p.ahead) > 0 && at.Before(p.ahead[0]) {
		p.log.Warn("reader missed a record; read again", "position", at.String(), "last", p.last.String(), "next", p.ahead[0].String())
	}
}
