package doors

import (
	"os"
	"syscall"
	"testing"
)

func TestSocketOwnerIsSomebodyElse(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may give a file away")
	}
	path := socketPath(t)
	listener, err := Listen(t.Context(), "unix://"+path, Socket{SocketMode: "0600", SocketOwner: "12345:23456"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if user, group := ownerOf(t, path); user != 12345 || group != 23456 {
		t.Errorf("the socket belongs to %d:%d", user, group)
	}
}

func ownerOf(t *testing.T, path string) (user, group int) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	return int(stat.Uid), int(stat.Gid)
}
