package node

import (
	"slices"
	"sync"

	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
)

// goneMax bounds the remembered members that gossip has lost. They are contacted again: after a
// network partition that outlasts gossip's memory of the dead, two halves would otherwise never
// merge.
const goneMax = 64

// gossipView is the member list as gossip reports it, for ownership.mode gossip. Its
// methods are safe for concurrent use.
type gossipView struct {
	mu   sync.Mutex
	here []membership.Member // alive or suspect, in the order of arrival
	gone []membership.Known  // the newest goneMax
}

// heard applies a report of gossip. It does not block.
func (h *gossipView) heard(e membership.Evidence) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.here, func(m membership.Member) bool { return m.Inc == e.Member.Inc })
	switch {
	case e.Kind != membership.Dead && i < 0:
		h.here = append(h.here, e.Member)
		h.gone = slices.DeleteFunc(h.gone, func(k membership.Known) bool { return k.Inc == e.Member.Inc })
	case e.Kind == membership.Dead && i >= 0:
		h.here = slices.Delete(h.here, i, i+1)
		h.gone = append(h.gone, membership.Known{Inc: e.Member.Inc, GossipAddr: e.Member.GossipAddr})
		h.gone = h.gone[max(0, len(h.gone)-goneMax):]
	}
}

// members returns the present members, in the order of arrival.
func (h *gossipView) members() []membership.Member {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.here)
}

// directory returns the present members by incarnation.
func (h *gossipView) directory() directory {
	h.mu.Lock()
	defer h.mu.Unlock()
	present := make(directory, len(h.here))
	for _, m := range h.here {
		present[m.Inc] = ownership.Node{Name: m.Name, Inc: m.Inc}
	}
	return present
}

// lost returns the departed members.
func (h *gossipView) lost() []membership.Known {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.gone)
}
