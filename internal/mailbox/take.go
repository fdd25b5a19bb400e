package mailbox

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/invariant"
	"github.com/ringfence/router/internal/ownership"
)

// Take appends to dst the first events of up to limit keys that are ready for w, and
// returns it. Each of them runs from now on. It takes nothing for a worker that is not
// up or while the lease has expired; Tick wakes w when the lease is back.
func (b *Boxes) Take(now clock.Instant, lease ownership.Lease, w event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	worker := &b.visits.keeper
	if w != event.Keeper {
		worker = b.workers.find(w)
	}
	if worker == nil {
		return dst
	}
	for range limit {
		a := worker.ready.head()
		if a == nil || !lease.MayDispatch(a.part.gate, now) {
			break // the gate of a ready key is open, so the lease has expired
		}
		worker.ready.pop()
		b.ready--
		if !invariant.Check(a.running == nil, "mailbox: one delivery of a key at a time") {
			a.wait = WaitHandler // block the key rather than run it twice
			continue
		}
		it := b.next(now, worker, a)
		if it == nil {
			b.putOff(now, a)
			continue
		}
		if w == event.Keeper {
			a.part.changes++ // the worker of the key has not seen this turn
		}
		dst = append(dst, event.Delivery{})
		b.dispatch(now, a, it, &dst[len(dst)-1])
	}
	return dst
}

// next takes what runs next out of the queues of a ready key: the first event, or a visit. It returns nil if nothing may run now.
func (b *Boxes) next(now clock.Instant, w *worker, a *actor) *item {
	if a.visited {
		v := b.visits.of[a]
		if v.depth > 0 {
			return b.nextOfBoth(now, w, a, v)
		}
		v.inTurn = 0
	}
	a.heldUntil = 0
	return a.popFront()
}

// dispatch makes a visit or an event of a key run. It writes the delivery in place: a
// copy of memory that was just written stalls on the pending stores.
func (b *Boxes) dispatch(now clock.Instant, a *actor, it *item, d *event.Delivery) {
	it.delivery = b.newDelivery(it)
	a.running = it
	b.running++
	a.part.running++
	if it.visit {
		b.visits.running++
	}
	a.wait, a.since = WaitHandler, now
	d.ID, d.Ref, d.Key, d.Size = it.delivery, it.ref, a.id, it.bytes-placeBytes
	d.Partition, d.Token = a.part.number, int64(a.part.token)
	d.Attempt, d.Crashes = max(it.attempts, it.attempts+1), it.crashes   // a consumer node may say that the count is full
	d.Generation = uint64(a.part.changes) + uint64(b.workers.generation) // both only grow
	if d.Token != 0 {                                                    // without a token, the turns of two owners have no order
		d.Turn = b.turn()
	}
}

// stop undoes dispatch.
func (b *Boxes) stop(it *item) {
	it.delivery = 0
	it.actor.running, it.actor.wait = nil, WaitNothing
	b.running--
	it.actor.part.running--
	if it.visit {
		b.visits.running--
	}
}

// turn returns the turn of the newest delivery. A partition stays in its shard, and
// Boxes live as long as the process, so turns of a key grow while its token stays.
func (b *Boxes) turn() uint64 {
	return b.delivered
}

// itemsMax bounds the events of one shard, so that the index of an item fits into the id
// of a delivery.
const (
	placeBits = 20
	itemsMax  = 1 << placeBits
)

// newDelivery returns the id of a delivery: a count, the index of its item, and the
// shard. The item is found without a search, and an id repeats after 1<<44 deliveries
// of all shards.
func (b *Boxes) newDelivery(it *item) event.DeliveryID {
	b.delivered++
	return event.DeliveryID((b.delivered<<placeBits|uint64(it.place))*uint64(b.shards) + uint64(b.shard))
}

// find returns the item of a delivery that runs, or nil.
func (b *Boxes) find(id event.DeliveryID) *item {
	place := uint64(id) / uint64(b.shards) % itemsMax
	if id == 0 || place >= uint64(b.items.places()) {
		return nil
	}
	if it := b.items.at(uint32(place)); it.delivery == id {
		return it
	}
	return nil
}

// Delivered returns the event of a running delivery, nil if the delivery has ended.
func (b *Boxes) Delivered(id event.DeliveryID) *event.Event {
	if it := b.find(id); it != nil {
		return it.ref.Event()
	}
	return nil
}
