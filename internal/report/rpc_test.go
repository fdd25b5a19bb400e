package report

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
)

// former is a member of a release that knows the first subjects only, as 07a84d1.
type former struct {
	reportv1.UnimplementedReportServiceServer
}

func (former) Report(_ context.Context, request *reportv1.ReportRequest) (*reportv1.ReportResponse, error) {
	return nil, status.Errorf(codes.InvalidArgument, "no report about %v", request.GetSubject())
}

// TestASubjectThatTheOtherDoesNotKnow: of a member of an earlier release, which says "no report about" a new subject, an operator reads that
// its version cannot answer. A member of this release says so to a later one by the status that this one understands.
func TestASubjectThatTheOtherDoesNotKnow(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	reportv1.RegisterReportServiceServer(server, former{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // ends by Stop
	defer serving.Wait()
	defer server.Stop()
	var word KeysAt
	err = peers{creds: insecure.NewCredentials()}.ask(t.Context(), listener.Addr().String(), about(reportv1.Subject_SUBJECT_KEYS), &word)
	if err == nil || !strings.Contains(err.Error(), "its version cannot answer") {
		t.Errorf("asked for keys, a former member is said to fail with %v", err)
	}
	if _, err := NewServer(aLocal{}, nil).Report(t.Context(), about(99)); status.Code(err) != codes.Unimplemented {
		t.Errorf("asked for a later subject, this one says %v", err)
	}
}

// TestADeadIncarnationHasNoStatus: a process that was restarted answers at the address of its earlier incarnation, which stays listed until its
// lease is over, and only for itself: else the dead member would be shown as ready.
func TestADeadIncarnationHasNoStatus(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	NewServer(restarted{}, nil).Register(server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // ends by Stop
	defer serving.Wait()
	defer server.Stop()
	address := listener.Addr().String()
	local := aLocal{[]Member{{Name: "a", Incarnation: "22", Address: address, Reach: "dead", Listed: true}, {Name: "a", Incarnation: "33", Address: address, Reach: "alive", Listed: true}}}
	m := NewGroup(local, nil, insecure.NewCredentials()).Members(t.Context())
	if dead := m.Members[1]; dead.Status != nil || !strings.Contains(dead.Error, "at its address answers a of incarnation 33") {
		t.Errorf("the dead incarnation is shown with status %+v, error %q", dead.Status, dead.Error)
	}
	if alive := m.Members[2]; alive.Status == nil || alive.Error != "" {
		t.Errorf("the new incarnation is shown with status %+v, error %q", alive.Status, alive.Error)
	}
}

// restarted is a member in its newest incarnation.
type restarted struct{ aLocal }

func (restarted) Status() Status { return Status{View: View{Member: "a", Incarnation: "33"}} }
