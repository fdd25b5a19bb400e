// Package listen opens a member's listeners and enforces their connection limits, handshake
// timeouts and socket permissions.
//
// # Concurrency
//
// Everything is safe for concurrent use. The package starts no goroutine.
package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Socket sets the access to a Unix socket. It has no effect on other listeners.
type Socket struct {
	// SocketMode is the mode of the socket's file, in octal. Every process with write permission
	// may connect.
	SocketMode string
	// SocketOwner is the owner of the socket's file, as numeric UID:GID, UID or :GID; empty: the
	// router's user and group.
	SocketOwner string
}

// DefaultSocket lets in processes of the same user.
func DefaultSocket() Socket { return Socket{SocketMode: "0600"} }

// CheckMode reports whether SocketMode can be read.
func (s Socket) CheckMode() error { _, err := s.mode(); return err }

// CheckOwner reports whether SocketOwner can be read.
func (s Socket) CheckOwner() error { _, _, err := s.owner(); return err }

func (s Socket) mode() (fs.FileMode, error) {
	n, err := strconv.ParseUint(s.SocketMode, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("listen: SocketMode = %q, want permissions in octal such as 0660", s.SocketMode)
	}
	return fs.FileMode(n), nil
}

// owner returns -1 for an unchanged id.
func (s Socket) owner() (user, group int, err error) {
	id := func(text string) int {
		if text == "" {
			return -1
		}
		n, parseErr := strconv.ParseUint(text, 10, 31)
		if parseErr != nil {
			err = fmt.Errorf("listen: SocketOwner = %q, want UID:GID, UID or :GID in numbers", s.SocketOwner)
		}
		return int(n)
	}
	userText, groupText, _ := strings.Cut(s.SocketOwner, ":")
	user, group = id(userText), id(groupText)
	return user, group, err
}

// UnixPath returns the path of an address unix:PATH or unix://PATH.
func UnixPath(address string) (path string, ok bool) {
	path, ok = strings.CutPrefix(address, "unix:")
	return strings.TrimPrefix(path, "//"), ok && path != ""
}

// UnixPathBytesMax is the length of the longest path of a socket on this system, which has a zero byte after it.
const UnixPathBytesMax = len(syscall.RawSockaddrUnix{}.Path) - 1

// IsLocal reports whether an address can be reached only from this machine or its pod.
func IsLocal(address string) bool {
	if _, ok := UnixPath(address); ok {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Listen listens on HOST:PORT or unix:PATH. A socket that an earlier process has left behind is
// removed, if no process listens on it any more; any other file is not.
func Listen(ctx context.Context, address string, socket Socket) (net.Listener, error) {
	var config net.ListenConfig
	path, ok := UnixPath(address)
	if !ok {
		return config.Listen(ctx, "tcp", address)
	}
	if len(path) > UnixPathBytesMax { // the system calls it an invalid argument
		return nil, fmt.Errorf("the path of the socket has %d bytes, want at most %d: %s", len(path), UnixPathBytesMax, path)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	config.Control = private // until the file has its permissions
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := socket.apply(path); err != nil {
		_ = listener.Close() // which removes the file
		return nil, err
	}
	return listener, nil
}

// removeStale removes a socket without a listening process.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s exists and is not a socket: remove it, or listen elsewhere", path)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another process listens on %s", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) { // not ours to judge, then
		return fmt.Errorf("%s is there: %w", path, err)
	}
	return os.Remove(path)
}

// apply opens the socket to its users: the owner first, so that the permissions never apply to
// a wrong owner.
func (s Socket) apply(path string) error {
	mode, err := s.mode()
	if err != nil {
		return err
	}
	user, group, err := s.owner()
	if err != nil {
		return err
	}
	if user != -1 || group != -1 {
		if err := os.Lchown(path, user, group); err != nil {
			return fmt.Errorf("give the socket to its owner: %w", err)
		}
	}
	return os.Chmod(path, mode)
}
