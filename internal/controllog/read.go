package controllog

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/base/event"
)

// Read reads a log from a position on, see [Transport.Tail]. Once the reader is open it asks the log for its end
// ([Transport.End]), for at most endMax, and calls follow with it. The ctx of follow ends when the reader is lost.
// Read returns the error of follow, or the reason for the loss; nil if ctx has ended and follow returns nil.
func Read(ctx context.Context, transport Transport, from event.Position, prefetch int, endMax time.Duration,
	follow func(ctx context.Context, end event.Position, entries <-chan Entry) error,
) error {
	reading, stop := context.WithCancelCause(ctx)
	var tail sync.WaitGroup
	defer tail.Wait()
	defer stop(nil)
	entries, opened := make(chan Entry), make(chan struct{})
	tail.Go(func() {
		stop(cmp.Or(transport.Tail(reading, from, prefetch, sync.OnceFunc(func() { close(opened) }), func(e Entry) {
			select {
			case entries <- e:
			case <-reading.Done():
			}
		}), ErrReaderLost))
	})
	var err error
	select {
	case <-reading.Done():
	case <-opened:
		asking, done := context.WithTimeout(reading, endMax)
		var end event.Position
		end, err = transport.End(asking)
		done()
		if err == nil {
			err = follow(reading, end, entries)
		}
	}
	if reading.Err() != nil && ctx.Err() == nil && (err == nil || errors.Is(err, context.Canceled)) {
		return context.Cause(reading)
	}
	return err
}

// ErrAllRead is the error by which follow ends a [ReadOnce] that has read all.
var ErrAllRead = errors.New("controllog: all was read")

// ReadOnce runs a transport and reads its log from the first record on, see [Read], until follow returns [ErrAllRead].
func ReadOnce(ctx context.Context, transport Transport, prefetch int, endMax time.Duration,
	follow func(ctx context.Context, end event.Position, entries <-chan Entry) error,
) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return transport.Run(ctx) })
	tasks.Go(func() error { return Read(ctx, transport, First, prefetch, endMax, follow) })
	err := tasks.Wait()
	if errors.Is(err, ErrAllRead) {
		return nil
	}
	return cmp.Or(err, context.Cause(ctx))
}
