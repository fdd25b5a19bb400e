// Package testapp is an application under test: a handler that works for a while, records its
// start and end in a journal, and misbehaves if an event instructs it to.
//
// The property [ConductProperty] of an event holds the instruction:
//
//	fail:N      fail in the first N attempts
//	panic:N     panic in the first N attempts
//	reject      reject the event for good
//	slow:TIME   work this long, and stop when the context is cancelled
//	deaf:TIME   work this long, and ignore the context
//
// Without it the handler finishes after the usual work. The work is a sleep, so that a machine
// with few cores can run many applications without becoming the bottleneck.
//
// # Concurrency
//
// All methods are safe for concurrent use.
package testapp

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

// ConductProperty is the event property that tells the application how to behave.
const ConductProperty = "conduct"

// Config bounds the duration of the usual work: it is between WorkMin and WorkMax (0 <= WorkMin <= WorkMax), and the
// same for each handling of an event.
type Config struct{ WorkMin, WorkMax time.Duration }

// Event holds the fields of an event that an application uses.
type Event struct {
	Name    string // the publisher's name of the event: the same for each delivery
	Key     event.Key
	Fence   event.Fence // of the delivery, 0 without one
	Attempt int         // from 1
	Conduct string
}

// App is an application under test. Make one with [New].
type App struct {
	cfg     Config
	journal *journal.Writer
	over    atomic.Uint64
}

// New returns an application that writes to journal, which the caller closes.
func New(cfg Config, journal *journal.Writer) *App {
	return &App{cfg: cfg, journal: journal}
}

// Over returns how many handlings have ended as done or rejected.
func (w *App) Over() uint64 { return w.over.Load() }

// Handle is a client.Handler. An event's payload is its name.
func (w *App) Handle(ctx context.Context, e *client.Event) error {
	conduct, _ := e.Property(ConductProperty)
	return w.Work(ctx, Event{
		Name: string(e.Payload), Key: event.Key(e.Key), Fence: event.Fence(e.Fence), Attempt: e.Attempt, Conduct: conduct,
	})
}

// Work handles one event. Its error is for the router: nil for done, client.Reject's,
// the context's cause when it was cut, or any other for a failure. When the journal
// cannot be written, no work is done: work without a record proves nothing.
func (w *App) Work(ctx context.Context, e Event) error {
	h, err := w.journal.Start(e.Name, e.Key, e.Fence)
	if err != nil {
		return err
	}
	result := w.behave(ctx, e)
	outcome := outcomeOf(ctx, result)
	if err := w.journal.End(h, outcome); err != nil {
		return err
	}
	switch {
	case outcome == journal.Done || outcome == journal.Rejected:
		w.over.Add(1)
	case errors.Is(result, errPanic):
		panic(result) //nolint:forbidigo // the event tests the SDK's handling of a panic
	}
	return result
}

var (
	errTold      = errors.New("testapp: told to fail")
	errPanic     = errors.New("testapp: told to panic")
	errRejected  = client.Reject(errors.New("testapp: told to reject"))
	errMalformed = errors.New("testapp: no such conduct")
)

func (w *App) behave(ctx context.Context, e Event) error {
	kind, argument, _ := strings.Cut(e.Conduct, ":")
	switch kind {
	case "":
		return work(ctx, w.cfg.share(e.Name))
	case "fail", "panic":
		times, err := strconv.Atoi(argument)
		if err != nil {
			return fmt.Errorf("%w: %q", errMalformed, e.Conduct)
		}
		err = work(ctx, w.cfg.share(e.Name))
		switch {
		case err != nil || e.Attempt > times:
			return err
		case kind == "panic":
			return errPanic
		}
		return errTold
	case "reject":
		return errRejected
	case "slow", "deaf":
		length, err := time.ParseDuration(argument)
		if err != nil {
			return fmt.Errorf("%w: %q", errMalformed, e.Conduct)
		}
		if kind == "deaf" {
			ctx = context.WithoutCancel(ctx)
		}
		return work(ctx, length)
	}
	return fmt.Errorf("%w: %q", errMalformed, e.Conduct)
}

// share spreads the work of events between the bounds, by their names.
func (c Config) share(name string) time.Duration {
	spread := uint64(c.WorkMax-c.WorkMin) + 1
	return c.WorkMin + time.Duration(xxhash.Sum64String(name)%spread)
}

// work takes length, or ends with the context's cause.
func work(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func outcomeOf(ctx context.Context, result error) journal.Outcome {
	switch {
	case result == nil:
		return journal.Done
	case errors.Is(result, errRejected):
		return journal.Rejected
	case ctx.Err() != nil && errors.Is(result, context.Cause(ctx)):
		return journal.Cancelled
	}
	return journal.Failed
}
