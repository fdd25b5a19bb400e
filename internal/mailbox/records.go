package mailbox

import (
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/hotkeys"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/ring"
)

// records are what a shard remembers of its deliveries, for people. Nothing is decided by them.
type records struct {
	attempts *history.Attempts
	hot      *hotkeys.Sketch // of the window that has begun
	times    Times
}

// Times are how long the deliveries have taken.
type Times struct {
	Queued  history.Durations // from the mailbox to a worker, of first deliveries
	Handled history.Durations // from a worker to the answer
}

// record notes the end of a delivery. The item still runs.
func (b *Boxes) record(now clock.Instant, it *item, r *event.Result, o outcome.Outcome) {
	if b.records == nil {
		return
	}
	a := it.actor
	took := now.Sub(a.since)
	b.records.hot.Add(a.id, took)
	b.records.times.Handled.Add(took)
	if it.attempts == 0 && it.crashes == 0 {
		b.records.times.Queued.Add(a.since.Sub(it.cohort.at))
	}
	end := b.endOf(it, r, o)
	attempt := history.Attempt{
		Key: a.id, ID: it.id, Accepted: it.cohort.at, Delivered: a.since, Ended: now,
		Fence: b.fenceOf(it), Number: uint16(min(it.attempts, attemptMax) + 1), Result: r.Kind, End: end, TimedOut: r.TimedOut,
	}
	if r.Ran != nil {
		attempt.Ran = *r.Ran
	}
	b.records.attempts.Add(&attempt, a.fails)
	a.fails = a.fails || end == history.Retried
}

// attemptMax bounds the number of an attempt in a history.
const attemptMax = 1<<16 - 2

// endOf returns what becomes of the event of a delivery.
func (b *Boxes) endOf(it *item, r *event.Result, o outcome.Outcome) history.End {
	switch {
	case outcome.IsAck(r.Kind):
		return history.Done
	case o.Kind == outcome.DeadLetter:
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

// recordMoved notes that a waiting event is sent on to the next owner.
func (b *Boxes) recordMoved(now clock.Instant, it *item) {
	if b.records == nil {
		return
	}
	b.records.attempts.Add(&history.Attempt{
		Key: it.actor.id, ID: it.id, Accepted: it.cohort.at, Ended: now, Number: uint16(min(it.attempts, attemptMax) + 1), End: history.Moved,
	}, it.actor.fails)
}

// fenceOf returns the fence of a running delivery; none if its tenure is not known any more.
func (b *Boxes) fenceOf(it *item) event.Fence {
	p, turn := it.actor.part, uint64(it.delivery)/uint64(b.shards)>>placeBits
	token := p.token
	if turn <= p.tokenTurn {
		token = p.former
	}
	if token == 0 || turn <= p.formerTurn {
		return event.Fence{}
	}
	return event.Fence{Token: int64(token), Turn: turn}
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
		one := history.Attempt{Key: key, ID: it.id, Accepted: it.cohort.at, Number: uint16(min(it.attempts, attemptMax) + 1)}
		if it == a.running {
			one.Delivered, one.Fence = a.since, b.fenceOf(it)
		}
		dst = append(dst, one)
	}
	if a.running != nil {
		add(a.running)
	}
	it := a.head
	for range listedMax {
		if it == nil {
			break
		}
		add(it)
		it = it.next
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
