package node

import (
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
)

// directory is the incarnations that the control log names, living or not. It is never
// written to.
type directory map[ownership.Incarnation]ownership.Node

// census is equal for equal lists of nodes: nodes come at the end of the list, and go only
// when one comes or an epoch does.
type census struct {
	nodes        int
	last         ownership.Incarnation
	genesis, cur ownership.Position
}

// changed returns the incarnations that the control log names if they have changed since the last call; nil: they have not, or there are none yet.
func (c *census) changed(state *ownership.State) directory {
	if state == nil || len(state.Nodes) == 0 {
		return nil
	}
	seen := census{len(state.Nodes), state.Nodes[len(state.Nodes)-1].Inc, state.Genesis, state.Cur}
	if seen == *c {
		return nil
	}
	*c = seen
	named := make(directory, len(state.Nodes))
	for _, node := range state.Nodes {
		named[node.Inc] = node
	}
	return named
}

// setNamed receives the incarnations that the control log names. Addresses from gossip alone are never dialed.
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
