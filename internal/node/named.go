package node

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/ownership/driver"
)

// directory is the incarnations that the control log names, living or not. It is never
// written to.
type directory map[ownership.Incarnation]ownership.Node

// naming is a machine that publishes the incarnations that the control log names, each time
// that they change. Addresses from gossip alone are never dialed.
type naming struct {
	driver.Machine

	state   func() *ownership.State
	publish func(directory) // does not block

	seen census
}

// census is equal for equal lists of nodes: nodes come at the end of the list, and go only
// when one comes or an epoch does.
type census struct {
	nodes        int
	last         ownership.Incarnation
	genesis, cur ownership.Position
}

// Step implements machine.
func (n *naming) Step(now clock.Instant, in ownership.Input) []ownership.Effect {
	effects := n.Machine.Step(now, in)
	state := n.state()
	if state == nil || len(state.Nodes) == 0 {
		return effects
	}
	seen := census{len(state.Nodes), state.Nodes[len(state.Nodes)-1].Inc, state.Genesis, state.Cur}
	if seen != n.seen {
		n.seen = seen
		named := make(directory, len(state.Nodes))
		for _, node := range state.Nodes {
			named[node.Inc] = node
		}
		n.publish(named)
	}
	return effects
}

// setNamed receives the incarnations that the control log names.
func (l *incarnation) setNamed(named directory) {
	l.named.Store(&named)
	known := make(map[ownership.Incarnation]membership.Named, len(named))
	for inc, node := range named {
		known[inc] = membership.Named{Name: node.Name, GossipAddr: node.GossipAddr}
	}
	l.gossip.SetNamed(known)
	l.node.reach.keep(named)
}

// entryOf returns the control log's entry of an incarnation, and false if there is none.
func (l *incarnation) entryOf(inc ownership.Incarnation) (ownership.Node, bool) {
	if named := l.named.Load(); named != nil {
		node, ok := (*named)[inc]
		return node, ok
	}
	return ownership.Node{}, false
}

// trusts reports whether gossip about a member counts: with Mode Strict only if the control log
// names the member, under this name: outsiders may invent others, and may copy an incarnation.
func (l *incarnation) trusts(m membership.Member) bool {
	if l.node.cfg.Mode == Gossip {
		return true
	}
	node, named := l.entryOf(m.Inc)
	return named && node.Name == m.Name
}
