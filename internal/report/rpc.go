package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/untrusted"
	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
	"github.com/ringfence/router/ring"
)

// Server answers other members for the local one.
type Server struct {
	reportv1.UnimplementedReportServiceServer

	local      Local
	prover     Prover
	status     memo
	partitions memo
	rollout    memo
}

// NewServer returns a Server, to be registered on the port for peers. prover may be nil.
func NewServer(local Local, prover Prover) *Server {
	return &Server{local: local, prover: prover, status: newMemo(), partitions: newMemo(), rollout: newMemo()}
}

// Register makes a gRPC server answer.
func (s *Server) Register(server grpc.ServiceRegistrar) {
	reportv1.RegisterReportServiceServer(server, s)
}

// Report implements reportv1.ReportServiceServer.
func (s *Server) Report(ctx context.Context, request *reportv1.ReportRequest) (*reportv1.ReportResponse, error) {
	var text []byte
	var err error
	switch request.GetSubject() {
	case reportv1.Subject_SUBJECT_STATUS:
		text, err = s.status.get(ctx, func() any { return s.local.Status() })
	case reportv1.Subject_SUBJECT_PARTITIONS:
		text, err = s.partitions.get(ctx, func() any { return s.local.Partitions(ctx) })
	case reportv1.Subject_SUBJECT_KEY:
		if len(request.GetKey()) > event.KeyMax {
			return nil, status.Errorf(codes.InvalidArgument, "the key has %d bytes, want at most %d", len(request.GetKey()), event.KeyMax)
		}
		text, err = json.Marshal(s.local.Key(ctx, event.Key(request.GetKey())))
	case reportv1.Subject_SUBJECT_KEYS:
		q := KeysQuestion{Which: request.GetKeys().GetWhich(), Limit: int(request.GetKeys().GetLimit()), Named: request.GetKeys().GetNamed()}
		if fault := q.Check(); fault != nil {
			return nil, status.Error(codes.InvalidArgument, fault.Error())
		}
		text, err = json.Marshal(s.local.Keys(ctx, q))
	case reportv1.Subject_SUBJECT_HISTORY:
		text, err = json.Marshal(s.local.History(ctx, ring.KeyHash(request.GetKeyHash())))
	case reportv1.Subject_SUBJECT_ROLLOUT:
		text, err = s.rollout.get(ctx, func() any {
			at := s.local.Rollout()
			at.Bound()
			return at
		})
	case reportv1.Subject_SUBJECT_UNSPECIFIED:
		fallthrough
	default:
		return nil, status.Errorf(codes.Unimplemented, "no report about %v", request.GetSubject()) // of a later version
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &reportv1.ReportResponse{Json: text}, nil
}

// Prove implements reportv1.ReportServiceServer.
func (s *Server) Prove(ctx context.Context, request *reportv1.ProveRequest) (*reportv1.ProveResponse, error) {
	if s.prover == nil {
		return nil, status.Error(codes.Unimplemented, "this member takes part in no proofs")
	}
	answer, err := s.prover.Prove(ctx, request.GetJson())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &reportv1.ProveResponse{Json: answer}, nil
}

// memoFor is the greatest age of a report that is given again: a member computes its report four
// times a second at most, however many ask.
const memoFor = 250 * time.Millisecond

// memo is the newest word about one subject.
type memo struct {
	turn chan struct{} // cap 1: held by the goroutine that uses the fields below
	at   clock.Instant // 0: never
	text []byte
}

func newMemo() memo { return memo{turn: make(chan struct{}, 1)} }

// get returns the JSON of word, and computes it if it is old. One caller computes at a time, and all
// others wait.
func (m *memo) get(ctx context.Context, word func() any) ([]byte, error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if m.at != 0 && clock.Now().Sub(m.at) < memoFor {
		return m.text, nil
	}
	text, err := json.Marshal(word())
	if err != nil {
		return nil, err
	}
	m.at, m.text = clock.Now(), text
	return text, nil
}

// peers asks other members.
type peers struct {
	creds credentials.TransportCredentials
}

// reportBytesMax is the largest report that is taken from another member: one of all
// partitions has less than half a megabyte, and a list of keys less than three.
const reportBytesMax = 4 << 20

// ask puts the report of the member at address into word. A connection lives as long as its
// query, because queries are rare.
func (p peers) ask(ctx context.Context, address string, request *reportv1.ReportRequest, word any) error {
	var response *reportv1.ReportResponse
	err := p.call(ctx, address, func(ctx context.Context, c reportv1.ReportServiceClient) (err error) {
		response, err = c.Report(ctx, request)
		return err
	})
	if err != nil {
		return err
	}
	switch err := json.Unmarshal(response.GetJson(), word); {
	case errors.Is(err, errTooLong):
		return errTooLong
	case err != nil:
		return fmt.Errorf("report: ask %s: its answer is malformed", untrusted.Text(address))
	}
	return nil
}

// prove hands a step of a proof to the member at address.
func (p peers) prove(ctx context.Context, address string, ask []byte) ([]byte, error) {
	var response *reportv1.ProveResponse
	err := p.call(ctx, address, func(ctx context.Context, c reportv1.ReportServiceClient) (err error) {
		response, err = c.Prove(ctx, &reportv1.ProveRequest{Json: ask})
		return err
	})
	return response.GetJson(), err
}

// call makes one call to the member at address.
func (p peers) call(ctx context.Context, address string, call func(context.Context, reportv1.ReportServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(p.creds), grpc.WithDisableRetry(),
		grpc.WithContextDialer(untrusted.DialTCP), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(reportBytesMax)))
	if err != nil {
		return fmt.Errorf("report: ask %s: %w", address, err)
	}
	defer conn.Close()
	if err := call(ctx, reportv1.NewReportServiceClient(conn)); err != nil {
		return fmt.Errorf("report: ask %s: %s", untrusted.Text(address), failure(status.Code(err)))
	}
	return nil
}

// failure returns only the class of an error: pages that show it are open to all, and the
// network's own text would reveal open ports.
func failure(code codes.Code) string {
	switch code { // all other codes are answers of a member
	case codes.Unimplemented, codes.InvalidArgument: // the latter of earlier releases, about a subject that they do not know
		return "its version cannot answer"
	case codes.Unavailable:
		return "it cannot be reached"
	case codes.DeadlineExceeded, codes.Canceled:
		return "no answer in time"
	}
	return "it refuses"
}
