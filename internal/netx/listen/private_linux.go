package listen

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// private makes the file of a socket that is about to be bound nobody else's: on Linux
// it gets the permissions that the socket has then. Between bind and chmod it would
// have those of the umask.
func private(_, _ string, conn syscall.RawConn) error {
	var failed error
	if err := conn.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) }); err != nil {
		return err
	}
	return failed
}
