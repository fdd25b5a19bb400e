package claim

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog"
)

// idleMax is how long Look waits for a next record of a log that does not tell where it ends.
const idleMax = 2 * time.Second

// Look reads a claims topic to its end and then asks change for a record to write; nil: none.
// It returns the state of the log after that. It runs the transport.
func Look(ctx context.Context, transport controllog.Transport, change func(*Fold) (*Record, error)) (*Fold, error) {
	l := look{transport: transport, change: change}
	_, _ = rand.Read(l.writer[:]) // never fails
	if err := controllog.ReadOnce(ctx, transport, prefetch, answerMax, l.follow); err != nil {
		return nil, err
	}
	return &l.fold, nil
}

type look struct {
	transport controllog.Transport
	change    func(*Fold) (*Record, error)
	fold      Fold
	writer    Writer
}

func (l *look) follow(ctx context.Context, end event.Position, entries <-chan controllog.Entry) error {
	idle := time.NewTimer(idleMax)
	defer idle.Stop()
	for {
		if last, some := l.fold.Last(); end.Entry >= 0 && some && !last.Before(end) {
			return l.write(ctx, entries)
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-entries:
			l.fold.Apply(e.At, e.Data)
			idle.Reset(idleMax)
		case <-idle.C:
			if end.Entry >= 0 {
				return fmt.Errorf("claim: the newest record, at %v, was not read within %v", end, idleMax)
			}
			return l.write(ctx, entries)
		}
	}
}

// write appends the record, and reads it back.
func (l *look) write(ctx context.Context, entries <-chan controllog.Entry) error {
	r, err := l.change(&l.fold)
	if err != nil {
		return err
	}
	if r == nil {
		return controllog.ErrAllRead
	}
	r.Writer = l.writer
	data, err := Encode(*r)
	if err != nil {
		return err
	}
	answer := make(chan error, 1)
	l.transport.Append(data, func(err error) { answer <- err })
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-answer:
			if err != nil {
				return fmt.Errorf("claim: the record may or may not stand in the log: %w", err)
			}
			answer = nil
		case e := <-entries:
			if r, _ := l.fold.Apply(e.At, e.Data); r.Writer == l.writer {
				return controllog.ErrAllRead
			}
		}
	}
}
