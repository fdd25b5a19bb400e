package client_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/client"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
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

// reader is a router that answers all that it reads, of at most 2 MiB as every router.
type reader struct {
	lanev1.UnimplementedLaneServiceServer

	read atomic.Int64
}

func (r *reader) Invoke(context.Context, *lanev1.InvokeRequest) (*lanev1.InvokeResponse, error) {
	r.read.Add(1)
	return &lanev1.InvokeResponse{Outcome: lanev1.Outcome_OUTCOME_REPLIED}, nil
}

func (r *reader) Send(context.Context, *lanev1.SendRequest) (*lanev1.SendResponse, error) {
	r.read.Add(1)
	return &lanev1.SendResponse{MessageId: "1:2:-1:-1"}, nil
}

// TestTooLargeRequestsAreNotSent: gRPC answers what is larger than a router reads with the status that means "again", so it must not get there.
func TestTooLargeRequestsAreNotSent(t *testing.T) {
	t.Parallel()
	listener, server, router := bufconn.Listen(1<<16), grpc.NewServer(grpc.MaxRecvMsgSize(2<<20)), new(reader)
	lanev1.RegisterLaneServiceServer(server, router)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	lane, err := client.Dial("router:1", client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lane.Close() }()
	const most = 1 << 20
	for name, c := range map[string]struct {
		key     string
		payload int
		want    string // "": it is sent
	}{
		"the largest payload": {"k", most, ""},
		"a larger payload":    {"k", most + 1, "a payload of 1048577 bytes: want at most 1048576"},
		"a huge payload":      {"k", 3 * most, "a payload of 3145728 bytes: want at most 1048576"},
		"a huge key":          {strings.Repeat("k", 2*most), 0, "bytes: want at most 2097152"},
	} {
		before := router.read.Load()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // otherwise it would be sent again for ever
		_, sent := lane.Send(ctx, c.key, make([]byte, c.payload))
		_, called := lane.Invoke(ctx, c.key, "do", make([]byte, c.payload))
		cancel()
		if c.want == "" {
			if sent != nil || called != nil {
				t.Errorf("%s: %v, %v", name, sent, called)
			}
			continue
		}
		if !errors.Is(sent, client.ErrNotSent) || !strings.Contains(sent.Error(), c.want) {
			t.Errorf("%s: Send: %v", name, sent)
		}
		if failure := (*client.CallError)(nil); !errors.As(called, &failure) || !errors.Is(failure.Kind, client.ErrNotRun) || failure.Code != client.CodeTooLarge || !strings.Contains(failure.Text, c.want) {
			t.Errorf("%s: Invoke: %v", name, called)
		}
		if read := router.read.Load() - before; read != 0 {
			t.Errorf("%s: the router has read %d requests", name, read)
		}
	}
}
