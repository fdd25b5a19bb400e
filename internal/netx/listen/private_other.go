//go:build !linux

package listen

import "syscall"

// private has no way to narrow what the umask allows.
func private(_, _ string, _ syscall.RawConn) error { return nil }
