// Package eventually waits until a condition holds: in tests, and in the programs that break
// routers on purpose. Every wait is bounded, and its error names the condition.
//
// It is safe for concurrent use.
package eventually

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Most is the longest wait of [True]: long enough for a machine that is busy with other tests.
const Most = 3 * time.Minute

// The pauses between two questions: each is twice the one before, up to the last.
const (
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// ErrInVain ends a wait at once: the condition will never hold.
var ErrInVain = errors.New("in vain")

// Ask asks until the answer is nil or wraps [ErrInVain], ctx has ended, or within is over. Its error wraps the
// newest answer.
func Ask(ctx context.Context, within time.Duration, what string, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := ask()
		if err == nil || errors.Is(err, ErrInVain) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %v until %s: %w", within, what, err)
		case <-time.After(pause):
		}
	}
}

// NoError fails the test unless the answer becomes nil within a time. Call it on the goroutine of
// the test.
func NoError(t testing.TB, within time.Duration, what string, ask func() error) {
	t.Helper()
	if err := Ask(context.Background(), within, what, ask); err != nil { //nolint:usetesting // cleanups wait too, when t.Context() has ended
		t.Fatal(err)
	}
}

// True fails the test unless a condition holds within [Most]. Call it on the goroutine of the test.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	NoError(t, Most, what, func() error {
		if !holds() {
			return errors.New("it does not hold")
		}
		return nil
	})
}
