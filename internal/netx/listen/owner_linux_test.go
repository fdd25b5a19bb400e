package listen

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
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
	path = socketPath(t)
	other, err := Listen(t.Context(), "unix:"+path, Socket{SocketMode: "0600", SocketOwner: ":23456"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if user, group := ownerOf(t, path); user != os.Getuid() || group != 23456 {
		t.Errorf("the socket of a group belongs to %d:%d", user, group)
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

// A process without write permission on the socket's file cannot connect; root's capabilities
// do not matter here.
func TestSocketKeepsOthersOut(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may act as another user")
	}
	for mode, want := range map[string]error{"0600": syscall.EACCES, "0666": nil} {
		path := socketPath(t)
		if err := os.Chmod(filepath.Dir(path), 0o755); err != nil { // so that it is up to the socket alone
			t.Fatal(err)
		}
		listener, err := Listen(t.Context(), "unix:"+path, Socket{SocketMode: mode})
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		tried := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlock: the thread with another user id ends with us
			tried <- connectAs(12345, path)
		}()
		if err := <-tried; !errors.Is(err, want) {
			t.Errorf("with %s another user's connect returns %v, want %v", mode, err, want)
		}
	}
}

// connectAs connects as another user of files, in this thread.
func connectAs(user int, path string) error {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }() // nothing was written
	if err := syscall.Setfsuid(user); err != nil {
		return err
	}
	return syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
}
