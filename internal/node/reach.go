package node

import (
	"sync"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
)

// reach joins the knowledge of streams and gossip about a peer into evidence. A live stream
// outweighs gossip, since a frame came within its silence limit; without a stream gossip's
// suspicion counts.
//
// It keeps the present state and wakes the driver, which takes the changes: so the machine
// always hears the newest state last, from either source.
type reach struct {
	wake func() // does not block

	mu     sync.Mutex
	listed map[ownership.Incarnation]bool // the peers with a stream
	peers  map[ownership.Incarnation]links
}

// links are the two ways to a peer.
type links struct {
	stream  ownership.Reach
	suspect bool
	told    ownership.Reach
}

func newReach(wake func()) *reach {
	return &reach{wake: wake, listed: map[ownership.Incarnation]bool{}, peers: map[ownership.Incarnation]links{}}
}

func (l links) verdict() ownership.Reach {
	if l.stream == ownership.ReachUnknown && l.suspect {
		return ownership.ReachDead
	}
	return l.stream
}

// stream implements forward.Evidence.
func (r *reach) stream(peer forward.Peer, up bool) {
	inc := ownership.Incarnation(peer)
	r.change(inc, func(l *links) {
		switch {
		case !r.listed[inc]:
		case up:
			l.stream = ownership.ReachAlive
		default:
			l.stream = ownership.ReachDead
		}
	})
}

// gossip takes evidence from membership.
func (r *reach) gossip(e membership.Evidence) {
	r.change(e.Member.Inc, func(l *links) { l.suspect = e.Kind != membership.Alive })
}

func (r *reach) change(inc ownership.Incarnation, change func(*links)) {
	r.mu.Lock()
	l := r.peers[inc]
	change(&l)
	r.peers[inc] = l
	r.mu.Unlock()
	r.wake()
}

// list sets the peers with streams. Stream evidence about all other nodes is dropped: a member
// that was removed while it could not be reached would otherwise stay unreachable for good, and
// never join again.
func (r *reach) list(peers []forward.PeerAddress) {
	listed := make(map[ownership.Incarnation]bool, len(peers))
	for _, p := range peers {
		listed[ownership.Incarnation(p.Peer)] = true
	}
	r.mu.Lock()
	r.listed = listed
	for inc, l := range r.peers {
		if !listed[inc] {
			l.stream = ownership.ReachUnknown
			r.peers[inc] = l
		}
	}
	r.mu.Unlock()
	r.wake()
}

// begin forgets the suspicions of an earlier incarnation's gossip. The next gossip reports again which peers do not
// answer. But it may report that a peer is alive before the control log has named that peer, when it is not trusted
// yet: nothing would then end an old suspicion.
func (r *reach) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for inc, l := range r.peers {
		l.suspect = false
		r.peers[inc] = l
	}
}

// keep forgets incarnations that the control log no longer names, or, without one, those that gossip has lost.
func (r *reach) keep(named directory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for inc := range r.peers {
		if _, ok := named[inc]; !ok && !r.listed[inc] {
			delete(r.peers, inc)
		}
	}
}

// changes returns the changes for the machine. Nodes without any evidence are dropped, so that
// many restarts during a long run do not fill the memory.
func (r *reach) changes() []ownership.Input {
	r.mu.Lock()
	defer r.mu.Unlock()
	var news []ownership.Input
	for inc, l := range r.peers { // each is about another peer: their order does not matter
		if verdict := l.verdict(); verdict != l.told {
			l.told = verdict
			r.peers[inc] = l
			news = append(news, ownership.Evidence{Inc: inc, Reach: verdict})
		}
		if l == (links{}) && !r.listed[inc] {
			delete(r.peers, inc)
		}
	}
	return news
}

// retell makes the whole state count as changed, for a new machine, which has heard nothing yet.
func (r *reach) retell() {
	r.mu.Lock()
	for inc, l := range r.peers {
		l.told = ownership.ReachUnknown
		r.peers[inc] = l
	}
	r.mu.Unlock()
	r.wake()
}
