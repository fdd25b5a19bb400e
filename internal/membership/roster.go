package membership

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/ownership"
)

// roster collects the calls of memberlist's callbacks for Run's goroutine.
//
// The callbacks come under memberlist's own locks, and some from its packet loop: each only
// changes an entry here and wakes the watcher. They copy their arguments, since memberlist
// keeps writing to them.
type roster struct {
	changed chan struct{} // cap 1

	self         string // gossip name
	strangersMax int
	refuse       func(why refusal, name string)

	mu    sync.Mutex
	nodes map[string]node // alive or suspect, by gossip name; this node included

	named     map[ownership.Incarnation]Named  // those that the control log names
	names     map[string]ownership.Incarnation // of these, by gossip name
	strangers int                              // nodes that are not named
	gone      []goneStranger                   // strangers that left or died, which memberlist still keeps
}

// node is one gossip node.
type node struct {
	addr     string // ip:port
	meta     string
	suspect  bool // it has not answered our newest probe
	stranger bool // the control log does not name it
}

// goneStranger counts until memberlist has forgotten it for sure.
type goneStranger struct {
	name  string
	until clock.Instant
}

// goneFor is longer than memberlist keeps the dead, which is until it has gone through
// all its nodes, half a minute after their end.
const goneFor = 5 * time.Minute

func newRoster(self string, strangersMax int, refuse func(why refusal, name string)) *roster {
	return &roster{
		changed: make(chan struct{}, 1), self: self, strangersMax: strangersMax, refuse: refuse,
		nodes: make(map[string]node),
	}
}

// setNamed sets the incarnations that the control log names.
func (r *roster) setNamed(named map[ownership.Incarnation]Named) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.named, r.names, r.strangers = named, make(map[string]ownership.Incarnation, len(named)), 0
	for inc, n := range named {
		r.names[n.gossipName(inc)] = inc
	}
	for name, n := range r.nodes {
		n.stranger = r.isStranger(name, n.meta)
		r.nodes[name] = n
		if n.stranger {
			r.strangers++
		}
	}
}

// isStranger reports whether the control log names no node with this gossip name. The incarnation in its metadata does not suffice:
// anybody can copy it, under any number of names.
func (r *roster) isStranger(name, meta string) bool {
	inc := incarnation(meta)
	known, named := r.named[inc]
	return name != r.self && (!named || name != known.gossipName(inc))
}

// NotifyAlive implements memberlist.AliveDelegate: it decides which nodes memberlist gets to know.
func (r *roster) NotifyAlive(n *memberlist.Node) error {
	if n.Name == r.self {
		return nil
	}
	r.mu.Lock()
	why := r.judge(n, clock.Now())
	r.mu.Unlock()
	if why == "" {
		return nil
	}
	r.refuse(why, n.Name)
	return why
}

// judge returns the reason for refusing a node, "" if there is none. Nodes that the control log
// names come first: they have a place however many strangers there are.
func (r *roster) judge(n *memberlist.Node, now clock.Instant) refusal {
	name, inc, ok := strings.Cut(n.Name, "/")
	addr, known := netip.AddrFromSlice(n.Addr)
	addr = addr.Unmap()
	switch {
	case !ok || len(inc) != len(shortInc(ownership.Incarnation{})) || untrusted.Name(name) != nil || untrusted.Name(inc) != nil || len(n.Meta) > memberlist.MetaMaxSize:
		return refusedName
	case !known || untrusted.Address(netip.AddrPortFrom(addr, n.Port).String()) != nil:
		return refusedAddress
	}
	id := incarnation(string(n.Meta))
	if of, ok := r.names[n.Name]; ok && of != id {
		return refusedName // otherwise memberlist would refuse the member that owns the name
	}
	if known, ok := r.named[id]; ok {
		if n.Name != known.gossipName(id) {
			return refusedName
		}
		if _, err := netip.ParseAddrPort(known.GossipAddr); err == nil && known.GossipAddr != addrOf(n) {
			return refusedAddress
		}
		return ""
	}
	if _, ok := r.nodes[n.Name]; ok {
		return ""
	}
	r.gone = slices.DeleteFunc(r.gone, func(g goneStranger) bool { return g.until.Before(now) })
	if r.strangers >= r.strangersMax || r.strangers+len(r.gone) >= 2*r.strangersMax {
		return refusedMembers
	}
	return ""
}

// snapshot returns a copy of the nodes.
func (r *roster) snapshot() map[string]node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.nodes)
}

func (r *roster) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.nodes)
}

// NotifyJoin implements memberlist.EventDelegate.
func (r *roster) NotifyJoin(n *memberlist.Node) {
	r.change(func() {
		if r.nodes[n.Name].stranger {
			r.strangers--
		}
		meta := string(n.Meta)
		stranger := r.isStranger(n.Name, meta)
		if stranger {
			r.strangers++
		}
		r.nodes[n.Name] = node{addr: addrOf(n), meta: meta, stranger: stranger}
		r.gone = slices.DeleteFunc(r.gone, func(g goneStranger) bool { return g.name == n.Name })
	})
}

// NotifyUpdate implements memberlist.EventDelegate.
func (r *roster) NotifyUpdate(n *memberlist.Node) { r.NotifyJoin(n) }

// NotifyLeave implements memberlist.EventDelegate. It does not tell a leave from a death.
func (r *roster) NotifyLeave(n *memberlist.Node) {
	r.change(func() {
		if r.nodes[n.Name].stranger {
			r.strangers--
			r.gone = append(r.gone, goneStranger{n.Name, clock.Now().Add(goneFor)})
		}
		delete(r.nodes, n.Name)
	})
}

// AckPayload implements memberlist.PingDelegate.
func (r *roster) AckPayload() []byte { return nil }

// NotifyPingComplete implements memberlist.PingDelegate: an answer ends a suspicion.
func (r *roster) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	r.setSuspect(n.Name, false)
}

// setSuspect records whether a node failed to answer our newest probe.
func (r *roster) setSuspect(name string, suspect bool) {
	r.change(func() {
		if n, ok := r.nodes[name]; ok {
			n.suspect = suspect
			r.nodes[name] = n
		}
	})
}

func (r *roster) change(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	signal.Set(r.changed)
}

func addrOf(n *memberlist.Node) string {
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}

// delegate gives memberlist this member's data: its metadata in every packet that introduces
// it, and its settings, which may not fit there, in each full exchange over TCP.
type delegate struct {
	meta     []byte
	settings []byte
	merge    func([]byte)
}

func (d delegate) NodeMeta(int) []byte                 { return d.meta }
func (delegate) NotifyMsg([]byte)                      {}
func (delegate) GetBroadcasts(int, int) [][]byte       { return nil }
func (d delegate) LocalState(bool) []byte              { return d.settings }
func (d delegate) MergeRemoteState(buf []byte, _ bool) { d.merge(buf) }
