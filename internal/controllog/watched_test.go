package controllog

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
)

// TestWatchedSilentLog: a topic that was deleted and made again is empty, and nobody may ever write to it. A reader
// that waits there finds it out. One of a log that is only quiet goes on.
func TestWatchedSilentLog(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Mem)
		want   error
	}{
		"quiet":    {func(*Mem) {}, context.Canceled},
		"unloaded": {(*Mem).Roll, context.Canceled},
		"deleted":  {func(m *Mem) { m.Restore(event.Position{Ledger: 100}) }, ErrReplaced},
		"restored": {func(m *Mem) { m.Restore(event.Position{Ledger: 1}); m.Put(nil) }, ErrReplaced},
		"trimmed":  {func(m *Mem) { m.Roll(); m.Forget(event.Position{Ledger: 4}) }, ErrReplaced},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := NewMem()
				log.Restore(event.Position{Ledger: 3})
				log.Put(nil)
				log.Put(nil)
				ctx, done := context.WithCancel(t.Context())
				defer done()
				ended := make(chan error, 1)
				go func() { ended <- Watched(log).Tail(ctx, First, 10, func() {}, func(Entry) {}) }()
				time.Sleep(time.Hour)
				c.change(log)
				time.Sleep(2 * time.Minute)
				if errors.Is(c.want, context.Canceled) {
					done()
				}
				synctest.Wait()
				select {
				case err := <-ended:
					if !errors.Is(err, c.want) {
						t.Errorf("it ended with %v, want %v", err, c.want)
					}
				default:
					t.Error("it waits for ever")
				}
			})
		})
	}
}

// endsAt is a log that says where it ends.
type endsAt struct {
	*Mem

	end event.Position
}

func (e endsAt) End(context.Context) (event.Position, error) { return e.end, nil }

// TestReplayEnds: a replay of a log that does not tell its end is over when nothing comes any more, and one that has not seen the end is an error.
func TestReplayEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end   event.Position
		fails bool
	}{"unknown": {endUnknown, false}, "not read": {event.Position{Ledger: 9}, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := endsAt{NewMem(), c.end}
				log.Put(nil)
				visited := 0
				err := Replay(t.Context(), log, group, func(event.Position, ownership.Record, uint64) { visited++ })
				if (err != nil) != c.fails || visited != 1 {
					t.Errorf("%d records, %v", visited, err)
				}
			})
		})
	}
}
