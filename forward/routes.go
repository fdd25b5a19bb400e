package forward

import (
	"encoding/hex"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Peer is one incarnation of a member, as the control log names it.
type Peer [16]byte

// String returns the first four bytes in hex, enough for people.
func (p Peer) String() string { return hex.EncodeToString(p[:4]) }

// MarshalText makes logs show the peer as String does.
func (p Peer) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Local is this node's own mailbox, independent of its incarnation.
var Local Peer

// Route maps partitions to owners, as of one epoch. It is immutable.
type Route interface {
	// Locate returns the owner of p, or false when there is none.
	Locate(p ring.Partition) (owner Peer, ok bool)
	// Epoch is the position of the table's epoch.
	Epoch() event.Position
}

// lane is a peer, with the events that wait for it and those that it has.
type lane struct {
	peer    Peer
	up      bool
	calls   bool          // while it is up: the peer takes calls
	since   clock.Instant // when it came up, went down, or was first named
	queue   queue
	via     *lane // while it is down: the third member by which its queued events go; nil: none yet
	place   Place // of the events in queue: Queued, or Refused for those without an owner that takes them
	queuedN int   // events in queue
	callsN  int   // calls among these
	sentN   int   // events that the peer has and has not answered

	ownerNumber uint16 // index in owners.lanes, 0 when the route gives it no partition
}

func newLane(peer Peer, now clock.Instant) *lane { return &lane{peer: peer, since: now} }

// owners is the route in another form: the lane of each partition's owner. It is small, so that the look-up for each
// event hits the cache, and needs neither the route nor a search for the lane.
type owners struct {
	lanes       []*lane // by number; 0 is Table.nobody
	byPartition [ring.Partitions]uint16
}

// of returns the lane of the owner of p, or Table.nobody.
func (o *owners) of(p ring.Partition) *lane { return o.lanes[o.byPartition[p]] }

// lane returns the lane of peer, and makes it when peer is new.
func (t *Table) lane(now clock.Instant, peer Peer) *lane {
	if l := t.find(peer); l != nil {
		return l
	}
	l := newLane(peer, now)
	t.lanes = append(t.lanes, l)
	return l
}

// find returns the lane of peer, nil when there is none. Groups are small: looking
// through a few lanes is as fast as a map, and has an order.
func (t *Table) find(peer Peer) *lane {
	if peer == Local {
		return t.local
	}
	for _, l := range t.lanes {
		if l.peer == peer {
			return l
		}
	}
	return nil
}

// markOwners rebuilds owners from the route. It creates the lanes of new owners, whose
// time without a stream begins now.
func (t *Table) markOwners(now clock.Instant) {
	for _, l := range t.owners.lanes {
		l.ownerNumber = 0
	}
	clear(t.owners.lanes)
	t.owners.lanes = append(t.owners.lanes[:0], t.nobody)
	for p := range t.owners.byPartition {
		t.owners.byPartition[p] = 0
		if owner, ok := t.route.Locate(ring.Partition(p)); ok {
			t.owners.byPartition[p] = t.markOwner(now, owner)
		}
	}
}

// markOwner returns the number of an owner's lane in owners, and adds it if it has none.
func (t *Table) markOwner(now clock.Instant, owner Peer) (number uint16) {
	if owner == t.self {
		owner = Local
	}
	l := t.lane(now, owner)
	if l.ownerNumber == 0 {
		l.ownerNumber = uint16(len(t.owners.lanes))
		t.owners.lanes = append(t.owners.lanes, l)
	}
	return l.ownerNumber
}

// prune removes lanes that are down, own nothing and hold no events.
func (t *Table) prune() {
	t.lanes = slices.DeleteFunc(t.lanes, func(l *lane) bool { return !l.up && l.ownerNumber == 0 && l.queuedN+l.sentN == 0 })
}
