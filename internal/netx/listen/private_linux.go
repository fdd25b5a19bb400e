package listen

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// private gives the file of a socket its final, closed permissions before it is bound, which
// works on Linux only. Between bind and chmod it would have those of the umask.
func private(_, _ string, conn syscall.RawConn) error {
	var failed error
	if err := conn.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) }); err != nil {
		return err
	}
	return failed
}
