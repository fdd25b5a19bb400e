package membership

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/eventually"
)

// nodeOf is an incarnation as memberlist knows it.
func nodeOf(t *testing.T, name string, inc ownership.Incarnation, port uint16) *memberlist.Node {
	t.Helper()
	m := Member{Name: name, Inc: inc, GRPCAddr: "10.0.0.7:16651"}
	meta, err := encodeMeta(m)
	if err != nil {
		t.Fatal(err)
	}
	return &memberlist.Node{Name: gossipName(m), Addr: []byte{10, 0, 0, 7}, Port: port, Meta: meta}
}

// Places for strangers are counted right whatever becomes of them: they change, leave, come again, get a name in the control log, and lose it.
func TestPlacesForStrangers(t *testing.T) {
	r := newRoster("self/0011223344556677", 2, func(refusal, string) {})
	node := func(i int) *memberlist.Node {
		inc := ownership.Incarnation{byte(i)}
		return nodeOf(t, fmt.Sprint("pod-", i), inc, uint16(i))
	}
	now := clock.Now()
	check := func(when string, i int, want refusal) {
		t.Helper()
		if why := r.judge(node(i), now); why != want {
			t.Errorf("%s: %q, want %q", when, why, want)
		}
	}
	r.NotifyJoin(&memberlist.Node{Name: r.self}) // has a place of its own
	check("none", 1, "")
	r.NotifyJoin(node(1))
	for range 3 {
		r.NotifyUpdate(node(1))
	}
	check("one", 2, "")
	r.NotifyJoin(node(2))
	check("two", 3, refusedMembers)
	check("two, of which it is one", 2, "")

	r.setNamed(map[ownership.Incarnation]Named{{1}: {Name: "pod-1", GossipAddr: "10.0.0.7:1"}})
	check("one, and one with a name", 3, "")
	r.NotifyLeave(node(1))
	r.NotifyJoin(node(3))
	check("two, after one with a name has left", 4, refusedMembers)
	r.NotifyLeave(node(3))
	r.NotifyJoin(node(1))
	check("the same after it came again", 3, "")
	r.setNamed(nil)
	check("two, since a name was taken away", 3, refusedMembers)
	r.setNamed(map[ownership.Incarnation]Named{{3}: {Name: "pod-3", GossipAddr: "10.0.0.7:3"}})
	check("two, but it has a name", 3, "")
	r.setNamed(map[ownership.Incarnation]Named{{1}: {Name: "other", GossipAddr: "10.0.0.7:1"}})
	check("two, of which one has copied the incarnation of another", 3, refusedMembers)
	r.setNamed(nil)

	end := func(i int) {
		r.NotifyJoin(node(i))
		r.NotifyLeave(node(i))
	}
	end(3)
	for range 3 {
		end(2)
	}
	check("one, and two that memberlist still keeps", 5, "")
	end(4)
	check("one, and three that memberlist still keeps", 5, refusedMembers)
	now = now.Add(2 * goneFor)
	check("one, and nobody keeps the others", 5, "")
}

// The name under which a member is suspected may be gone.
func TestSuspicionOfNobody(t *testing.T) {
	r := newRoster("self/0011223344556677", 2, func(refusal, string) {})
	r.setSuspect("pod-1/0100000000000000", true)
	if r.len() != 0 {
		t.Errorf("%v are known", r.snapshot())
	}
}

// Each change is reported once, and nothing of a node that cannot be understood or of this one.
func TestChangesAreReportedOnce(t *testing.T) {
	metrics := NewMetrics(prometheus.NewRegistry())
	var heard []string
	report := func(e Evidence) { heard = append(heard, e.Kind.String()+" "+e.Member.Name) }
	g, err := New(testConfig("self"), Member{Inc: ownership.Incarnation{9}, GRPCAddr: "10.0.0.7:1"}, nil, report, nil, slog.New(slog.DiscardHandler), metrics)
	if err != nil {
		t.Fatal(err)
	}
	w := watcher{gossip: g, reported: make(map[string]reported)}
	check := func(members int, known []string, want ...string) {
		t.Helper()
		heard = nil
		for range 2 {
			w.look()
		}
		var names []string
		for _, m := range g.Members() {
			names = append(names, m.Name)
		}
		if !slices.Equal(names, known) || testutil.ToFloat64(metrics.members) != float64(members) {
			t.Errorf("members %v, %v in the metric; want %v, %d", names, testutil.ToFloat64(metrics.members), known, members)
		}
		slices.Sort(heard)
		if !slices.Equal(heard, want) {
			t.Errorf("reported %v, want %v", heard, want)
		}
	}
	a, b, bad := nodeOf(t, "a", ownership.Incarnation{1}, 1), nodeOf(t, "b", ownership.Incarnation{2}, 2), nodeOf(t, "c", ownership.Incarnation{3}, 3)
	bad.Meta = bad.Meta[:5]
	for _, n := range []*memberlist.Node{nodeOf(t, "self", ownership.Incarnation{9}, 9), b, bad, a} {
		g.roster.NotifyJoin(n)
	}
	check(4, []string{"a", "b"}, "alive a", "alive b")
	for _, name := range []string{a.Name, bad.Name} {
		g.roster.setSuspect(name, true)
	}
	check(4, []string{"a", "b"}, "suspect a")
	g.roster.NotifyPingComplete(a, 0, nil)
	check(4, []string{"a", "b"}, "alive a")
	g.roster.NotifyLeave(bad)
	check(3, []string{"a", "b"})
	g.roster.NotifyLeave(a)
	check(2, []string{"b"}, "dead a")
	want := map[string]float64{"alive": 3, "suspect": 1, "dead": 1}
	for kind, n := range want {
		if got := testutil.ToFloat64(metrics.evidence.WithLabelValues(kind)); got != n {
			t.Errorf("%v times %s in the metric, want %v", got, kind, n)
		}
	}
	if n := testutil.ToFloat64(metrics.bad); n != 1 {
		t.Errorf("%v nodes count as not understood, want 1", n)
	}
}

// Only members that gossip lacks are contacted: neither this one, nor one without an address, nor one whose address another member has by now.
func TestWhoIsMissing(t *testing.T) {
	g, err := New(testConfig("self"), Member{Inc: ownership.Incarnation{9}, GRPCAddr: "10.0.0.7:1"}, nil, func(Evidence) {}, nil, slog.New(slog.DiscardHandler),
		NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	g.self.GossipAddr = "10.0.0.9:1"
	g.members.Store(&[]Member{{Inc: ownership.Incarnation{1}, GossipAddr: "10.0.0.1:1"}})
	known := []Known{
		{ownership.Incarnation{9}, "10.0.0.99:1"},
		{ownership.Incarnation{8}, "10.0.0.9:1"},
		{ownership.Incarnation{1}, "10.0.0.11:1"},
		{ownership.Incarnation{7}, "10.0.0.1:1"},
		{ownership.Incarnation{6}, ""},
		{ownership.Incarnation{5}, "10.0.0.5:1"},
		{ownership.Incarnation{4}, "10.0.0.5:1"},
		{ownership.Incarnation{3}, "10.0.0.3:1"},
	}
	g.SetKnown(known)
	known[5].GossipAddr = "10.0.0.66:1" // the caller's slice may change
	if got, want := g.missing(), []string{"10.0.0.3:1", "10.0.0.5:1"}; !slices.Equal(got, want) {
		t.Errorf("missing %v, want %v", got, want)
	}
}

// Known members are tried in turn: one that never answers hides no other, however few are tried at a time.
func TestDeadAddressHidesNoOther(t *testing.T) {
	t.Parallel()
	live := startNode(t, testConfig("live"))
	cfg := testConfig("a")
	cfg.RejoinsMax = 1
	a := startNode(t, cfg)
	const dead = "127.0.0.1:1" // the first in order
	a.gossip.SetKnown([]Known{{newInc(), dead}, {live.inc, live.gossip.Addr()}})
	eventually.True(t, "them to meet", func() bool { return allSeeAll([]*testNode{a, live}) })
}

// Few known members are tried in a round, and there may be fewer of them in the next one.
func TestRejoinsAreBounded(t *testing.T) {
	t.Parallel()
	cfg := testConfig("a")
	cfg.RejoinsMax = 1
	began := clock.Now()
	a := startNode(t, cfg)
	failed := func() float64 { return testutil.ToFloat64(a.gossip.metrics.joins.WithLabelValues("rejoin", "failed")) }
	var known []Known
	for i := range 40 {
		known = append(known, Known{newInc(), fmt.Sprintf("127.0.0.%d:1", 2+i)})
	}
	a.gossip.SetKnown(known)
	eventually.True(t, "three rounds", func() bool { return failed() >= 3 })
	if took := clock.Now().Sub(began); took < 3*cfg.RejoinInterval {
		t.Errorf("three addresses were tried within %v", took)
	}
	a.gossip.SetKnown(known[:1])
	before := failed()
	eventually.True(t, "another two rounds", func() bool { return failed() >= before+2 })
}
