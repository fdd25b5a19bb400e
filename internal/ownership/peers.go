package ownership

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// peersMax bounds the incarnations that are followed; the oldest are dropped.
const peersMax = 1024

// peer is this node's knowledge of an incarnation, itself included.
type peer struct {
	came    clock.Instant // when its Hello or another first trace of it was read; zero: never
	heard   clock.Instant // when its newest Beat was read
	at      Position      // of its newest Beat
	beat    *Beat         // its newest; nil: none
	applied Position      // the newest position that one of its Beats says it has applied
	lists   []listing     // the peers that it reports as unreachable
	reach   Reach         // by our own transport
	asked   Position      // propose.go: of its lost proposal to leave; zero: none
	prefix  prefixDoubt   // prefix.go
}

// listing is an unbroken run of Beats that name inc as unreachable.
type listing struct {
	inc         Incarnation
	first, last clock.Instant // when they were read
}

// peer returns the entry of inc, and creates it if there is none.
func (m *Machine) peer(inc Incarnation) *peer {
	p := m.peers[inc]
	if p == nil {
		if len(m.peers) >= peersMax {
			m.forgetPeers()
		}
		p = &peer{}
		m.peers[inc] = p
	}
	return p
}

// forgetPeers drops the incarnations that the log has forgotten, or never knew, and that were not heard for a minute. If
// nearly all were, it drops the half that was not heard for longest. heardBase takes their place, so that no deadline gets earlier.
func (m *Machine) forgetPeers() {
	var unknown []Incarnation
	for inc := range m.peers { // sorted below
		known := inc == m.cfg.Inc
		if m.state != nil && !known {
			_, known = m.state.Node(inc)
		}
		if !known {
			unknown = append(unknown, inc)
		}
	}
	slices.SortFunc(unknown, func(a, b Incarnation) int {
		return cmp.Or(cmp.Compare(m.peers[a].heard, m.peers[b].heard), bytes.Compare(a[:], b[:]))
	})
	for i, inc := range unknown {
		p := m.peers[inc]
		if i >= len(unknown)/2 && !p.heard.Add(time.Minute).Before(m.now) {
			break
		}
		m.heardBase = max(m.heardBase, p.heard)
		delete(m.peers, inc)
	}
	m.forgetSilent()
}

// heard returns the instant at which the newest Beat of inc was read (rule 4).
func (m *Machine) heard(inc Incarnation) clock.Instant {
	if p := m.peers[inc]; p != nil {
		return max(p.heard, m.heardBase)
	}
	return m.heardBase
}

// forgetSilent drops from beating the nodes that were not heard for the longest lease. The log
// remembers hundreds of departed nodes: the checks of every Step cover only nodes that may be
// alive.
func (m *Machine) forgetSilent() {
	m.beating = slices.DeleteFunc(m.beating, func(inc Incarnation) bool {
		p := m.peers[inc]
		return p == nil || !m.now.Before(p.heard.Add(LeaseMax))
	})
}

// seenFresh reports whether n is FRESH, as this node sees it: its newest Beat was heard less than its lease ago. This node
// itself is FRESH while it has a lease.
func (m *Machine) seenFresh(n *Node) bool {
	if n.Inc == m.cfg.Inc {
		return m.isFresh()
	}
	p := m.peers[n.Inc]
	return p != nil && p.beat != nil && m.now.Before(p.heard.Add(n.Lease))
}

// note records the peers that the newest Beat of this peer names as unreachable, read at when.
func (p *peer) note(when clock.Instant, unreachable []Incarnation) {
	lists := make([]listing, 0, len(unreachable))
	for _, inc := range unreachable {
		l := listing{inc: inc, first: when, last: when}
		if i := p.listing(inc); i >= 0 {
			l.first = p.lists[i].first
		}
		lists = append(lists, l)
	}
	p.lists = lists
}

// listing returns the place of inc in lists, negative if it is not there.
func (p *peer) listing(inc Incarnation) int {
	return slices.IndexFunc(p.lists, func(l listing) bool { return l.inc == inc })
}
