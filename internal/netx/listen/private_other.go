//go:build !linux

package listen

import "syscall"

// private cannot restrict the umask's permissions here.
func private(_, _ string, _ syscall.RawConn) error { return nil }
