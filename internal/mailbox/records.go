package mailbox

import (
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/history/hotkeys"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/ring"
)

// records holds what a shard reports about its deliveries. No decision depends on it.
type records struct {
	attempts *history.Attempts
	hot      *hotkeys.Sketch // of the window that has begun
	hotSince clock.Instant   // when it began: what ran before counts in the window before
	times    Times
	fences   map[event.DeliveryID]event.Fence // of running deliveries under earlier tokens of their partitions
}

// Times holds the durations of the deliveries.
type Times struct {
	Queued  history.Durations // from the mailbox to a worker, of first deliveries
	Handled history.Durations // from a worker to the answer
}

// record notes the end of a delivery. The item still runs.
func (b *Boxes) record(now clock.Instant, it *item, r *event.Result, o outcome.Outcome, skip *event.Skip) {
	if b.records == nil {
		return
	}
	if it.attempts == 0 && it.crashes == 0 {
		b.records.times.Queued.Add(it.actor.since.Sub(it.cohort.at))
	}
	b.recordTurn(now, it, r, b.endOf(it, r, o, skip))
}

// recordTurn notes the end of a delivery, of an event or a visit.
func (b *Boxes) recordTurn(now clock.Instant, it *item, r *event.Result, end history.End) {
	a := it.actor
	b.records.hot.Add(a.id, now.Sub(max(a.since, b.records.hotSince)))
	b.records.times.Handled.Add(now.Sub(a.since))
	at := b.records.attempts.Next(a.fails || history.Failed(r.Kind) || it.attempts > 0)
	at.Key, at.ID, at.Accepted, at.Delivered, at.Ended = a.id, it.id, it.cohort.at, a.since, now
	at.Fence, at.Number, at.Result, at.End, at.TimedOut = b.fenceOf(it), numberOf(it), r.Kind, end, r.TimedOut
	at.Ran = r.Ran
	a.fails = a.fails || end == history.Retried
	if len(b.records.fences) > 0 {
		delete(b.records.fences, it.delivery)
	}
}

// numberOf returns the number of an event's attempt, as far as a history has room for it.
func numberOf(it *item) uint16 { return uint16(min(it.attempts, 1<<16-2) + 1) }

// endOf returns what becomes of the event of a delivery.
func (b *Boxes) endOf(it *item, r *event.Result, o outcome.Outcome, skip *event.Skip) history.End {
	switch {
	case outcome.IsAck(r.Kind):
		return history.Done
	case o.Kind == outcome.DeadLetter || skip != nil:
		return history.Rejected
	case !o.Hold:
		return history.Copied
	case !it.actor.part.ours():
		return history.Moved
	case o.Attempts > it.attempts || o.Crashes > it.crashes:
		return history.Retried
	}
	return history.Returned
}

// recordEnd notes that a waiting event leaves: to the next owner, or skipped.
func (b *Boxes) recordEnd(now clock.Instant, it *item, end history.End) {
	if b.records == nil {
		return
	}
	*b.records.attempts.Next(it.actor.fails || it.attempts > 0) = history.Attempt{
		Key: it.actor.id, ID: it.id, Accepted: it.cohort.at, Ended: now, Number: numberOf(it), End: end,
	}
}

// keepFences notes the fences of the running deliveries of a partition before its token changes.
func (b *Boxes) keepFences(p *part) {
	if b.records == nil || p.running == 0 {
		return
	}
	for a := p.actors; a != nil; a = a.inPart.next {
		if a.running != nil {
			b.records.fences[a.running.delivery] = b.fenceOf(a.running)
		}
	}
}

// fenceOf returns the fence of a running delivery.
func (b *Boxes) fenceOf(it *item) event.Fence {
	if len(b.records.fences) > 0 {
		if fence, kept := b.records.fences[it.delivery]; kept {
			return fence
		}
	}
	token := it.actor.part.token
	if token == 0 {
		return event.Fence{}
	}
	return event.Fence{Token: int64(token), Turn: uint64(it.delivery) / uint64(b.shards) >> placeBits}
}

// listedMax bounds the events of a key that wait and are shown in its history.
const listedMax = 100

// open appends the events of a key that are here, at most listedMax of those that wait.
func (b *Boxes) open(key ring.KeyHash, dst []history.Attempt) []history.Attempt {
	a := b.actorOf(key)
	if a == nil {
		return dst
	}
	add := func(it *item) {
		one := history.Attempt{Key: key, ID: it.id, Accepted: it.cohort.at, Number: numberOf(it)}
		if it == a.running {
			one.Delivered, one.Fence = a.since, b.fenceOf(it)
		}
		dst = append(dst, one)
	}
	if a.running != nil {
		add(a.running)
	}
	for it, n := a.head, 0; it != nil && n < listedMax; it, n = it.next, n+1 {
		add(it)
	}
	return dst
}

// actorOf returns the actor of a key by its hash alone, nil if it has no events.
func (b *Boxes) actorOf(key ring.KeyHash) *actor {
	a := b.part(key.Partition()).actors
	for a != nil && a.id != key {
		a = a.inPart.next
	}
	return a
}

// nameAll adds the names of keys that have events here.
func (b *Boxes) nameAll(keys []hotkeys.Count, names map[ring.KeyHash]event.Key) {
	for _, c := range keys {
		if a := b.actorOf(c.Key); a != nil {
			names[c.Key] = event.Key(strings.Clone(string(a.key))) // it outlives the events
		}
	}
}
