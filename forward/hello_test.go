package forward

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/testing/written"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// strangersHello is the Hello of another group, modified by change.
func strangersHello(change func(*peerv1.Hello)) *peerv1.ForwardRequest {
	h := Identity{Group: "other", HashID: ring.HashID, Member: "x", Incarnation: peerNumber(9)}.hello(peerNumber(2))
	change(h)
	return &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: h}}
}

// A stranger's Hello takes little room in the log and in the answer to it, regardless of its
// length and frequency.
func TestALongHelloMakesShortLines(t *testing.T) {
	for name, c := range map[string]struct {
		hello *peerv1.ForwardRequest
		code  codes.Code
	}{
		"a group of 7 MiB":    {strangersHello(func(h *peerv1.Hello) { h.Group = strings.Repeat("\x01", 7<<20) }), codes.InvalidArgument},
		"a group of 60 kB":    {strangersHello(func(h *peerv1.Hello) { h.Group = strings.Repeat("\x01", 60_000) }), codes.FailedPrecondition},
		"a member of 60 kB":   {strangersHello(func(h *peerv1.Hello) { h.Member = strings.Repeat("x", 60_000) }), codes.FailedPrecondition},
		"a function of 60 kB": {strangersHello(func(h *peerv1.Hello) { h.Group, h.HashId = "g", strings.Repeat("x", 60_000) }), codes.FailedPrecondition},
		"settings of 60 kB": {strangersHello(func(h *peerv1.Hello) {
			h.Group = "g"
			for i := range 15 {
				h.Identity = append(h.Identity, &peerv1.Setting{Name: "setting." + string(rune('a'+i)), Value: strings.Repeat("\x01", 4000)})
			}
		}), codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := &pipes{}
				b := newNode(t, network, 2, DefaultConfig(), bubbleClock())
				b.logged = &written.Text{}
				for i := range 15 {
					b.identity.Settings = append(b.identity.Settings, identity.Setting{Name: "setting." + string(rune('a'+i)), Value: "ours"})
				}
				b.start()
				defer b.stop()
				const attempts = 20
				begun := clock.Now() // which limits the lines, and which no bubble stops
				for range attempts {
					st, closeAll := caller(t, network, b, c.hello)
					if s := endOf(st); s.Code() != c.code || len(s.Message()) > 8<<10 {
						t.Errorf("status = %v with %d bytes, want %v", s.Code(), len(s.Message()), c.code)
					}
					closeAll()
				}
				most := 1 + int(clock.Now().Sub(begun)/lineEvery)
				if got := b.logged.String(); strings.Count(got, "\n") > most || len(got) > most*4<<10 || !strings.Contains(got, "stream refused") {
					t.Errorf("%d attempts left %d lines with %d bytes in the log, want at most %d lines: %.300s", attempts, strings.Count(got, "\n"), len(got), most, got)
				}
				reason := refusedHello
				if c.code == codes.InvalidArgument {
					reason = refusedFrame
				}
				if got := testutil.ToFloat64(b.metrics.refused[reason]); got != attempts {
					t.Errorf("%v streams are counted as refused, want %d", got, attempts)
				}
			})
		})
	}
}

func TestSaidIsShortAndHarmless(t *testing.T) {
	if got := peerText("\x1b[2Jgone"); strings.Contains(got, "\x1b") {
		t.Errorf("said = %q", got)
	}
	if got := peerText(strings.Repeat("é", 1<<20)); len(got) > peerTextMax+len("…") || !strings.HasPrefix(got, "éé") {
		t.Errorf("said has %d bytes", len(got))
	}
}

// greeting counts the callers that are no strangers.
type greeting struct {
	credentials.TransportCredentials
	greeted *atomic.Int32
}

type greetingInfo struct {
	credentials.AuthInfo
	greeted *atomic.Int32
}

func (i greetingInfo) Greeted() { i.greeted.Add(1) }

func (g greeting) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := g.TransportCredentials.ServerHandshake(conn)
	return conn, greetingInfo{info, g.greeted}, err
}

// The bounds of strangers end with a good Hello, and only then.
func TestAGoodHelloEndsTheBoundsOfStrangers(t *testing.T) {
	for name, test := range map[string]struct {
		group   string
		greeted int32
	}{"good": {"g", 1}, "of another group": {"other", 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, greeted := &pipes{}, new(atomic.Int32)
				b := newNode(t, network, 2, DefaultConfig(), bubbleClock())
				b.server = NewServer(b.config, b.self, greeting{insecure.NewCredentials(), greeted}, b, b.now, b.metrics, b.log())
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				listener := network.listen(t, b.name())
				wg.Go(func() {
					if err := b.server.Run(ctx, listener); err != nil {
						t.Error(err)
					}
				})
				defer func() { cancel(); wg.Wait() }()
				h := Identity{Group: test.group, HashID: ring.HashID, Member: "x", Incarnation: peerNumber(9)}.hello(peerNumber(2))
				_, closeAll := caller(t, network, b, &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: h}})
				defer closeAll()
				time.Sleep(time.Second)
				if got := greeted.Load(); got != test.greeted {
					t.Errorf("greeted %d times, want %d", got, test.greeted)
				}
			})
		})
	}
}

// An application whose address is that of the peers' port is told which one it needs.
func TestAnApplicationAtThePortOfPeersIsToldWhereToGo(t *testing.T) {
	network := &loopback{}
	n := newNode(t, network, 1, DefaultConfig(), clock.Now)
	n.startServer()
	defer n.stopServer()
	conn, err := grpc.NewClient("passthrough:///"+n.name(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(network.dial))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for method, says := range map[string]string{
		"/ringfence.app.v1.AppService/Work":     "app.listen",
		"/ringfence.lane.v1.LaneService/Invoke": "app.listen",
		"/ringfence.peer.v1.PeerService/Later":  "unknown method /ringfence.peer.v1.PeerService/Later",
		"/of.another.Program/Call":              "unknown method",
	} {
		err := conn.Invoke(t.Context(), method, &peerv1.ForwardRequest{}, &peerv1.ForwardResponse{})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(status.Convert(err).Message(), says) {
			t.Errorf("%s: %v, want Unimplemented with %q", method, err, says)
		}
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(&peerv1.ForwardResponse{}); status.Code(err) != codes.Unimplemented || !strings.Contains(status.Convert(err).Message(), says) {
			t.Errorf("%s as a stream: %v, want Unimplemented with %q", method, err, says)
		}
	}
}
