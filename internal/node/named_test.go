package node

import (
	"testing"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
)

// The names in the control log are published when they change, and not otherwise.
func TestNamingPublishesChanges(t *testing.T) {
	a, b := ownership.Incarnation{1}, ownership.Incarnation{2}
	var state *ownership.State
	var published []directory
	var seen census
	step := func(want int) {
		t.Helper()
		if named := seen.changed(state); named != nil {
			published = append(published, named)
		}
		if len(published) != want {
			t.Fatalf("%d lists are published, want %d", len(published), want)
		}
	}
	step(0)
	state = &ownership.State{}
	step(0)
	state.Nodes = []ownership.Node{{Inc: a, GRPCAddr: "10.0.0.1:1"}}
	step(1)
	step(1)
	state.Nodes = append(state.Nodes, ownership.Node{Inc: b, GRPCAddr: "10.0.0.2:1"})
	step(2)
	state.Nodes, state.Cur = state.Nodes[1:], ownership.Position{Ledger: 1}
	step(3)
	if _, has := published[1][a]; !has || len(published[1]) != 2 {
		t.Errorf("the second list is %v", published[1])
	}
	if _, has := published[2][a]; has || published[2][b].GRPCAddr != "10.0.0.2:1" {
		t.Errorf("the third list is %v", published[2])
	}
}

// Gossip about incarnations that the control log does not name is no evidence, and leaves
// nothing behind; with ownership.mode gossip there is nothing better.
func TestStrangersAreNoEvidence(t *testing.T) {
	named, stranger := ownership.Incarnation{1}, ownership.Incarnation{2}
	for mode, want := range map[Mode]int{Strict: 1, Gossip: 2} {
		l := &incarnation{node: &Node{cfg: Config{Mode: mode}, reach: newReach(func() {})}}
		l.named.Store(&directory{named: {Inc: named}})
		for _, inc := range []ownership.Incarnation{named, stranger} {
			l.hear(membership.Evidence{Kind: membership.Suspect, Member: membership.Member{Inc: inc}})
		}
		if got := len(l.node.reach.changes()); got != want {
			t.Errorf("mode %v: the machine gets %d, want %d", mode, got, want)
		}
		if got := len(l.others.members()); got != want {
			t.Errorf("mode %v: %d are believed to be there, want %d", mode, got, want)
		}
	}
	l := &incarnation{node: &Node{reach: newReach(func() {})}}
	l.named.Store(&directory{named: {Inc: named, Name: "a"}})
	if l.trusts(membership.Member{Inc: named, Name: "b"}) || !l.trusts(membership.Member{Inc: named, Name: "a"}) {
		t.Error("an incarnation is not trusted under its name alone")
	}
	l = &incarnation{node: &Node{reach: newReach(func() {})}}
	if l.trusts(membership.Member{Inc: named}) {
		t.Error("a member is trusted before the log was read")
	}
}

// The reach of incarnations that are no longer named is forgotten, but not that of peers.
func TestReachForgets(t *testing.T) {
	named, peer, gone := ownership.Incarnation{1}, ownership.Incarnation{2}, ownership.Incarnation{3}
	r := newReach(func() {})
	r.list([]forward.PeerAddress{{Peer: forward.Peer(peer)}})
	for _, inc := range []ownership.Incarnation{named, peer, gone} {
		r.gossip(membership.Evidence{Kind: membership.Dead, Member: membership.Member{Inc: inc}})
	}
	r.keep(directory{named: {}})
	if _, has := r.peers[gone]; has || len(r.peers) != 2 {
		t.Errorf("it keeps %v", r.peers)
	}
}

// With ownership.mode gossip no log names the members: those that are gone are forgotten, however many come and go.
func TestReachForgetsWithGossipAlone(t *testing.T) {
	l := &incarnation{node: &Node{cfg: Config{Mode: Gossip}, reach: newReach(func() {})}}
	here, listed := ownership.Incarnation{1}, ownership.Incarnation{2}
	l.node.reach.list([]forward.PeerAddress{{Peer: forward.Peer(listed)}})
	l.hear(membership.Evidence{Kind: membership.Suspect, Member: membership.Member{Inc: here}})
	l.hear(membership.Evidence{Kind: membership.Alive, Member: membership.Member{Inc: listed}})
	l.hear(membership.Evidence{Kind: membership.Dead, Member: membership.Member{Inc: listed}})
	for i := range 100 {
		m := membership.Member{Inc: ownership.Incarnation{3, byte(i)}}
		l.hear(membership.Evidence{Kind: membership.Alive, Member: m})
		l.news()
		l.hear(membership.Evidence{Kind: membership.Dead, Member: m})
		l.news()
	}
	if got := len(l.node.reach.peers); got != 2 {
		t.Errorf("it keeps %d, want the one that is there and the one that is listed", got)
	}
}
