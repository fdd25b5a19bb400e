package pipeline

import (
	"slices"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// SetGates changes gates. When it returns, no delivery under an old gate begins,
// and events that waited behind a closed one are on their way back.
func (p *Pipeline) SetGates(changes []ownership.GateChange) {
	p.with(func(out *mailbox.Output) { p.Boxes.SetGates(changes, p.epoch(), out) })
}

// HoldKeys makes the events of keys wait until ReleaseKeys. When it returns, no delivery of them begins.
func (p *Pipeline) HoldKeys(keys []event.Key) {
	p.with(func(out *mailbox.Output) { p.Boxes.Hold(keys, out) })
}

// ReleaseKeys undoes HoldKeys.
func (p *Pipeline) ReleaseKeys(keys []event.Key) {
	p.with(func(out *mailbox.Output) { p.Boxes.Release(keys, out) })
}

// SkipEvents makes events end as dead letters until UnskipEvents: also those that run, once their handler has answered or its deadline has
// passed, unless the handler has done them. When it returns, no delivery of them begins.
func (p *Pipeline) SkipEvents(skips []event.Skip) {
	p.with(func(out *mailbox.Output) { p.Boxes.Skip(skips, out) })
}

// ParkKeys changes what becomes of the events of keys. When it returns, no delivery begins that it forbids.
func (p *Pipeline) ParkKeys(parks []event.Park) {
	p.with(func(out *mailbox.Output) { p.Boxes.Park(parks, out) })
}

// UnskipEvents ends skips.
func (p *Pipeline) UnskipEvents(skips []event.Skip) { p.Boxes.Unskip(skips) }

// HandoverPause is the pause before the next owners get more ids: a joining member gets ids from all
// other members, while it takes over its first events.
const HandoverPause = 16 * time.Millisecond

const (
	// handoverMax is the number of ids that are sent at once, if they may all be for one
	// member.
	handoverMax = 512

	// handoverFan is the factor by which there may be more ids if they are for many members.
	handoverFan = 8
)

// HandOver sends the next owners, according to the newest table, ids of events that finished on
// partitions that were ours: a part of them, those of the last seconds first, because the
// broker mostly redelivers these after a move. It reports whether it should be called again.
// The caller of SetGates and SetTable calls it, in pauses of HandoverPause: the window of a
// node is long, and all of it at once would delay the events of partitions that move.
func (p *Pipeline) HandOver() (more bool) { return p.handOver(handoverMax) }

// HandOverLate sends the next owners all ids of events that ended after their partition had
// moved. It must be called between Rest and the Beat that reports Rest's result: an owner that
// waits for the end of a delivery must know its result.
func (p *Pipeline) HandOverLate() { p.handOver(0) }

// handOver sends late ids, and a bounded number of others.
func (p *Pipeline) handOver(idsMax int) (more bool) {
	t, self := p.table.Load(), *p.self.Load()
	if t == nil || self != p.named {
		return false // before a table names this node, no owner could verify that the ids are its own, and would refuse them
	}
	if !t.IsMember(self) { // a leaving node may send many
		idsMax *= min(handoverFan, len(t.Members))
	}
	isElsewhere := func(q ring.Partition) bool { // at another node, and not at a former incarnation of this one
		owner := t.Members[t.Owners[q]].Inc
		return owner != self && !slices.Contains(p.formers, owner)
	}
	p.parting, more = p.Boxes.TakeHandover(idsMax, isElsewhere, p.parting[:0])
	for len(p.nextOwners) < len(t.Members) {
		p.nextOwners = append(p.nextOwners, nil)
	}
	for _, done := range p.parting {
		nextOwner := t.Owners[done.Partition]
		p.nextOwners[nextOwner] = append(p.nextOwners[nextOwner], done)
	}
	for i, n := range t.Members {
		if len(p.nextOwners[i]) > 0 {
			p.Holder.HandOver(forward.Peer(n.Inc), p.nextOwners[i])
			p.nextOwners[i] = p.nextOwners[i][:0]
		}
	}
	return more
}

// Revoke takes partitions back from the application; a final one takes everything.
func (p *Pipeline) Revoke(r ownership.Revoke) {
	if r.Final {
		p.App.RevokeAll()
		return
	}
	const final = false // later Pongs may list the partitions while they drain
	p.App.Revoke(r.Partitions, final)
}

// Force ends deliveries that run for too long on revoked partitions.
func (p *Pipeline) Force(f ownership.ForceDrain) { p.App.Force(f.Partitions) }

// Rest returns those of the partitions on which nothing runs, and the running keys of the others: only these keys
// must wait at the next owner.
func (p *Pipeline) Rest(partitions ownership.Set) (idle ownership.Set, busy []ownership.Busy) {
	var none []ring.Partition
	for q := range partitions.All() {
		if keys := p.Boxes.Busy(q); len(keys) > 0 {
			busy = append(busy, ownership.Busy{Partition: q, Keys: keys})
		} else {
			none = append(none, q)
		}
	}
	return ownership.SetOf(none...), busy
}

// SetLease publishes the lease. Revocations that belong to earlier records are already in the
// streams' queues; Pongs rely on that.
func (p *Pipeline) SetLease(l ownership.Lease) {
	lapsed := !p.lease.Load().MayDispatch(ownership.Open, p.now())
	p.with(func(out *mailbox.Output) { p.Boxes.SetLease(l, out) }) // before a delivery under it begins
	p.lease.Store(&l)
	if lapsed {
		p.App.WakeAll() // ready keys were waiting only for the lease
	}
}

// SetTable publishes the newest applied epoch. Its gates were set before.
func (p *Pipeline) SetTable(t *ownership.Table) {
	p.knowOwners(t) // before anybody can learn of it by way of us
	p.table.Store(t)
	p.journeys.Owned(p.now(), len(t.Tokens), func(q ring.Partition) (string, int64) { return t.Owner(q).Name, int64(t.Tokens[q]) })
	p.Peers.SetEpoch(t.Cur)
	p.Boxes.SetCovers(t.Covers())
	p.with(func(out *mailbox.Output) { p.Boxes.SetGates(nil, t.Cur, out) })
	p.Holder.SetRoute(forward.Peer(*p.self.Load()), route{t})
	if self := *p.self.Load(); t.IsMember(self) {
		p.named = self
	}
	p.formers = slices.DeleteFunc(p.formers, func(inc ownership.Incarnation) bool { return !t.IsMember(inc) })
	p.Boxes.RestartHandover()
}

// TakenOver sends the events again that a former owner has of partitions that others have taken over from it.
func (p *Pipeline) TakenOver(t ownership.TakenOver) {
	p.Holder.TakenOver(forward.Peer(t.Inc), t.Partitions.Has)
}

// route is an epoch as forward sees it.
type route struct{ *ownership.Table }

// Locate implements forward.Route.
func (r route) Locate(p ring.Partition) (forward.Peer, bool) {
	return forward.Peer(r.Owner(p).Inc), true
}

// Epoch implements forward.Route.
func (r route) Epoch() event.Position { return r.Cur }
