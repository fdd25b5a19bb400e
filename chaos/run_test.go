//go:build linux

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Ctrl-C also ends a round that waits for the aftermath of its faults.
func TestRoundHeedsCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		time.AfterFunc(time.Second, stop)
		began := time.Now()
		c := &chaos{group: &group{options: options{Control: controlShared}}} // nothing that could not be whole
		_, err := c.round(ctx, 0, 1, round{Quiet: time.Hour})
		if took := time.Since(began); !errors.Is(err, context.Canceled) || took > time.Minute {
			t.Errorf("the round ended with %v after %v, want it cancelled after a second", err, took)
		}
	})
}
