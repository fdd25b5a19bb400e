package controllog

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// losing is a log whose readers are lost at once.
type losing struct {
	*Mem

	err error
}

func (l losing) Tail(_ context.Context, _ event.Position, _ int, opened func(), _ func(Entry)) error {
	opened()
	return l.err
}

// TestReadTellsTheEndOfFollow: follow may come to its end just when the reader is lost, and what it says is more than that.
func TestReadTellsTheEndOfFollow(t *testing.T) {
	lost, done := errors.New("lost"), errors.New("done")
	for name, c := range map[string]struct{ follow, tail, want error }{
		"its error":               {done, lost, done},
		"a reader that says why":  {nil, lost, lost},
		"a reader that does not":  {nil, nil, ErrReaderLost},
		"it knows of no more":     {context.Canceled, lost, lost},
		"nothing but that it was": {context.Canceled, nil, ErrReaderLost},
	} {
		t.Run(name, func(t *testing.T) {
			err := Read(t.Context(), losing{NewMem(), c.tail}, First, 1, time.Minute,
				func(ctx context.Context, _ event.Position, _ <-chan Entry) error {
					<-ctx.Done()
					return c.follow
				})
			if !errors.Is(err, c.want) {
				t.Errorf("Read = %v, want %v", err, c.want)
			}
		})
	}
}
