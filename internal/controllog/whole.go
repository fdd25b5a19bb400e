package controllog

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
)

// Whole returns a transport whose Tail misses no record that the log has. It is for readers that do not check positions
// themselves, as the machine of ownership does.
//
// The reader of Pulsar's client reconnects by itself, and then drops the record that waits for its caller if another
// record is queued. So a record that is not the next entry of the same ledger is passed on only after a second
// reader, opened at the record before, also has it as the next one. Each record of a topic with few records may be in
// a ledger of its own. So the first reader reads ahead for some time, and the second one checks everything that it
// has read.
//
// The client also continues by itself in a topic that was deleted and made again. So Tail ends with [ErrReplaced] if
// readers opened at the newest record do not have it, or if a position falls and the log ends before it. Such a topic
// may remain empty, so that no record would show the change: therefore a reader is opened there every lookEvery.
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
	looking, end := context.WithCancel(ctx)
	var look sync.WaitGroup
	defer look.Wait()
	defer end()
	lost := make(chan struct{}) // a look has found that the log lacks the newest record
	look.Go(func() { w.look(looking, &p.newest, lost) })
	for {
		reading, stop := context.WithCancel(ctx)
		look.Go(func() {
			select {
			case <-lost:
				stop()
			case <-reading.Done():
			}
		})
		p.doubts, p.begun = false, false
		err := w.Transport.Tail(reading, p.from, prefetch, opened, func(e Entry) {
			switch {
			case reading.Err() != nil:
			case e.At.Before(p.last) && !p.fell:
				p.fell = true
				if p.replaced = w.endsBefore(reading, p.last); p.replaced {
					stop()
					return
				}
				p.take(e)
			case p.take(e):
			case p.replaced:
				stop()
			case len(p.ahead) == 1:
				time.AfterFunc(aheadFor, stop)
			case len(p.ahead) == aheadMax:
				stop()
			}
		})
		again := reading.Err() != nil && ctx.Err() == nil
		stop()
		switch {
		case again && (p.replaced || signal.IsClosed(lost)):
			return ErrReplaced
		case !again:
			return err
		}
	}
}

// look closes lost when the log no longer has the newest record, and has no later one for the reader.
func (w whole) look(ctx context.Context, newest *atomic.Pointer[event.Position], lost chan<- struct{}) {
	for lacks := 0; lacks < lacksMax; {
		pause := backoff.Jitter(lookEvery, rand.Uint64()) //nolint:forbidigo,gosec // the other members look, too; nothing else depends on it
		if lacks == 0 && backoff.Sleep(ctx, pause) != nil {
			return
		}
		last := newest.Load()
		if last != nil && w.lacks(ctx, *last) && newest.Load() == last {
			lacks++
		} else {
			lacks = 0
		}
		if ctx.Err() != nil {
			return
		}
	}
	close(lost)
}

// lacks reports whether a reader that is opened at a record begins with another one, or has none.
func (w whole) lacks(ctx context.Context, at event.Position) bool {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	opened, has := false, false
	_ = w.Transport.Tail(reading, at, 2, func() { // ends by stop, or proves nothing
		opened = true
		time.AfterFunc(endMax, stop)
	}, func(e Entry) {
		has = has || e.At == at
		stop()
	})
	return opened && !has && reading.Err() != nil && ctx.Err() == nil
}

// lookEvery is the longest time between two looks whether the log still has the newest record.
const lookEvery = time.Minute

// endsBefore reports whether the log is known to end before a position.
func (w whole) endsBefore(ctx context.Context, at event.Position) bool {
	ctx, stop := context.WithTimeout(ctx, endMax)
	defer stop()
	end, err := w.End(ctx)
	return err == nil && end.Entry >= 0 && end.Before(at)
}

// endMax bounds how long the log is asked for its end when a position falls, as it does at each reconnect that repeats records.
const endMax = 5 * time.Second

// lacksMax is the number of readers in a row that may begin without the record at which they were opened: one of them
// may have missed it.
const lacksMax = 2

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

	newest atomic.Pointer[event.Position] // last, for the looks

	begun    bool // this reader has had a record
	lacks    int  // readers in a row that were opened at last and did not have it
	fell     bool // a position before last was seen since last was
	replaced bool // it is another log
}

// take takes a record. It returns false if another reader has to show first whether one is missing before it.
func (p *passage) take(e Entry) bool {
	first := !p.begun
	p.begun = true
	switch {
	case p.doubts:
		if p.ahead[len(p.ahead)-1] != e.At {
			p.ahead = append(p.ahead, e.At)
		}
		return false
	case e.At == p.last:
		p.lacks, p.fell = 0, false
		return true // the first record of a reader opened there
	case first && !p.last.IsZero() && p.last.Before(e.At):
		p.lacks++
		p.ahead, p.doubts, p.replaced = []event.Position{e.At}, true, p.lacks == lacksMax
		return false
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
		at := e.At
		p.from, p.last, p.fell = at, at, false
		p.newest.Store(&at)
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
		p.log.Warn("reader missed a record; the record was read later", "position", at.String(), "last", p.last.String(), "next", p.ahead[0].String())
	}
}
