package report

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// aLocal knows itself and others.
type aLocal struct{ others []Member }

func (l aLocal) Status() Status                                  { return Status{View: View{Member: "self"}} }
func (l aLocal) Partitions(context.Context) Partitions           { return Partitions{} }
func (l aLocal) Key(context.Context, event.Key) KeyAt            { return KeyAt{Wait: WaitsForNothing} }
func (l aLocal) Keys(context.Context, KeysQuestion) KeysAt       { return KeysAt{} }
func (l aLocal) History(context.Context, ring.KeyHash) HistoryAt { return HistoryAt{} }
func (l aLocal) Rollout() RolloutAt                              { return RolloutAt{} }
func (l aLocal) Owner(ring.Partition) (*Member, int64)           { return nil, 0 }
func (l aLocal) Members() []Member {
	return append([]Member{{Name: "self", Incarnation: "11", Reach: ReachSelf, Listed: true}}, l.others...)
}

// No query makes a member dial another one that only gossip knows.
func TestWhomGossipAloneKnowsIsNotDialed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dialed := make(chan net.Addr, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			dialed <- conn.RemoteAddr()
			conn.Close()
		}
	}()
	local := aLocal{[]Member{{Name: "fake", Incarnation: "ff", Address: listener.Addr().String(), Unnamed: true}}}
	g := NewGroup(local, nil, insecure.NewCredentials())
	m := g.Members(t.Context())
	if fake := m.Members[1]; fake.Status != nil || fake.Error != errUnnamed.Error() {
		t.Errorf("the report about the fake member is %+v", fake)
	}
	if len(m.Disagreements) != 1 || !strings.Contains(m.Disagreements[0], "members that the control log does not name, as fake:") {
		t.Errorf("disagreements %q", m.Disagreements)
	}
	if k := g.Key(t.Context(), "key"); len(k.At) > 0 {
		t.Errorf("the key is at %+v", k.At)
	}
	if _, err := g.Status(t.Context(), "fake"); !errors.Is(err, errUnnamed) {
		t.Errorf("Status = %v", err)
	}
	if _, err := g.Partitions(t.Context(), "fake"); !errors.Is(err, errUnnamed) {
		t.Errorf("Partitions = %v", err)
	}
	// The counter-proof: one that the log names is dialed, and why it does not answer is a class.
	local.others[0].Unnamed = false
	if m = g.Members(t.Context()); !strings.HasSuffix(m.Members[1].Error, failure(codes.Unavailable)) {
		t.Errorf("one that ends each connection: %q", m.Members[1].Error)
	}
	listener.Close()
	<-done
	if len(dialed) == 0 {
		t.Error("one that the log names was not dialed: this test proves nothing")
	}
	before := len(dialed)
	local.others[0].Address = "unix:/var/run/docker.sock"
	if m = g.Members(t.Context()); !strings.HasSuffix(m.Members[1].Error, "it cannot be reached") || strings.Contains(m.Members[1].Error, "no such file") {
		t.Errorf("of a socket: %q", m.Members[1].Error)
	}
	if len(dialed) != before {
		t.Error("a member dialed")
	}
}

// A name that both a stranger and a member have is the member's.
func TestTheNamedMemberWins(t *testing.T) {
	g := NewGroup(aLocal{[]Member{{Name: "pod-1", Address: "10.0.0.1:1", Unnamed: true}, {Name: "pod-1", Address: "10.0.0.2:1"}}}, nil, insecure.NewCredentials())
	if m, err := g.find("pod-1"); err != nil || m.Unnamed {
		t.Errorf("find gives %+v, %v", m, err)
	}
}
