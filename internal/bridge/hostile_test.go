package bridge

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// An answer that changes the protocol is no verdict, and does not outlive the deadline of its key: net/http leaves such a connection to its caller.
func TestSwitchedProtocolsEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{}, 10)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				request, err := http.ReadRequest(r)
				if err != nil {
					return // the bridge looks whether we are there
				}
				_, _ = io.Copy(io.Discard, request.Body)
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				_, _ = io.Copy(io.Discard, r)
				closed <- struct{}{}
			}()
		}
	}()
	r := clienttest.NewRouter(t)
	start(t, r, "http://"+listener.Addr().String(), nil)
	t.Cleanup(func() { _ = listener.Close() })
	d := r.Deliver(&client.Event{Key: "k"})
	select {
	case <-d.Over():
		if got, want := d.Outcome(), (clienttest.Outcome{Kind: clienttest.Retry, Reason: "101 Switching Protocols"}); got != want {
			t.Errorf("outcome %+v, want %+v", got, want)
		}
	case <-time.After(eventually.Most):
		t.Error("no outcome while the connection is open")
		r.Lose("k")
	}
	select {
	case <-closed:
	case <-time.After(eventually.Most):
		t.Fatal("the bridge did not close the connection, also after the key was lost")
	}
}
