package report

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/internal/untrusted"
	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
)

// Server answers other members for the local one.
type Server struct {
	reportv1.UnimplementedReportServiceServer

	local Local
}

// NewServer returns a Server, to be registered on the port for peers.
func NewServer(local Local) *Server { return &Server{local: local} }

// Register makes a gRPC server answer.
func (s *Server) Register(server grpc.ServiceRegistrar) {
	reportv1.RegisterReportServiceServer(server, s)
}

// Report implements reportv1.ReportServiceServer.
func (s *Server) Report(ctx context.Context, request *reportv1.ReportRequest) (*reportv1.ReportResponse, error) {
	var word any
	switch request.GetSubject() {
	case reportv1.Subject_SUBJECT_STATUS:
		word = s.local.Status()
	case reportv1.Subject_SUBJECT_PARTITIONS:
		word = s.local.Partitions(ctx)
	case reportv1.Subject_SUBJECT_KEY:
		if len(request.GetKey()) > event.KeyMax {
			return nil, status.Errorf(codes.InvalidArgument, "the key has %d bytes, want at most %d", len(request.GetKey()), event.KeyMax)
		}
		word = s.local.Key(ctx, event.Key(request.GetKey()))
	case reportv1.Subject_SUBJECT_UNSPECIFIED:
		fallthrough
	default:
		return nil, status.Errorf(codes.InvalidArgument, "no report about %v", request.GetSubject())
	}
	text, err := json.Marshal(word)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &reportv1.ReportResponse{Json: text}, nil
}

const (
	aboutStatus     = reportv1.Subject_SUBJECT_STATUS
	aboutPartitions = reportv1.Subject_SUBJECT_PARTITIONS
	aboutKey        = reportv1.Subject_SUBJECT_KEY
)

// peers asks other members.
type peers struct {
	creds credentials.TransportCredentials
}

// reportBytesMax is the largest report that is taken from another member: one of all
// partitions has less than half a megabyte.
const reportBytesMax = 4 << 20

// ask puts the report of the member at address into word. A connection lives as long as
// its question: people ask seldom.
func (p peers) ask(ctx context.Context, address string, about reportv1.Subject, key event.Key, word any) error {
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(p.creds), grpc.WithDisableRetry(),
		grpc.WithContextDialer(untrusted.DialTCP), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(reportBytesMax)))
	if err != nil {
		return fmt.Errorf("report: ask %s: %w", address, err)
	}
	defer conn.Close()
	request := &reportv1.ReportRequest{Subject: about, Key: []byte(key)}
	response, err := reportv1.NewReportServiceClient(conn).Report(ctx, request)
	switch {
	case err != nil:
		return fmt.Errorf("report: ask %s: %s", untrusted.Text(address), failure(status.Code(err)))
	}
	if json.Unmarshal(response.GetJson(), word) != nil {
		return fmt.Errorf("report: ask %s: its answer is malformed", untrusted.Text(address))
	}
	return nil
}

// failure says what kind of failure an error is, and no more: everybody may read the pages
// that show it, and the network's own words would tell which ports are open.
func failure(code codes.Code) string {
	switch code { // all others are answers of a member
	case codes.Unimplemented:
		return "its version cannot answer"
	case codes.Unavailable:
		return "it cannot be reached"
	case codes.DeadlineExceeded, codes.Canceled:
		return "no answer in time"
	}
	return "it refuses"
}
