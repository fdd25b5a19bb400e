package telemetry

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A request that is too long gets an answer that says so, and not our memory.
func TestRequestsAreBounded(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served, read := make(chan error, 1), make(chan error, 1)
	go func() {
		served <- Serve(ctx, listener, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			read <- err
		}))
	}()
	ask := func(header string, body int) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listener.Addr().String(), strings.NewReader(strings.Repeat("x", body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Filler", header)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	if status := ask("short", bodyBytesMax); status != http.StatusOK || <-read != nil {
		t.Errorf("the longest body gets %d", status)
	}
	ask("short", bodyBytesMax+1)
	if err := <-read; err == nil {
		t.Error("a longer body was read to its end")
	}
	if status := ask(strings.Repeat("x", 2*headerBytesMax), 0); status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a long header gets %d", status)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
