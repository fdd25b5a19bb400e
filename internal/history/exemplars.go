package history

import (
	"sync"
	"time"
)

// Exemplar is one duration with the trace that it is of.
type Exemplar struct {
	Trace string // id, in hex
	Took  time.Duration
	At    time.Time
}

// Exemplars keeps the newest exemplar of each size of [Durations]. It is safe for concurrent use, and meant for the few
// durations that have a trace. The zero value is ready for use.
type Exemplars struct {
	mu     sync.Mutex
	newest [durationBuckets + 1]Exemplar
}

// Add notes an exemplar.
func (e *Exemplars) Add(one Exemplar) {
	one.Took = max(0, one.Took)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.newest[bucketOf(one.Took)] = one
}

// All returns the exemplars, the shortest first.
func (e *Exemplars) All() (all []Exemplar) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.newest {
		if one.Trace != "" {
			all = append(all, one)
		}
	}
	return all
}
