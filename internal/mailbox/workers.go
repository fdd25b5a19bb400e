package mailbox

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/event"
)

// worker is one stream of the application, and the keys that are ready for it.
type worker struct {
	id    event.WorkerID
	salt  uint64
	ready queue
	woken uint64 // the last Boxes.call that named it in Output.Wake
}

// workers are the live workers, by id.
type workers struct {
	all        []*worker
	generation uint32 // grows when a worker starts or stops
}

func (s *workers) search(id event.WorkerID) (int, bool) {
	return slices.BinarySearchFunc(s.all, id, func(w *worker, id event.WorkerID) int {
		switch {
		case w.id < id:
			return -1
		case w.id > id:
			return 1
		}
		return 0
	})
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
	switch len(s.all) {
	case 0:
		return nil
	case 1:
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
