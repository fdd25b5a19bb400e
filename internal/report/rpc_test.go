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

	"github.com/ringfence/router/internal/base/event"
	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
	"github.com/ringfence/router/ring"
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

// back is a process that was incarnation 22, drained, and came back as 33, which knows of a key with one event.
type back struct{ aLocal }

var backView = View{Member: "a", Incarnation: "33"}

func (back) Status() Status                       { return Status{View: backView, Earlier: []string{"21", "22"}} }
func (back) Key(context.Context, event.Key) KeyAt { return KeyAt{View: backView, Wait: "handler"} }

func (back) Keys(context.Context, KeysQuestion) KeysAt {
	return KeysAt{View: backView, Counts: KeyCounts{Keys: 1}, Keys: []ListedKey{{Hash: "1", At: "a"}}}
}

func (back) History(context.Context, ring.KeyHash) HistoryAt {
	return HistoryAt{View: backView, Steps: []Step{{Kind: StepQueued, Member: "a", Event: "1:1:-1:-1"}}}
}

// TestAProcessThatCameBackIsOneMember: the table may name its incarnation that has drained until the next one is in it. Whatever the asked
// member knows of the next one, the process is listed once, and each of its keys and steps too.
func TestAProcessThatCameBackIsOneMember(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	NewServer(back{}, nil).Register(server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // ends by Stop
	defer serving.Wait()
	defer server.Stop()
	address := listener.Addr().String()
	past := Member{Name: "a", Incarnation: "22", Address: address, Reach: ReachAlive, Listed: true, Partitions: 7}
	for name, others := range map[string][]Member{
		"it knows the past alone":          {past},
		"gossip alone knows the present":   {past, {Name: "a", Incarnation: "33", Address: "10.0.0.1:1", Reach: ReachUnknown, Unnamed: true}},
		"the log names the present":        {past, {Name: "a", Incarnation: "33", Address: address, Reach: ReachAlive}},
		"the table names two of its past":  {past, {Name: "a", Incarnation: "21", Address: address, Reach: "dead", Listed: true}},
		"the present, and nothing of then": {{Name: "a", Incarnation: "33", Address: address, Reach: ReachAlive}},
	} {
		g := NewGroup(aLocal{others}, nil, insecure.NewCredentials())
		m := g.Members(t.Context())
		if len(m.Members) != 2 || len(m.Disagreements) > 0 {
			t.Errorf("%s: %+v, %q; want self and one of a, and no disagreement", name, m.Members, m.Disagreements)
			continue
		}
		if a := m.Members[1]; a.Incarnation != "33" || a.Address != address || a.Listed || a.Partitions > 0 || a.Unnamed || a.Error != "" || a.Status == nil || a.Status.Incarnation != "33" {
			t.Errorf("%s: a is %+v", name, a)
		}
		if k := g.Key(t.Context(), "key"); len(k.At) != 1 {
			t.Errorf("%s: the key is at %+v, want it once", name, k.At)
		}
		if k := g.Keys(t.Context(), KeysQuestion{Limit: 10}); len(k.Keys) != 1 || k.Counts.Keys != 1 || k.Silent != nil {
			t.Errorf("%s: the keys are %+v, want one", name, k)
		}
		if h := g.History(t.Context(), 1); len(h.Steps) != 1 || len(h.Reach) != 2 || h.Silent != nil {
			t.Errorf("%s: the history is %+v, want one step, as self and a know it", name, h)
		}
	}
}

// ownPast is a member that the table names as the incarnation that has drained, and as the owner of everything.
type ownPast struct{ back }

func (ownPast) Members() []Member {
	return []Member{{Name: "a", Incarnation: "22", Address: "10.0.0.1:1", Listed: true, Over: true}, {Name: "a", Incarnation: "33", Reach: ReachSelf}}
}

func (ownPast) Owner(ring.Partition) (*Member, int64) {
	return &Member{Name: "a", Incarnation: "22", Over: true}, 5
}

func (ownPast) Key(context.Context, event.Key) KeyAt {
	return KeyAt{View: backView, Wait: WaitsForNothing}
}

// TestAMemberThatCameBackAnswersOnceForItself: it does not ask itself as another member.
func TestAMemberThatCameBackAnswersOnceForItself(t *testing.T) {
	g := NewGroup(ownPast{}, nil, insecure.NewCredentials())
	if k := g.Keys(t.Context(), KeysQuestion{Limit: 10}); len(k.Keys) != 1 || k.Silent != nil {
		t.Errorf("the keys are %+v, want one", k)
	}
	if h := g.History(t.Context(), 1); len(h.Steps) != 1 || len(h.Reach) != 1 || h.Silent != nil {
		t.Errorf("the history is %+v, want one step", h)
	}
	if k := g.Key(t.Context(), "key"); k.Owner != "a" || len(k.At) != 1 || k.At[0].Error != "" {
		t.Errorf("the key is at %+v, want the owner's word, which is its own", k)
	}
}
