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

// naming is a machine that publishes whom the control log names, each time that this
// changes. What gossip says about others is nothing to dial by.
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

// setNamed is told whom the control log names.
func (l *incarnation) setNamed(named directory) {
	l.named.Store(&named)
	addresses := make(map[ownership.Incarnation]string, len(named))
	for inc, node := range named {
		addresses[inc] = node.GossipAddr
	}
	l.gossip.SetNamed(addresses)
	l.node.reach.keep(named)
}

// nameOf returns what the control log says about an incarnation, and false if that is nothing.
func (l *incarnation) nameOf(inc ownership.Incarnation) (ownership.Node, bool) {
	if named := l.named.Load(); named != nil {
		node, ok := (*named)[inc]
		return node, ok
	}
	return ownership.Node{}, false
}

// trusts reports whether what gossip says about a member counts: with Mode Strict only if
// the control log names the member, since anybody may invent others.
func (l *incarnation) trusts(m membership.Member) bool {
	if l.node.cfg.Mode == Gossip {
		return true
	}
	_, named := l.nameOf(m.Inc)
	return named
}
