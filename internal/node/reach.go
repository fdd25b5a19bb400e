package node

import (
	"sync"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
)

// reach joins what streams and gossip know about a peer into evidence. A live stream
// outweighs gossip, since a frame came within its silence limit; without a stream
// gossip's suspicion counts.
type reach struct {
	tell func(ownership.Input)

	mu    sync.Mutex
	peers map[ownership.Incarnation]links
}

// links are the two ways to a peer.
type links struct {
	stream  ownership.Reach
	suspect bool
	told    ownership.Reach
}

func newReach(tell func(ownership.Input)) *reach {
	return &reach{tell: tell, peers: make(map[ownership.Incarnation]links)}
}

func (l links) verdict() ownership.Reach {
	if l.stream == ownership.ReachUnknown && l.suspect {
		return ownership.ReachDead
	}
	return l.stream
}

// stream implements forward.Evidence.
func (r *reach) stream(peer forward.Peer, up bool) {
	r.change(ownership.Incarnation(peer), func(l *links) {
		if l.stream = ownership.ReachDead; up {
			l.stream = ownership.ReachAlive
		}
	})
}

// gossip takes what membership says.
func (r *reach) gossip(e membership.Evidence) {
	r.change(e.Member.Inc, func(l *links) { l.suspect = e.Kind != membership.Alive })
}

func (r *reach) change(inc ownership.Incarnation, change func(*links)) {
	r.mu.Lock()
	l := r.peers[inc]
	change(&l)
	verdict := l.verdict()
	changed := verdict != l.told
	l.told = verdict
	r.peers[inc] = l
	r.mu.Unlock()
	if changed {
		r.tell(ownership.Evidence{Inc: inc, Reach: verdict})
	}
}

// forget begins anew, with a new machine that has been told nothing.
func (r *reach) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.peers)
}
