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

// retell tells a new machine, which knows nothing yet, what is known.
func (r *reach) retell() {
	r.mu.Lock()
	known := make([]ownership.Evidence, 0, len(r.peers))
	for inc, l := range r.peers {
		if l.told != ownership.ReachUnknown {
			known = append(known, ownership.Evidence{Inc: inc, Reach: l.told})
		}
	}
	r.mu.Unlock()
	for _, e := range known {
		r.tell(e)
	}
}

// keep forgets peers that no table names and no stream reaches any more, so that a
// long life with many restarts around it does not fill the memory.
func (r *reach) keep(named func(ownership.Incarnation) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for inc, l := range r.peers {
		if l.stream != ownership.ReachAlive && !named(inc) {
			delete(r.peers, inc)
		}
	}
}
