package lane

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/internal/base/event"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// TestReserveEnds: the end of a reservation ends its stream, with a status, also if its holder says nothing and keeps its side open.
func TestReserveEnds(t *testing.T) {
	t.Parallel()
	refused := event.NotRun(0, event.CodeParked, "as told")
	for name, test := range map[string]struct {
		ask  *lanev1.Ask
		over string
		want codes.Code
	}{
		"refused":   {&lanev1.Ask{Key: []byte("k"), Id: []byte(anID)}, event.CodeParked, codes.OK},
		"unreached": {&lanev1.Ask{Key: []byte("k"), Id: []byte(anID), Resume: true}, "", codes.Unavailable},
	} {
		o := newTTLOwner()
		if test.over != "" {
			o.says(&refused, nil)
		}
		service := &Service{Lane: o.lane}
		listener, server := bufconn.Listen(1<<16), grpc.NewServer()
		lanev1.RegisterLaneServiceServer(server, service)
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(listener) })
		conn, err := grpc.NewClient("passthrough:router", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		stream, err := lanev1.NewLaneServiceClient(conn).Reserve(ctx)
		if err == nil {
			err = stream.Send(&lanev1.ReserveRequest{Frame: &lanev1.ReserveRequest_Ask{Ask: test.ask}})
		}
		if err != nil {
			t.Fatal(err)
		}
		over := ""
		for err == nil {
			var m *lanev1.ReserveResponse
			if m, err = stream.Recv(); err == nil {
				over = m.GetOver().GetCode()
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != test.want || over != test.over {
			t.Errorf("%s: %v after over with %q, want %v after %q", name, err, over, test.want, test.over)
		}
		service.readers.Wait() // its stream is over, and its connection is not
		stop()
		_ = conn.Close()
		server.Stop()
		serving.Wait()
	}
}
