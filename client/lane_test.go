package client_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/ringfence/router/client"
)

// TestInvokeWithoutARouter: a call that got no connection has not run, in the words of this version of gRPC.
func TestInvokeWithoutARouter(t *testing.T) {
	lane, err := client.Dial("127.0.0.1:1", client.WithDialer(func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("nobody is there") }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lane.Close() }()
	var failure *client.CallError
	if _, err := lane.Invoke(t.Context(), "k", "charge", nil); !errors.As(err, &failure) || !errors.Is(err, client.ErrNotRun) || failure.Code != client.CodeUnreachable {
		t.Errorf("the error is %v", err)
	}
}
