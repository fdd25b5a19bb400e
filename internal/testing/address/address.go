// Package address gives tests addresses at which nobody listens.
package address

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Held returns a loopback address at which nobody listens. It is the local address of an open connection, so no other process can take it. free closes the
// connection; the end of the test does so at the latest.
func Held(t testing.TB) (address string, free func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait for anybody
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	held, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // the listener is there
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	free = sync.OnceFunc(func() {
		_ = other.Close() // first: the end that closes first keeps its port for a minute
		_, _ = io.Copy(io.Discard, held)
		_ = held.Close()
	})
	t.Cleanup(free)
	return held.LocalAddr().String(), free
}
