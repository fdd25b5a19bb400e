package mailbox

import (
	"cmp"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// worker is one stream of the application, and the keys that are ready for it.
type worker struct {
	id    event.WorkerID
	salt  uint64
	ready queue
	woken int // where it was last named in Output.Wake
}

// wake names a worker in out.Wake, unless it is named there.
func (w *worker) wake(out *Output) {
	if w.woken >= len(out.Wake) || out.Wake[w.woken] != w.id {
		w.woken = len(out.Wake)
		out.Wake = append(out.Wake, w.id)
	}
}

// workers are the live workers, by id.
type workers struct {
	all        []*worker
	generation uint32 // grows when a worker starts or stops
}

func (s *workers) search(id event.WorkerID) (int, bool) {
	return slices.BinarySearchFunc(s.all, id, func(w *worker, id event.WorkerID) int { return cmp.Compare(w.id, id) })
}

func (s *workers) find(id event.WorkerID) *worker {
	if i, ok := s.search(id); ok {
		return s.all[i]
	}
	return nil
}

// pick chooses the worker of a key by rendezvous hashing: when a worker starts or stops,
// only keys that it gains or loses move. It returns nil if there is no worker.
func (s *workers) pick(key event.Key) *worker {
	if len(s.all) == 1 {
		return s.all[0]
	}
	hash := xxhash.Sum64String(string(key))
	var best *worker
	var bestScore uint64
	for _, w := range s.all {
		if score := mix(hash ^ w.salt); best == nil || score > bestScore {
			best, bestScore = w, score
		}
	}
	return best
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// WorkerUp adds a worker and gives it its share of the ready keys.
func (b *Boxes) WorkerUp(now clock.Instant, id event.WorkerID, out *Output) {
	i, found := b.workers.search(id)
	if found {
		return
	}
	b.workers.all = slices.Insert(b.workers.all, i, &worker{id: id, salt: mix(uint64(id))})
	b.workers.generation++
	b.reassign(now, &b.orphans, nil, out)
	if len(b.workers.all) == 1 { // before, the reservations of a key went before all else
		b.reassign(now, &b.visits.keeper.ready, &b.visits.keeper, out)
	}
	for _, w := range b.workers.all {
		b.reassign(now, &w.ready, w, out)
	}
}

// WorkerGone removes a worker and reassigns its ready keys. Its deliveries count as
// running until Finish has their results.
func (b *Boxes) WorkerGone(now clock.Instant, id event.WorkerID, out *Output) {
	i, found := b.workers.search(id)
	if !found {
		return
	}
	gone := b.workers.all[i]
	b.workers.all = slices.Delete(b.workers.all, i, i+1)
	b.workers.generation++
	b.reassign(now, &gone.ready, gone, out)
}

// reassign moves the keys in q, the queue of worker from, to the workers that rendezvous
// hashing now gives them.
func (b *Boxes) reassign(now clock.Instant, q *queue, from *worker, out *Output) {
	for number, end := q.first, q.end; number < end; number++ { // those that remain the keeper's are pushed behind end
		if a := q.at(number); a != nil && b.workers.pick(a.key) != from {
			b.dequeue(a)
			b.makeReady(now, a, out)
		}
	}
}
