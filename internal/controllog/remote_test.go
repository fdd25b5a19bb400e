package controllog

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/internal/base/event"
	demov1 "github.com/ringfence/router/proto/ringfence/demo/v1"
)

// logServer serves a Mem, just enough of a broker for a Remote.
type logServer struct {
	demov1.UnimplementedBrokerServiceServer
	mem *Mem
}

func (s *logServer) AppendRecord(_ context.Context, in *demov1.AppendRecordRequest) (*demov1.AppendRecordResponse, error) {
	at := s.mem.Put(in.GetRecord())
	return &demov1.AppendRecordResponse{LedgerId: at.Ledger, EntryId: at.Entry}, nil
}

func (s *logServer) TailRecords(in *demov1.TailRecordsRequest, out grpc.ServerStreamingServer[demov1.TailRecordsResponse]) error {
	from := event.Position{Ledger: in.GetLedgerId(), Entry: in.GetEntryId()}
	if in.GetLatest() {
		from = event.Position{}
	}
	ctx, cancel := context.WithCancelCause(out.Context())
	defer cancel(nil)
	return s.mem.Tail(ctx, from, 0,
		func() { cancelOn(cancel, out.SendHeader(metadata.MD{})) },
		func(e Entry) {
			cancelOn(cancel, out.Send(&demov1.TailRecordsResponse{LedgerId: e.At.Ledger, EntryId: e.At.Entry, Record: e.Data}))
		})
}

func cancelOn(cancel context.CancelCauseFunc, err error) {
	if err != nil {
		cancel(err)
	}
}

// serve puts a Mem behind a gRPC server, and returns how to dial it.
func serve(t *testing.T, mem *Mem) func(t *testing.T) *Remote {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	demov1.RegisterBrokerServiceServer(server, &logServer{mem: mem})
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) }) // ends with Stop
	t.Cleanup(func() { server.Stop(); wg.Wait() })
	return func(t *testing.T) *Remote {
		t.Helper()
		conn, err := grpc.NewClient("passthrough:///broker",
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		cfg := DefaultRemoteConfig()
		cfg.Topic, cfg.SendTimeout = "log", time.Minute // a busy machine may answer late
		remote, err := NewRemote(cfg, demov1.NewBrokerServiceClient(conn))
		if err != nil {
			t.Fatal(err)
		}
		return remote
	}
}

func remoteSite(t *testing.T) site {
	mem := NewMem()
	dial := serve(t, mem)
	return site{
		connect: func(t *testing.T) Transport { return runTransport(t, dial(t)) },
		roll:    func(*testing.T) { mem.Roll() },
	}
}
