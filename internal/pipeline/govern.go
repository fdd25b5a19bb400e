package pipeline

import (
	"iter"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// SetGates changes gates. When it returns, no delivery under an old gate begins,
// and events that waited behind a closed one are on their way back.
//
// What was done on a partition goes to its next owner when its gate is closed: nothing
// of it runs any more then, and the Beat that says so is not built yet.
func (p *Pipeline) SetGates(changes []ownership.GateChange) {
	for _, c := range changes {
		if c.Gate != ownership.Closed {
			continue
		}
		if ids := p.Boxes.Window(c.Partition); len(ids) > 0 { // which closing the gate forgets
			p.moving = append(p.moving, forward.Window{Partition: c.Partition, IDs: ids})
		}
	}
	p.with(func(out *mailbox.Output) { p.Boxes.SetGates(changes, p.epoch(), out) })
	p.handOver()
}

// handOver sends the windows of closed partitions to whom the newest table names. A
// gate that has never been open is closed before the table of its epoch is here.
func (p *Pipeline) handOver() { p.moving = p.tellNext(p.moving) }

// tellNext sends windows to the next owners of their partitions, and returns those
// whose owner is nobody else.
func (p *Pipeline) tellNext(windows []forward.Window) (kept []forward.Window) {
	t, self := p.table.Load(), *p.self.Load()
	if t == nil || len(windows) == 0 {
		return windows
	}
	next := make(map[ownership.Incarnation][]forward.Window, len(t.Members))
	for _, w := range windows {
		if owner := t.Owner(w.Partition).Inc; owner != self {
			next[owner] = append(next[owner], w)
		} else {
			kept = append(kept, w)
		}
	}
	for _, n := range t.Members { // a map's order would not do
		if windows := next[n.Inc]; len(windows) > 0 {
			p.Holder.HandOver(forward.Peer(n.Inc), windows)
		}
	}
	return kept
}

// Revoke takes partitions back from the application; a final one takes everything.
func (p *Pipeline) Revoke(r ownership.Revoke) {
	if r.Final {
		p.App.RevokeAll()
		return
	}
	p.App.Revoke(r.Partitions, false)
}

// Force ends the patience with what runs on revoked partitions.
func (p *Pipeline) Force(f ownership.ForceDrain) { p.App.Force(f.Partitions) }

// Rest returns those of the partitions on which nothing runs now, and on which keys
// deliveries run on the others. What was done there is on its way to the next owner
// then, who need not wait for these keys with the rest.
func (p *Pipeline) Rest(partitions ownership.Set) (idle ownership.Set, busy []ownership.Busy) {
	var none []ring.Partition
	var done []forward.Window
	for q := range partitions.All() {
		keys := p.Boxes.Busy(q)
		if len(keys) == 0 {
			none = append(none, q)
			continue
		}
		busy = append(busy, ownership.Busy{Partition: q, Keys: keys})
		if ids := p.Boxes.Window(q); len(ids) > 0 {
			done = append(done, forward.Window{Partition: q, IDs: ids})
		}
	}
	p.tellNext(done)
	return ownership.SetOf(none...), busy
}

// SetLease publishes the lease. Revocations that belong to the records before it
// stand in the streams' queues already, which is what Pongs rely on.
func (p *Pipeline) SetLease(l ownership.Lease) {
	lapsed := !p.lease.Load().MayDispatch(ownership.Open, p.now())
	p.lease.Store(&l)
	if lapsed {
		p.App.WakeAll() // what was ready waits for nothing but this
	}
}

// SetTable publishes the newest applied epoch. Its gates were set before.
func (p *Pipeline) SetTable(t *ownership.Table) {
	p.table.Store(t)
	p.Peers.SetEpoch(t.Cur)
	p.with(func(out *mailbox.Output) { p.Boxes.SetGates(nil, t.Cur, out) })
	p.Holder.SetRoute(forward.Peer(*p.self.Load()), route{t})
	p.handOver()
	p.moving = nil // the rest is ours again
}

// route is an epoch as forward sees it.
type route struct{ *ownership.Table }

// Locate implements forward.Route.
func (r route) Locate(p ring.Partition) (forward.Peer, bool) {
	return forward.Peer(r.Owner(p).Inc), true
}

// Owners implements forward.Route.
func (r route) Owners() iter.Seq[forward.Peer] {
	return func(yield func(forward.Peer) bool) {
		seen := make([]bool, len(r.Members))
		for _, i := range r.Table.Owners {
			if seen[i] {
				continue
			}
			seen[i] = true
			if !yield(forward.Peer(r.Members[i].Inc)) {
				return
			}
		}
	}
}

// Epoch implements forward.Route.
func (r route) Epoch() event.Position { return r.Cur }
