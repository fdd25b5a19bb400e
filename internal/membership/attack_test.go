package membership

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// Attacks by an outsider who reaches the gossip port, with and without keys.

// target is a member with a limiter, its log and its metrics.
type target struct {
	*testNode

	said     *written.Text
	registry *prometheus.Registry
}

func startTarget(t *testing.T, cfg Config, connectionsMax int) *target {
	t.Helper()
	said, registry := &written.Text{}, prometheus.NewRegistry()
	limiter := listen.NewLimiter("gossip", connectionsMax, listen.NewMetrics(registry))
	log := slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelInfo}))
	return &target{startNodeBehind(t, cfg, nil, limiter, log), said, registry}
}

// rejected returns how much was rejected, whatever the reason, or for one.
func (tg *target) rejected(t *testing.T, why ...string) (sum float64) {
	t.Helper()
	families, err := tg.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "ringfence_listener_rejected_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "reason" && (len(why) == 0 || label.GetValue() == why[0]) {
					sum += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

func (tg *target) warnings(kind string) float64 {
	return testutil.ToFloat64(tg.gossip.metrics.library.WithLabelValues(kind))
}

// send sends packets until enough have arrived: the kernel may drop some.
func (tg *target) send(t *testing.T, enough func() bool, packet func(i int) string) {
	t.Helper()
	conn, err := net.Dial("udp", tg.gossip.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent := 0
	eventually.True(t, "the packets to be noted", func() bool {
		for range 100 {
			_, _ = conn.Write([]byte(packet(sent))) // some are lost anyway
			sent++
		}
		return enough()
	})
}

// linesSince is how many lines the limits of all kinds may have let through in the time that a busy machine took.
func linesSince(began time.Time) int { return 5 * int(time.Since(began)/time.Second) }

// Garbage is counted, and neither memberlist nor we log each packet of it.
func TestGarbageIsCountedAndNotLogged(t *testing.T) {
	t.Parallel()
	const label = "test"
	for name, keys := range map[string][][]byte{"with a key": {make([]byte, 32)}, "without keys": nil} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig("a")
			cfg.SecretKeys = keys
			began := time.Now()
			tg := startTarget(t, cfg, 64)
			tg.send(t, func() bool { return tg.rejected(t) > 2000 }, func(i int) string { return fmt.Sprintf("garbage %d \x1b[2J", i) })
			if keys != nil { // cannot be told before it is decrypted
				tg.send(t, func() bool { return tg.warnings("decrypt") > 2000 }, func(i int) string {
					return labelled(label, fmt.Sprintf("\x01%064d", i))
				})
			}
			most := 10 + linesSince(began)
			if n := strings.Count(tg.said.String(), "\n"); n > most || len(tg.said.String()) > 500*most {
				t.Errorf("of 2,000 packets there are %d lines, more than %d:\n%.2000s", n, most, tg.said.String())
			}
			if strings.Contains(tg.said.String(), "\x1b") {
				t.Errorf("an escape sequence is in the log: %.2000q", tg.said.String())
			}
		})
	}
}

// Connections beyond the limit are closed at once, those in it after their time-out, and a
// member gets in again.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	cfg := testConfig("a")
	cfg.StreamTimeout = 3 * time.Second
	tg := startTarget(t, cfg, 8)
	var open sync.WaitGroup
	eventually.True(t, "92 to be rejected", func() bool { // on a busy machine those within the limit time out before all the others have come
		for range 10 {
			conn, err := net.Dial("tcp", tg.gossip.Addr())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			open.Go(func() { _, _ = conn.Read(make([]byte, 1)) })
		}
		return tg.rejected(t, "full") >= 92
	})
	closed := make(chan struct{})
	go func() { open.Wait(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("a silent connection stays open")
	}
	next := testConfig("b")
	next.Seeds = []string{tg.gossip.Addr()}
	b := startNode(t, next)
	eventually.True(t, "a member to get in", func() bool { return allSeeAll([]*testNode{tg.testNode, b}) })
}

// alive is the news that a node is there.
func alive(name string, ip [4]byte, port uint32, meta []byte) string {
	return "\x04\x86" + str("Incarnation") + num(1) + str("Node") + str(name) + str("Addr") + str(string(ip[:])) +
		str("Port") + num(port) + str("Meta") + str(string(meta)) + str("Vsn") + str("\x01\x05\x02\x00\x00\x00")
}

// fake is the news of a member that does not exist.
func fake(t *testing.T, name, grpcAddr string) string {
	t.Helper()
	m := Member{Name: name, Inc: newInc(), GRPCAddr: grpcAddr}
	meta, err := encodeMeta(m)
	if err != nil {
		t.Fatal(err)
	}
	return alive(gossipName(m), [4]byte{127, 0, 0, 1}, 9, meta)
}

// However many members a stranger invents, gossip knows no more of them than its limit, keeps all
// members that the control log names, and still admits a new one of these.
func TestInventedMembersAreBounded(t *testing.T) {
	t.Parallel()
	cfg := testConfig("a")
	cfg.StrangersMax = 20
	began := time.Now()
	tg := startTarget(t, cfg, 64)
	most := 0
	tg.send(t, func() bool {
		most = max(most, len(tg.gossip.Members()))
		return tg.rejected(t, "members_full") > 1000
	}, func(i int) string { return labelled("test", fake(t, fmt.Sprintf("fake-%d", i), "10.0.0.1:80")) })
	if most > 20 || most == 0 {
		t.Errorf("at most %d members were known, want 20", most)
	}
	next := testConfig("b")
	next.Seeds = []string{tg.gossip.Addr()}
	b := startNode(t, next)
	tg.gossip.SetNamed(map[ownership.Incarnation]Named{b.inc: {Name: "b", GossipAddr: b.gossip.Addr()}})
	tg.gossip.SetKnown([]Known{{Inc: b.inc, GossipAddr: b.gossip.Addr()}})
	eventually.True(t, "the member that the control log names", func() bool { return tg.sees(b) })
	lines := evidenceBurst + 20 + linesSince(began)
	if n := strings.Count(tg.said.String(), "\n"); n > lines {
		t.Errorf("%d lines, more than %d:\n%.3000s", n, lines, tg.said.String())
	}
}

// A stranger who copies what a named member says of itself, under many names, gets none of them into memberlist's memory: neither with
// the suffix of its incarnation nor with another one. Nor does he get its name with metadata of his own, which would keep the member out
// for as long as memberlist knows that name.
func TestCopiesOfANamedMemberAreRefused(t *testing.T) {
	t.Parallel()
	cfg := testConfig("a")
	cfg.StrangersMax = 20
	tg := startTarget(t, cfg, 64)
	named := Member{Name: "b", Inc: newInc(), GRPCAddr: "10.0.0.1:80"}
	meta, err := encodeMeta(named)
	if err != nil {
		t.Fatal(err)
	}
	other, err := encodeMeta(Member{Name: "b", Inc: newInc(), GRPCAddr: "10.0.0.1:80"})
	if err != nil {
		t.Fatal(err)
	}
	tg.gossip.SetNamed(map[ownership.Incarnation]Named{named.Inc: {Name: named.Name, GossipAddr: "127.0.0.1:9"}})
	most := 0
	tg.send(t, func() bool {
		most = max(most, tg.gossip.roster.len())
		return most > 50 || tg.rejected(t, string(refusedName)) > 1000
	}, func(i int) string {
		switch i % 3 {
		case 0:
			return labelled("test", alive(gossipName(Member{Name: fmt.Sprintf("fake-%d", i), Inc: named.Inc}), [4]byte{127, 0, 0, 1}, 9, meta))
		case 1:
			return labelled("test", alive(gossipName(Member{Name: named.Name, Inc: newInc()}), [4]byte{127, 0, 0, 1}, 9, meta))
		default:
			return labelled("test", alive(gossipName(named), [4]byte{127, 0, 0, 1}, 9, other))
		}
	})
	if most > 1 {
		t.Errorf("%d members were known, want this one", most)
	}
}

// A stranger who lets invented members die, again and again, gets no more of them into memberlist's
// memory, which keeps dead members for some time.
func TestInventedMembersThatDieAreBounded(t *testing.T) {
	t.Parallel()
	cfg := testConfig("a")
	cfg.StrangersMax = 20
	tg := startTarget(t, cfg, 64)
	var name string
	tg.send(t, func() bool { return tg.rejected(t, "members_full") > 1000 }, func(i int) string {
		if i%2 == 1 {
			return labelled("test", "\x05\x83"+str("Incarnation")+num(1)+str("Node")+str(name)+str("From")+str(name))
		}
		m := Member{Name: fmt.Sprintf("fake-%d", i), Inc: newInc(), GRPCAddr: "10.0.0.1:80"}
		meta, err := encodeMeta(m)
		if err != nil {
			t.Fatal(err)
		}
		name = gossipName(m)
		return labelled("test", alive(name, [4]byte{127, 0, 0, 1}, 9, meta))
	})
	tg.gossip.roster.mu.Lock()
	defer tg.gossip.roster.mu.Unlock()
	if n := len(tg.gossip.roster.nodes) + len(tg.gossip.roster.gone); n > 2*20+1 {
		t.Errorf("%d nodes are kept, want 40 and this one at most", n)
	}
}

// Names and addresses are judged before anything about them is stored. Members that the control log
// names have the address that it has for them.
func TestWhoGetsToBeKnown(t *testing.T) {
	inc, stranger := newInc(), newInc()
	node := func(name string, inc ownership.Incarnation, addr string) *memberlist.Node {
		at := netip.MustParseAddrPort(addr)
		meta, err := encodeMeta(Member{Inc: inc, GRPCAddr: "10.0.0.7:16651"})
		if err != nil {
			t.Fatal(err)
		}
		return &memberlist.Node{Name: name + "/" + hex.EncodeToString(inc[:8]), Addr: at.Addr().AsSlice(), Port: at.Port(), Meta: meta}
	}
	but := func(n *memberlist.Node, change func(*memberlist.Node)) *memberlist.Node {
		change(n)
		return n
	}
	r := newRoster("self/0011223344556677", 5, func(refusal, string) {})
	byName := newInc()
	r.setNamed(map[ownership.Incarnation]Named{inc: {Name: "pod-0", GossipAddr: "10.0.0.7:16652"}, byName: {Name: "pod-2", GossipAddr: "pod-2.orders:16652"}})
	for name, c := range map[string]struct {
		node *memberlist.Node
		want refusal
	}{
		"a stranger":                                   {node("pod-1", stranger, "10.0.0.8:16652"), ""},
		"of IPv6":                                      {node("pod-1", stranger, "[fd00::8]:16652"), ""},
		"one that is named":                            {node("pod-0", inc, "10.0.0.7:16652"), ""},
		"one that is named, mapped to IPv6":            {node("pod-0", inc, "[::ffff:10.0.0.7]:16652"), ""},
		"one that is named by a host name":             {node("pod-2", byName, "10.0.0.9:16652"), ""},
		"one that is named, with half of its metadata": {but(node("pod-0", inc, "10.0.0.7:16652"), func(n *memberlist.Node) { n.Meta = n.Meta[:17] }), ""},
		"itself, whatever is said of it":               {&memberlist.Node{Name: "self/0011223344556677"}, ""},

		"of a named incarnation, another name":   {node("pod-1", inc, "10.0.0.7:16652"), refusedName},
		"of a named name, another incarnation":   {but(node("pod-0", inc, "10.0.0.7:16652"), func(n *memberlist.Node) { n.Meta = node("pod-0", stranger, "10.0.0.7:16652").Meta }), refusedName},
		"of a named name, of another version":    {but(node("pod-0", inc, "10.0.0.7:16652"), func(n *memberlist.Node) { n.Meta[0]++ }), refusedName},
		"of a named incarnation, another suffix": {but(node("pod-0", inc, "10.0.0.7:16652"), func(n *memberlist.Node) { n.Name = "pod-0/0011223344556677" }), refusedName},

		"in the name of another":          {node("pod-0", inc, "169.254.169.254:80"), refusedAddress},
		"at its address, other port":      {node("pod-0", inc, "10.0.0.7:22"), refusedAddress},
		"escape codes":                    {node("\x1b[2J", stranger, "10.0.0.8:1"), refusedName},
		"no name":                         {node("", stranger, "10.0.0.8:1"), refusedName},
		"a long name":                     {node(strings.Repeat("x", 60<<10), stranger, "10.0.0.8:1"), refusedName},
		"no incarnation":                  {but(node("a", stranger, "10.0.0.8:1"), func(n *memberlist.Node) { n.Name = "a" }), refusedName},
		"a lot about itself":              {but(node("a", stranger, "10.0.0.8:1"), func(n *memberlist.Node) { n.Meta = make([]byte, 60<<10) }), refusedName},
		"escape codes for an incarnation": {but(node("a", stranger, "10.0.0.8:1"), func(n *memberlist.Node) { n.Name = "a/\x1b[2J456789abcdef" }), refusedName},
		"a short incarnation":             {but(node("a", stranger, "10.0.0.8:1"), func(n *memberlist.Node) { n.Name = n.Name[:len(n.Name)-1] }), refusedName},
		"as much about itself as may be":  {but(node("a", stranger, "10.0.0.8:1"), func(n *memberlist.Node) { n.Meta = make([]byte, memberlist.MetaMaxSize) }), ""},
		"no address":                      {but(node("a", stranger, "10.0.0.8:1"), func(n *memberlist.Node) { n.Addr = nil }), refusedAddress},
		"half an address":                 {but(node("a", stranger, "10.0.0.8:1"), func(n *memberlist.Node) { n.Addr = n.Addr[:3] }), refusedAddress},
		"everybody's address":             {node("a", stranger, "0.0.0.0:1"), refusedAddress},
		"the same, mapped to IPv6":        {node("a", stranger, "[::ffff:0.0.0.0]:1"), refusedAddress},
		"many hosts' address":             {node("a", stranger, "224.0.0.1:1"), refusedAddress},
		"port 0":                          {node("a", stranger, "10.0.0.8:0"), refusedAddress},
	} {
		err := r.NotifyAlive(c.node)
		var why refusal
		if errors.As(err, &why); why != c.want {
			t.Errorf("%s: %q, want %q", name, why, c.want)
		}
	}
}

// A hundred packets that expand to 39 MB each are refused before they cost anything.
func TestPacketBombs(t *testing.T) {
	t.Parallel()
	tg := startTarget(t, testConfig("a"), 64)
	bomb := labelled("test", compressed(strings.Repeat("\x00", 39<<20)))
	if len(bomb) > 60<<10 {
		t.Fatalf("the bomb has %d bytes: no packet has", len(bomb))
	}
	tg.send(t, func() bool { return tg.rejected(t, "too_large") >= 100 }, func(int) string { return bomb })
	if n := tg.warnings("malformed"); n > 0 {
		t.Errorf("memberlist has seen %v of them", n)
	}
}

// The same in a stream; and one that announces a million nodes in 30 bytes.
func TestStreamBombs(t *testing.T) {
	t.Parallel()
	tg := startTarget(t, testConfig("a"), 64)
	for name, stream := range map[string]string{
		"a bomb":          compressed(strings.Repeat("\x06", 39<<20)),
		"a million nodes": exchange(1<<20, 0, ""),
	} {
		before := tg.rejected(t, "too_large")
		conn, err := net.Dial("tcp", tg.gossip.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(conn, strings.NewReader(labelled("test", stream))) // it may be cut
		_, err = io.Copy(io.Discard, conn)
		conn.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) || tg.rejected(t, "too_large") != before+1 {
			t.Errorf("%s is not refused: %v", name, err)
		}
	}
}

// Members of the former release, which has neither the screen nor the rest, and members of
// this one find each other, with and without keys: in the clear theirs is compressed.
func TestTheFormerReleaseIsUnderstood(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string][][]byte{"with a key": {make([]byte, 32)}, "in the clear": nil} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig("new")
			cfg.SecretKeys = keys
			tg := startTarget(t, cfg, 64)
			former := Member{Name: "former", Inc: newInc(), GRPCAddr: "127.0.0.1:1665"}
			meta, err := encodeMeta(former)
			if err != nil {
				t.Fatal(err)
			}
			ml, err := cfg.memberlist()
			if err != nil {
				t.Fatal(err)
			}
			ml.Name, ml.LogOutput, ml.EnableCompression = gossipName(former), io.Discard, true
			ml.Delegate = delegate{meta: meta, settings: bytes.Repeat([]byte{0}, 300), merge: func([]byte) {}}
			list, err := memberlist.Create(ml)
			if err != nil {
				t.Fatal(err)
			}
			left := false
			t.Cleanup(func() {
				if !left {
					_ = list.Shutdown()
				}
			})
			if _, err := list.Join([]string{tg.gossip.Addr()}); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "both to see each other", func() bool {
				return list.NumMembers() == 2 && len(tg.gossip.Members()) == 1
			})
			third := testConfig("third")
			third.SecretKeys, third.Seeds = keys, []string{addrOf(list.LocalNode())}
			b := startNode(t, third)
			eventually.True(t, "a third one through the former one", func() bool { return tg.sees(b) && len(b.gossip.Members()) == 2 && list.NumMembers() == 3 })
			if err := list.Leave(time.Minute); err != nil {
				t.Fatal(err)
			}
			left = true
			eventually.True(t, "its farewell", func() bool { return last(tg.kinds(former.Inc)) == Dead })
			if n := tg.rejected(t); n > 0 {
				t.Errorf("%v things of members were rejected:\n%s", n, tg.said.String())
			}
			if err := list.Shutdown(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Nothing is left behind when it cannot listen after all.
func TestTransportEnds(t *testing.T) {
	t.Parallel()
	g, err := New(testConfig("a"), Member{Inc: newInc(), GRPCAddr: "127.0.0.1:1"}, nil, func(Evidence) {}, nil, quiet(), NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	<-g.Ready()
	conn, err := net.Dial("tcp", g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
