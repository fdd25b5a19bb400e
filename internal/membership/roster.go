package membership

import (
	"maps"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// roster is what memberlist's callbacks have told, for Run's goroutine to look at.
//
// The callbacks come under memberlist's own locks, and some from its packet loop:
// each only changes an entry here and wakes the watcher. They copy what they are
// given, since memberlist goes on writing to it.
type roster struct {
	changed chan struct{} // cap 1

	mu    sync.Mutex
	nodes map[string]node // alive or suspect, by gossip name; this node included
}

// node is one gossip node.
type node struct {
	addr    string // ip:port
	meta    string
	suspect bool // it has not answered our newest probe
}

func newRoster() *roster {
	return &roster{changed: make(chan struct{}, 1), nodes: make(map[string]node)}
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
	r.change(func() { r.nodes[n.Name] = node{addr: addrOf(n), meta: string(n.Meta)} })
}

// NotifyUpdate implements memberlist.EventDelegate.
func (r *roster) NotifyUpdate(n *memberlist.Node) { r.NotifyJoin(n) }

// NotifyLeave implements memberlist.EventDelegate. It does not tell a leave from a death.
func (r *roster) NotifyLeave(n *memberlist.Node) {
	r.change(func() { delete(r.nodes, n.Name) })
}

// AckPayload implements memberlist.PingDelegate.
func (r *roster) AckPayload() []byte { return nil }

// NotifyPingComplete implements memberlist.PingDelegate: an answer ends a suspicion.
func (r *roster) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	r.setSuspect(n.Name, false)
}

// setSuspect says whether a node has answered our newest probe.
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
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func addrOf(n *memberlist.Node) string {
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}

// delegate gives memberlist what a member tells about itself: its metadata in every packet that introduces it,
// its settings, which may not fit into that, in each full exchange over TCP.
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
