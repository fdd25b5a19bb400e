package controllog

import (
	"context"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
)

const (
	replayPrefetch = 1000
	replayEndMax   = 30 * time.Second
	// replayIdleMax is how long Replay waits for the next record of a log that does not tell where it ends, or whose end does not come.
	replayIdleMax = 5 * time.Second
)

// Replay reads all records that a log still has, up to its end at the time of the call, and calls visit for each, with the hash of
// its bytes. It runs the transport and writes nothing. An unreadable record has no body.
func Replay(ctx context.Context, transport Transport, group string, visit func(at event.Position, r ownership.Record, sum uint64)) error {
	return ReadOnce(ctx, transport, replayPrefetch, replayEndMax, func(ctx context.Context, end event.Position, entries <-chan Entry) error {
		return replay(ctx, end, entries, func(e Entry) {
			record, _ := Decode(group, e.Data)
			visit(e.At, record, SumOf(e.Data))
		})
	})
}

func replay(ctx context.Context, end event.Position, entries <-chan Entry, visit func(Entry)) error {
	idle := time.NewTimer(replayIdleMax)
	defer idle.Stop()
	for last := (event.Position{}); end.Entry < 0 || last.Before(end); {
		select {
		case <-ctx.Done():
			return nil
		case e := <-entries:
			idle.Reset(replayIdleMax)
			last = e.At
			visit(e)
		case <-idle.C:
			if end.Entry < 0 {
				return ErrAllRead
			}
			return fmt.Errorf("controllog: replay: the newest record, at %v, was not read within %v", end, replayIdleMax)
		}
	}
	return ErrAllRead
}
