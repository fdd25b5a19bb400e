package forward

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/testing/written"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// lostPackets is a network in which no connection is made, and none is refused.
type lostPackets struct{ network }

func (lostPackets) dial(ctx context.Context, _ string) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// mute takes streams, and says nothing.
type mute struct {
	peerv1.UnimplementedPeerServiceServer
}

func (mute) Forward(st peerv1.PeerService_ForwardServer) error {
	<-st.Context().Done()
	return nil
}

// The log tells a peer to which no connection is made from one that takes the connection and says nothing: the first is the network's fault.
func TestTheLogNamesWhatIsMissing(t *testing.T) {
	for name, test := range map[string]struct{ want, not string }{
		"connection": {errNoConnection.Error(), errNoHello.Error()},
		"Hello":      {errNoHello.Error(), errNoConnection.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				silent := &pipes{}
				var at network = silent
				if name == "connection" {
					at = lostPackets{silent}
				}
				server := grpc.NewServer()
				peerv1.RegisterPeerServiceServer(server, mute{})
				b := newNode(t, silent, 2, DefaultConfig(), bubbleClock())
				listener := silent.listen(t, b.name())
				go func() { _ = server.Serve(listener) }()
				defer server.Stop()

				a := newNode(t, at, 1, DefaultConfig(), bubbleClock())
				a.logged = &written.Text{}
				a.pool.log = a.log()
				a.start()
				defer a.stop()
				a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, a, b)
				time.Sleep(3 * a.config.HelloTimeout)
				if got := a.logged.String(); !strings.Contains(got, test.want) || strings.Contains(got, test.not) {
					t.Errorf("the log is\n%s, want %q alone", got, test.want)
				}
			})
		})
	}
}

// In a group of two no third member can be reached; a call to an owner that cannot be reached ends all the same after UnreachableHoldMax.
func TestCallsToAnUnreachableOwnerEndWithoutAThirdMember(t *testing.T) {
	tt := newTableTest(t, false)
	tt.PeerDown(tt.now, peerNumber(2), &tt.out)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	tt.out.Reset()
	tt.reserve(1, event.Call{})
	tt.reserve(2, event.Call{TTL: event.TTLLeast, Resume: true})
	tt.after(tt.config.UnreachableHoldMax)
	if got := tt.codes(); len(got) != 1 || got[1] != event.CodeUnreachable {
		t.Errorf("after the hold: settled %v, want the call without a promise as unreachable", got)
	}
	tt.reserve(3, event.Call{})
	tt.after(time.Millisecond)
	if got := tt.codes(); len(got) != 1 || got[3] != event.CodeUnreachable {
		t.Errorf("later: settled %v, want the new call at once", got)
	}
	if next := tt.Next(); !next.After(tt.now) {
		t.Errorf("Next is %v, now is %v: it would spin", next, tt.now)
	}
	tt.PeerUp(tt.now, peerNumber(1), true, &tt.out)
	tt.wantTake(1, 2)
}
