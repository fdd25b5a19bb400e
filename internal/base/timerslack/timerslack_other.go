//go:build !linux

package timerslack

import (
	"errors"
	"time"
)

// Widen does nothing: only Linux has timer slack.
func Widen() error { return nil }

// Get implements no system but Linux.
func Get() (time.Duration, error) { return 0, errors.ErrUnsupported }

// Narrow does nothing.
func Narrow() (restore func()) { return func() {} }
