// Package stages starts the stages of a process in dependency order, and stops them
// in the order of the dataflow.
//
// # Concurrency
//
// [All] runs every stage in one goroutine and blocks until they have returned. Each stage has
// its own context, which does not end with the caller's: intake stops first, and each lower
// stage continues until all stages above have drained into it.
package stages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/signal"
)

// cutGrace is how long the stages that were cut have to return.
const cutGrace = time.Second

var (
	// ErrDrainTimeout says that a stage had not returned when the drain timeout
	// was over. Its goroutine is left behind: end the process.
	ErrDrainTimeout = errors.New("drain timeout")

	// ErrReturned reports that a stage returned without an error though it was not stopped.
	ErrReturned = errors.New("returned before it was told to stop")
)

// Stage is one part of a process that works until it is stopped.
type Stage struct {
	// Name is used in errors.
	Name string

	// Run blocks until ctx ends, finishes already accepted work, waits for every goroutine it
	// started, and returns nil. An earlier return is a failure.
	Run func(ctx context.Context) error

	// Ready, if not nil, is closed by Run as soon as the stage can be used; the
	// stage above is not started before.
	Ready <-chan struct{}
}

// All runs stages, given top down: the intake first, the lowest stage last. They are started
// bottom up. When ctx ends, or when a stage returns early, they are stopped top down, each only
// after the one above it has returned.
//
// drainTimeout is for all of them together. When it is over, the remaining stages are stopped
// at once, have another second, and are abandoned; the error is [ErrDrainTimeout] and names the
// stage that was waited for.
//
// It returns nil when ctx ended and every stage returned nil in time; otherwise every error,
// each with the name of its stage.
func All(ctx context.Context, drainTimeout time.Duration, stages ...Stage) error {
	g := group{returned: make(chan *member, len(stages))}
	unasked := g.startAll(ctx, stages)
	if unasked == nil {
		select {
		case <-ctx.Done():
		case unasked = <-g.returned:
		}
	}
	if unasked != nil && unasked.err == nil {
		unasked.err = ErrReturned
	}
	return errors.Join(g.stopAll(drainTimeout), g.errs())
}

// group is the stages that have been started.
type group struct {
	members  []*member // bottom up
	returned chan *member
}

type member struct {
	Stage
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
	err    error         // of Run; to be read when done is closed
}

// startAll starts the stages bottom up. It ends early when ctx ends, and when a
// stage returns, which it then reports.
func (g *group) startAll(ctx context.Context, stages []Stage) (unasked *member) {
	for _, stage := range slices.Backward(stages) {
		if ctx.Err() != nil {
			return nil
		}
		g.start(ctx, stage)
		if stage.Ready == nil {
			continue
		}
		select {
		case <-stage.Ready:
		case <-ctx.Done():
			return nil
		case unasked = <-g.returned:
			return unasked
		}
	}
	return nil
}

func (g *group) start(ctx context.Context, stage Stage) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &member{Stage: stage, cancel: cancel, done: make(chan struct{})}
	g.members = append(g.members, m)
	go func() { // no WaitGroup: one that is stuck is not waited for
		m.err = m.Run(own)
		close(m.done)
		g.returned <- m // has room for all
	}()
}

// stopAll stops the stages top down.
func (g *group) stopAll(drainTimeout time.Duration) error {
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	for _, m := range slices.Backward(g.members) {
		m.cancel()
		if signal.IsClosed(m.done) { // a stage that has returned is never the one that timed out
			continue
		}
		select {
		case <-m.done:
		case <-timeout.C:
			g.cut()
			return fmt.Errorf("run: stage %s: %w after %v", m.Name, ErrDrainTimeout, drainTimeout)
		}
	}
	return nil
}

// cut stops all stages at once and gives them a last moment.
func (g *group) cut() {
	for _, m := range g.members {
		m.cancel()
	}
	grace := time.NewTimer(cutGrace)
	defer grace.Stop()
	for _, m := range g.members {
		select {
		case <-m.done:
		case <-grace.C:
			return
		}
	}
}

// errs returns the errors of the returned stages, top down.
func (g *group) errs() error {
	var errs []error
	for _, m := range slices.Backward(g.members) {
		if signal.IsClosed(m.done) && m.err != nil { // a stage that has not returned is abandoned
			errs = append(errs, fmt.Errorf("run: stage %s: %w", m.Name, m.err))
		}
	}
	return errors.Join(errs...)
}
