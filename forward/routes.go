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
	queuedN int   // events in queue
	callsN  int   // calls among these
	sentN   int   // events that the peer has and has not answered

	ownerNumber uint16 // index in owners.lanes, 0 when the route gives it no partition
}

// owners is the route in another form: the lane of each partition's owner. It is small, so that the look-up for each
// event hits the cache, and needs neither the route nor a search for the lane.
type owners struct {
	lanes       []*lane // by number; 0 is Table.nobody
	byPartition [ring.Partitions]uint16
}

// of returns the lane of the owner of p, or Table.nobody.
func (o *owners) of(p ring.Partition) *lane { return o.lanes[o.byPartition[p]] }

// ownerOf returns the lane of an event's owner, or Table.nobody.
func (t *Table) ownerOf(h held) *lane { return t.owners.of(h.entry.Partition(h.index)) }

// lane returns the lane of peer, and makes it when peer is new.
func (t *Table) lane(now clock.Instant, peer Peer) *lane {
	if l := t.find(peer); l != nil {
		return l
	}
	l := &lane{peer: peer, since: now}
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

// markOwners rebuilds owners from a route, in which self is this node. It creates the lanes of new owners, whose
// time without a stream begins now.
func (t *Table) markOwners(now clock.Instant, self Peer, route Route) {
	for _, l := range t.owners.lanes {
		l.ownerNumber = 0
	}
	t.owners.lanes = []*lane{t.nobody}
	for p := range t.owners.byPartition {
		l := t.nobody
		if owner, ok := route.Locate(ring.Partition(p)); ok {
			if owner == self {
				owner = Local
			}
			l = t.lane(now, owner)
		}
		if l.ownerNumber == 0 && l != t.nobody {
			l.ownerNumber = uint16(len(t.owners.lanes))
			t.owners.lanes = append(t.owners.lanes, l)
		}
		t.owners.byPartition[p] = l.ownerNumber
	}
}

// prune removes lanes that are down, own nothing and hold no events.
func (t *Table) prune() {
	t.lanes = slices.DeleteFunc(t.lanes, func(l *lane) bool { return !l.up && l.ownerNumber == 0 && l.queuedN+l.sentN == 0 })
}

// relayAt returns when the events of l go by a third member, and its calls end as unreachable: UnreachableHoldMax after l
// went down. It is [clock.Forever] while l is up, has a third member or has nothing queued, and while there is neither a third
// member nor a call that waits.
func (t *Table) relayAt(l *lane) clock.Instant {
	if l.up || l.via != nil || l.queuedN == 0 || l.callsN == 0 && t.third(l) == nil {
		return clock.Forever
	}
	return l.since.Add(t.config.UnreachableHoldMax)
}

// third returns a peer that might reach l when this node cannot, nil if no other peer is up. They take turns.
func (t *Table) third(l *lane) *lane {
	for i := range t.lanes {
		if other := t.lanes[(t.viaNext+i)%len(t.lanes)]; other != l && other.up {
			return other
		}
	}
	return nil
}
