//go:build !linux

package timerslack

// Widen does nothing: only Linux has timer slack.
func Widen() error { return nil }

// Narrow does nothing.
func Narrow() (restore func()) { return func() {} }
