package mailbox

import (
	"cmp"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/invariant"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// part is the state of one partition.
type part struct {
	number   ring.Partition
	gate     ownership.Gate
	token    ownership.Token
	running  int                     // deliveries of any tenure that are not over
	changes  uint32                  // how often a turn of a key may have passed by the worker that the key sticks to; part of event.Delivery.Generation
	withheld []ring.KeyHash          // keys that may not run although the gate is open
	awaited  []ownership.ReservedKey // the same, but for the holder of a covered reservation
	actors   *actor                  // all active keys of the partition, linked by inPart

	// Window records with lower serials belong to the next owner, unless the partition is
	// ours. Later records do not: the next owner may hand its own ids over before our table
	// names it, and it may be this node.
	leaves uint64
}

// ours reports whether this node accepts events of the partition, even if an earlier
// tenure may still run.
func (p *part) ours() bool { return p.gate == ownership.Open || p.gate == ownership.Waiting }

// mayRun reports whether the gate allows the key to run.
func (a *actor) mayRun() bool {
	_, awaited := a.part.holderOf(a.id)
	return a.part.gate == ownership.Open && !awaited && !a.part.withholds(a.id)
}

// holderOf returns the id that may resume the reservation that a key waits for, zero if none may.
func (p *part) holderOf(id ring.KeyHash) (holder ownership.ReservationID, found bool) {
	i, found := slices.BinarySearchFunc(p.awaited, id, func(r ownership.ReservedKey, id ring.KeyHash) int { return cmp.Compare(r.Key, id) })
	if !found {
		return holder, false
	}
	return p.awaited[i].ID, true
}

func (p *part) withholds(id ring.KeyHash) bool {
	_, found := slices.BinarySearch(p.withheld, id)
	return found
}

func (p *part) addActor(a *actor) {
	a.part = p
	a.inPart = neighbors{next: p.actors}
	if p.actors != nil {
		p.actors.inPart.prev = a
	}
	p.actors = a
}

func (p *part) removeActor(a *actor) {
	if a.inPart.prev == nil {
		p.actors = a.inPart.next
	} else {
		a.inPart.prev.inPart.next = a.inPart.next
	}
	if a.inPart.next != nil {
		a.inPart.next.inPart.prev = a.inPart.prev
	}
	a.inPart = neighbors{}
}

// SetGates moves gates, those of partitions of this shard; epoch is the newest applied
// one. Waiting events of a partition that has moved away are answered NotOwner; running
// events continue. No delivery under an old gate begins after the call.
func (b *Boxes) SetGates(now clock.Instant, changes []ownership.GateChange, epoch event.Position, out *Output) {
	if b.epoch.Before(epoch) {
		b.epoch, b.notOwner = epoch, &event.Detail{Epoch: epoch}
	}
	for _, c := range changes {
		if int(c.Partition)%b.shards == b.shard {
			b.setGate(now, c, out)
		}
	}
}

func (b *Boxes) setGate(now clock.Instant, c ownership.GateChange, out *Output) {
	p := b.part(c.Partition)
	opens := c.Gate == ownership.Open && p.gate != ownership.Open
	// If this were violated, a key that runs would still not run twice here: it is in no queue until its delivery ends.
	invariant.Check(!opens || p.running == 0, "mailbox: a gate opens only when nothing of an earlier tenure runs")
	if c.Token != p.token {
		b.keepFences(p)
	}
	if opens {
		p.changes++
	}
	p.gate, p.token, p.withheld, p.awaited = c.Gate, c.Token, c.Withheld, c.Reserved
	for a := p.actors; a != nil; {
		next := a.inPart.next
		b.dequeueWaiting(a)
		if !p.ours() {
			b.refuseWaiting(now, a, out)
			b.endVisits(a, event.NotOwner, b.notOwner, out, func(*item, *event.Call) bool { return true })
			delete(b.owed.keys, a) // its events were answered, and senders with further ones retry without a credit
		}
		b.endResumes(a, out)
		b.refile(now, a, out)
		a = next
	}
	b.repayAll(out)
	if !p.ours() {
		p.leaves = b.window.end
		b.window.beginSweep(now)
	}
}

// refuseWaiting sends the waiting events of a key to their next owner.
func (b *Boxes) refuseWaiting(now clock.Instant, a *actor, out *Output) {
	waiting := a.itemQueue
	a.itemQueue, a.heldUntil = itemQueue{}, 0
	for it := range waiting.all {
		b.counters.Moved++
		b.recordEnd(now, it, history.Moved)
		b.settle(it, event.NotOwner, b.notOwner, out)
	}
}

// Running returns the number of running deliveries on p, of any tenure.
func (b *Boxes) Running(p ring.Partition) int { return b.part(p).running }

// Busy returns the keys on p with a running delivery of any tenure, ascending.
func (b *Boxes) Busy(p ring.Partition) []ring.KeyHash {
	part := b.part(p)
	if part.running == 0 {
		return nil
	}
	keys := make([]ring.KeyHash, 0, part.running)
	for a := part.actors; a != nil; a = a.inPart.next {
		if a.running != nil {
			keys = append(keys, a.id)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
