package mailbox

import (
	"container/heap"

	"github.com/ringfence/router/internal/base/clock"
)

// enqueue files an idle actor under the reason why its first event waits: gate, hold, park, retry,
// worker or slot. Events that are to be skipped or parked leave it first.
func (b *Boxes) enqueue(now clock.Instant, a *actor, out *Output) {
	b.skipWaiting(now, a, out)
	b.parkWaiting(now, a, out)
	visits := a.visited && b.visits.of[a].depth > 0
	switch {
	case a.head == nil && !visits:
		b.passivate(a)
	case b.resuming(now, a) != nil: // its turn continues, as that of a delivery on a held or parked key
		b.makeReady(now, a, out)
	case !a.mayRun():
		a.wait, a.since = WaitGate, now
	case len(b.onHold) > 0 && b.onHold[a.key]:
		a.wait, a.since = WaitHold, now
		b.onHoldHere++
	case b.waitsForPark(a):
		a.wait, a.since = WaitPark, now
		b.onParkHere++
	case !visits && b.skipsFirst(a) && b.mayLeave(now, a): // it may not end yet
		a.heldUntil = now.Add(skipAgain)
		a.wait, a.since = WaitRetry, now
		b.awaitRetry(a, out)
	case a.heldUntil.After(now) && !visits:
		a.wait, a.since = WaitRetry, now
		b.awaitRetry(a, out)
	default:
		b.makeReady(now, a, out)
	}
}

// awaitRetry lets an actor wait until its heldUntil.
func (b *Boxes) awaitRetry(a *actor, out *Output) {
	heap.Push(&b.retrying, a)
	out.DueSooner = out.DueSooner || b.retrying[0] == a
}

// makeReady adds an actor whose first event may run to the queue of its worker.
func (b *Boxes) makeReady(now clock.Instant, a *actor, out *Output) {
	a.worker = b.workerOf(now, a)
	a.since = now
	if a.worker == nil {
		a.wait = WaitWorker
		b.orphans.push(a)
		return
	}
	a.wait = WaitSlot
	a.worker.ready.push(a)
	b.ready++
	a.worker.wake(out)
}

// refile files an actor again after the reasons why it may wait have changed, unless its key runs.
func (b *Boxes) refile(now clock.Instant, a *actor, out *Output) {
	if a.running == nil {
		b.dequeueWaiting(a)
		b.enqueue(now, a, out)
	}
}

// dequeue undoes makeReady.
func (b *Boxes) dequeue(a *actor) {
	if a.wait == WaitWorker {
		b.orphans.remove(a)
		return
	}
	a.worker.ready.remove(a)
	b.ready--
}

// dequeueWaiting undoes enqueue, whatever the actor waits for. An actor whose key runs is not changed.
func (b *Boxes) dequeueWaiting(a *actor) {
	switch a.wait {
	case WaitHandler:
		return
	case WaitRetry:
		heap.Remove(&b.retrying, int(a.waitsAt))
	case WaitWorker, WaitSlot:
		b.dequeue(a)
	case WaitHold:
		b.onHoldHere--
	case WaitPark:
		b.onParkHere--
	case WaitNothing, WaitGate:
	}
	a.wait = WaitNothing
}

// retryHeap holds the actors that wait for their heldUntil, the earliest first.
type retryHeap []*actor

var _ heap.Interface = (*retryHeap)(nil)

func (h retryHeap) Len() int { return len(h) }

func (h retryHeap) Less(i, j int) bool { return h[i].heldUntil < h[j].heldUntil }

func (h retryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].waitsAt, h[j].waitsAt = uint64(i), uint64(j)
}

// Push is for container/heap only.
func (h *retryHeap) Push(x any) {
	a := x.(*actor)
	a.waitsAt = uint64(len(*h))
	*h = append(*h, a)
}

// Pop is for container/heap only.
func (h *retryHeap) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return a
}
