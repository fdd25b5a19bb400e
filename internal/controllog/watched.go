package controllog

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
)

// Watched returns a transport whose Tail also ends with [ErrReplaced] if no record comes that would show that the log is another one: a topic that was deleted and
// made again, or truncated, may remain empty. Therefore a second reader is opened every lookEvery at the newest record. It is for readers of a log to which
// nobody may write for long. The machine of ownership does not need it: each member writes Beats and reads them back.
func Watched(t Transport) Transport { return watched{t} }

type watched struct{ Transport }

// Tail implements [Transport].
func (w watched) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(Entry)) error {
	var newest atomic.Pointer[event.Position] // that was read
	reading, stop := context.WithCancelCause(ctx)
	var look sync.WaitGroup
	defer look.Wait()
	defer stop(nil)
	look.Go(func() {
		if w.look(reading, &newest) {
			stop(ErrReplaced)
		}
	})
	err := w.Transport.Tail(reading, from, prefetch, opened, func(e Entry) {
		if reading.Err() == nil {
			at := e.At
			newest.Store(&at)
			record(e)
		}
	})
	if ctx.Err() == nil && errors.Is(context.Cause(reading), ErrReplaced) {
		return ErrReplaced
	}
	return err
}

// look waits until the log no longer has the newest record, and has no later one for the reader. It returns false when ctx ends.
func (w watched) look(ctx context.Context, newest *atomic.Pointer[event.Position]) bool {
	for {
		pause := backoff.Jitter(lookEvery, rand.Uint64()) //nolint:forbidigo,gosec // the other members look, too; nothing else depends on it
		if backoff.Sleep(ctx, pause) != nil {
			return false
		}
		if last := newest.Load(); last != nil && w.lacks(ctx, *last) && newest.Load() == last {
			return true
		}
	}
}

// lacks reports whether a reader that is opened at a record begins with another one, or has none.
func (w watched) lacks(ctx context.Context, at event.Position) bool {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	opened, has := false, false
	_ = w.Transport.Tail(reading, at, 1, func() { // ends by stop, or proves nothing
		opened = true
		time.AfterFunc(answerMax, stop)
	}, func(e Entry) {
		has = has || e.At == at
		stop()
	})
	return opened && !has && reading.Err() != nil && ctx.Err() == nil
}

const (
	lookEvery = time.Minute     // the longest time between two looks
	answerMax = 5 * time.Second // until the first record of a reader
)
